//! A client that passes what it must not.

mod nvtx_common;

use nvtx_common::{SHORT, at_first_gate, attach, injected, names, program, ready, said};
use parcagpu_tests::lab::Lab;

#[test]
fn garbage_breaks_nothing() {
    let Some(wheels) = ready("garbage_breaks_nothing") else {
        return;
    };
    let lab = Lab::new();
    let hostile = program(&lab, &wheels, "hostile.c");
    let mut running = at_first_gate(injected(&lab, hostile));
    let trace = attach(&lab);
    running.open_gate(1);
    let ended = running.wait(SHORT).ok();
    for line in [
        "alive",
        "extra pop -2",
        "null name 1",
        "null string 1",
        "null resource 1",
    ] {
        assert!(ended.stdout.contains(line), "{}", ended.stdout);
    }
    let events = trace.end();
    let said = said(&events.all);
    let story: Vec<(&str, &str, u64)> = said
        .iter()
        .map(|s| (s.kind.as_str(), s.message.as_str(), s.color))
        .collect();

    let nulls = [("mark", "", 0); 3];
    assert_eq!(story[..3], nulls);
    assert_eq!(story[3..5], [("push", "", 0); 2]);
    assert_eq!(story[5..8], [("pop", "", 0); 3]);
    assert_eq!(story[8..11], [("end", "", 0); 3]);
    // Sizes 0, 1, 3, 4, 15: no colour yet. 16, 31, 32, 47: no message yet. 48 and more: all.
    assert_eq!(story[11..16], [("mark", "", 0); 5]);
    assert_eq!(story[16..20], [("mark", "", 0xff00_0001); 4]);
    assert_eq!(story[20..24], [("mark", "sized", 0xff00_0001); 4]);
    // The consumer reads 255 bytes of what the library keeps.
    assert_eq!(story[24], ("mark", "h".repeat(255).as_str(), 0));
    assert_eq!(
        story[25],
        ("mark", "bad \u{fffd}\u{fffd} utf-8 \u{fffd}", 0)
    );
    assert_eq!(story[26], ("mark", "w\u{fffd}\u{fffd}z", 0));
    assert_eq!(story[27], ("mark", "strange types", 0));
    assert_eq!(story[28], ("mark", "", 0));
    assert_eq!(story[29], ("mark", "(unknown string)", 0));
    assert_eq!(story[30], ("mark", "(unknown string)", 0));
    assert_eq!(
        story[31..33],
        [("mark", "strange domain", 0), ("push", "strange domain", 0)]
    );
    assert_eq!(said[31].domain, format!("(domain {})", u32::MAX));
    assert_eq!(story[33..], [("mark", "after", 0)]);
    assert_eq!(said[27].payload, (0, 0));

    let names = names(&events.all);
    let thread = names.get(&("os_thread".to_owned(), 77)).map(String::len);
    assert_eq!(thread, Some(255));
    assert!(!names.contains_key(&("os_thread".to_owned(), 1)));
}
