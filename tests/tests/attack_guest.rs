//! What a tool left inside CUPTI is still its own when we become its guest.

use parcagpu_tests::hosts::{Case, compile, lab};
use parcagpu_tests::need;

/// A tool switches its kind off and flushes only seconds later, when it counts as quiet and we share its
/// subscription: its buffers come back to it, not to us.
#[test]
fn buffers_of_a_quiet_tool_come_back_to_it() {
    if !need::bpf("buffers_of_a_quiet_tool_come_back_to_it") {
        return;
    }
    let lab = lab();
    let tool = compile(&lab, "coexist/tool.c", "tool", &[]);
    let words = "init load libcupti.so.13 subscribe register on launch 10 sync off \
                 gate flush 1 report unsubscribe";
    let seen = Case::new(&lab, tool, words).back_at_gates(1).check();
    let stdout = &seen.with.ended.stdout;
    assert!(stdout.contains("records 10 foreign 0"), "{stdout}");
}
