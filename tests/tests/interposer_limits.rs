//! Where hooks cannot be: functions that are too short or jump about, code that may not be changed,
//! no engine. The program notices nothing, launches are still told, and why is said once.

use std::path::PathBuf;
use std::time::Duration;

use parcagpu_abi::status::State;
use parcagpu_tests::block;
use parcagpu_tests::drivers::{BODY, driver_with_code};
use parcagpu_tests::hosts::{Case, compile, engine, lab};
use parcagpu_tests::lab::{Lab, Mode};
use parcagpu_tests::need;

const WORK: &str = "init context launch 10 ex 5 graph 3 sync launch 5 sync say done";
/// Launches in it: the graph's captured one is none.
const LAUNCHES: usize = 23;

fn ways(lab: &Lab) -> PathBuf {
    compile(lab, "interposer/ways.c", "ways", &[])
}

/// A short jump at offset `from` to the place where the function's body is entered.
fn to_body(from: u8) -> [u8; 2] {
    [0xeb, BODY - (from + 2)]
}

/// `cuLaunchKernel` starts with a jump: it is left alone and its launches are told by CUPTI; the
/// other functions are hooked.
#[test]
fn starts_with_a_jump() {
    if !need::bpf("starts_with_a_jump") {
        return;
    }
    let lab = lab();
    let driver = driver_with_code(&lab, "jump", "cuLaunchKernel", &to_body(0), None);
    let words = format!("open libcuda.so.1 bytes cuLaunchKernel 34 {WORK} bytes cuLaunchKernel 34");
    let seen = Case::new(&lab, ways(&lab), &words).driver(driver).check();
    seen.launches(LAUNCHES)
        .one_error("cuLaunchKernel is left alone");
    assert_eq!(seen.events.errors().len(), 1, "{:?}", seen.events.errors());
    assert_eq!(seen.subscriptions(), 1);
}

/// Functions that begin as the compiler makes them for control-flow enforcement (B11): hooked, and the first
/// instruction stays what an indirect call needs.
#[test]
fn starts_with_a_landing_mark() {
    if !need::bpf("starts_with_a_landing_mark") {
        return;
    }
    let lab = lab();
    // endbr64, the driver's prologue, and back to the state at entry.
    let mut code = vec![0xf3, 0x0f, 0x1e, 0xfa];
    code.extend([0x55, 0x48, 0x89, 0xe5, 0x41, 0x54, 0x48, 0x83, 0xec, 0x08]);
    code.extend([0x48, 0x83, 0xc4, 0x08, 0x41, 0x5c, 0x5d]);
    code.extend(to_body(code.len() as u8));
    let driver = driver_with_code(&lab, "marked", "cuLaunchKernel", &code, None);
    let case = Case::new(&lab, ways(&lab), &format!("open libcuda.so.1 {WORK}")).driver(driver);
    case.check().launches(LAUNCHES).no_errors();
    // With shadow stacks, where processor and kernel have them.
    let processor = std::fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    if !processor.contains("user_shstk") {
        need::skip(
            "starts_with_a_landing_mark, shadow stacks",
            "shstk",
            "this processor or kernel has no shadow stacks",
        );
        return;
    }
    case.env("GLIBC_TUNABLES", "glibc.cpu.hwcaps=SHSTK,IBT")
        .check()
        .launches(LAUNCHES);
}

/// `cuLaunchKernel` is three bytes, with another function right behind, whose bytes stay.
#[test]
fn three_bytes() {
    if !need::bpf("three_bytes") {
        return;
    }
    let lab = lab();
    // A no-operation of three bytes that falls into the neighbour.
    let mut code = vec![0x0f, 0x1f, 0x00];
    code.extend(to_body(3));
    let size = Some((3, "cuMemGetInfo_v2"));
    let driver = driver_with_code(&lab, "short", "cuLaunchKernel", &code, size);
    let both = "bytes cuLaunchKernel 34 bytes cuMemGetInfo_v2 31";
    let words =
        format!("open libcuda.so.1 {both} {WORK} call cuMemGetInfo_v2 call cuLaunchKernel {both}");
    let seen = Case::new(&lab, ways(&lab), &words).driver(driver).check();
    seen.launches(LAUNCHES + 2)
        .one_error("cuLaunchKernel is left alone");
}

/// `cuLaunchKernel` branches back into its first bytes: whichever byte that is, it works, hooked or
/// left alone.
#[test]
fn branches_into_its_start() {
    if !need::bpf("branches_into_its_start") {
        return;
    }
    let lab = lab();
    let ways = ways(&lab);
    // xor eax, eax; 2: inc eax; cmp eax, 2; jne 2
    let mut second = vec![0x31, 0xc0, 0xff, 0xc0, 0x83, 0xf8, 0x02, 0x75, 0xf9];
    second.extend(to_body(9));
    // mov eax, 2; 5: dec eax; jne 5
    let mut fifth = vec![0xb8, 2, 0, 0, 0, 0xff, 0xc8, 0x75, 0xfc];
    fifth.extend(to_body(9));
    for (name, code) in [("second", second), ("fifth", fifth)] {
        let driver = driver_with_code(&lab, name, "cuLaunchKernel", &code, None);
        let words = format!("open libcuda.so.1 {WORK}");
        let seen = Case::new(&lab, &ways, &words).driver(driver).check();
        seen.launches(LAUNCHES);
        let errors = seen.events.errors();
        assert!(errors.len() <= 1, "{name}: {errors:?}");
        if name == "second" {
            seen.one_error("cuLaunchKernel is left alone");
        }
    }
}

/// The boot function itself cannot be hooked: the driver loads us by its variable, or a later call
/// brings us up.
#[test]
fn init_cannot_be_hooked() {
    if !need::bpf("init_cannot_be_hooked") {
        return;
    }
    let lab = lab();
    let driver = driver_with_code(&lab, "init", "cuInit", &to_body(0), None);
    let words = format!("open libcuda.so.1 {WORK}");
    let seen = Case::new(&lab, ways(&lab), &words).driver(driver).check();
    seen.launches(LAUNCHES).one_error("cuInit is left alone");
    assert_eq!(seen.subscriptions(), 1);
}

/// A process that may not make code writable: no hook, one error, and the driver loads us.
#[test]
fn code_may_not_be_written() {
    if !need::bpf("code_may_not_be_written") {
        return;
    }
    let lab = lab();
    let ways = ways(&lab);
    let mdwe = compile(&lab, "interposer/mdwe.c", "mdwe", &[]);
    let words = format!("{} open libcuda.so.1 {WORK}", ways.display());
    let case = Case::new(&lab, &mdwe, &words);
    let bare = case.bare();
    if bare.ended.code() == 77 {
        need::skip(
            "code_may_not_be_written",
            "mdwe",
            "this kernel has no PR_SET_MDWE",
        );
        return;
    }
    let seen = case.check_against(bare);
    assert_eq!(seen.with.ended.stdout, "cuInit 0\ndone\n");
    seen.launches(LAUNCHES)
        .one_error("code pages may not be made writable");
    assert_eq!(seen.subscriptions(), 1);

    let words = format!(
        "{} open libcuda.so.1 init context gate launch 1",
        ways.display()
    );
    let mut host = Case::new(&lab, &mdwe, &words).build(Mode::Preload).start();
    host.wait_gate(1);
    let status = block::read(host.pid(), &lab.library()).unwrap();
    assert_eq!(status.engine.load(), "none");
    let reason = status.engine_reason.load();
    assert!(reason.contains("may not be made writable"), "{reason}");
    // The kernel takes its time to detach the consumer of before.
    block::wait_state(host.pid(), &lab.library(), State::Dormant);
    host.open_gate(1);
    host.wait(Duration::from_secs(10)).ok();
}

/// Engine `none` and preloaded: nothing is patched, and the driver loads us by the variable.
#[test]
fn no_engine() {
    if !need::bpf("no_engine") {
        return;
    }
    let lab = lab();
    let ways = ways(&lab);
    let words = format!("open libcuda.so.1 {WORK} bytes cuInit 34 bytes cuLaunchKernel 34");
    let seen = Case::new(&lab, &ways, &words)
        .with("PARCAGPU_HOOK_ENGINE", "none")
        .check();
    seen.launches(LAUNCHES).no_errors();
    assert_eq!(seen.subscriptions(), 1);
    let linked = compile(
        &lab,
        "interposer/ways.c",
        "linked",
        &[
            "-DLINKED",
            "-Wl,--no-as-needed",
            &parcagpu_tests::artefacts::sim()
                .join("libcuda.so.1")
                .display()
                .to_string(),
        ],
    );
    let seen = Case::new(&lab, linked, &format!("linked {WORK}"))
        .with("PARCAGPU_HOOK_ENGINE", "none")
        .check();
    seen.launches(LAUNCHES).no_errors();
}

/// What the status block says of the engine, for each that may be asked for.
#[test]
fn engine_in_the_status_block() {
    let lab = lab();
    let ways = ways(&lab);
    let mut said = Vec::new();
    for name in ["none", "auto", "detour", "gum"] {
        let words = "open libcuda.so.1 init context gate launch 1";
        let mut host = Case::new(&lab, &ways, words)
            .with("PARCAGPU_HOOK_ENGINE", name)
            .build(Mode::Preload)
            .start();
        host.wait_gate(1);
        let status = block::read(host.pid(), &lab.library()).unwrap();
        said.push((status.engine.load(), status.engine_reason.load()));
        host.open_gate(1);
        host.wait(Duration::from_secs(10)).ok();
    }
    assert_eq!(said[0].0, "none");
    assert!(said[0].1.contains("PARCAGPU_HOOK_ENGINE=none"), "{said:?}");
    let known = ["gum", "detour"];
    assert!(known.contains(&said[1].0.as_str()), "{said:?}");
    for (name, (is, reason)) in known.iter().zip([&said[2], &said[3]].into_iter().rev()) {
        assert!(is == name || reason.contains("not built in"), "{said:?}");
    }
    assert!(
        said.iter().all(|(_, reason)| !reason.is_empty()),
        "{said:?}"
    );
    assert!(said.iter().any(|(is, _)| *is == engine()), "{said:?}");
}

/// A name that is no engine: told once, and the default is used.
#[test]
fn wrong_engine_names() {
    if !need::bpf("wrong_engine_names") {
        return;
    }
    let lab = lab();
    let ways = ways(&lab);
    for name in ["Gum", "frida", "detour ", "\u{fffd}", "0"] {
        let words = format!("open libcuda.so.1 {WORK}");
        let seen = Case::new(&lab, &ways, &words)
            .with("PARCAGPU_HOOK_ENGINE", name)
            .check();
        let (code, component, message) = seen.launches(LAUNCHES).one_error("PARCAGPU_HOOK_ENGINE");
        assert_eq!(
            (code, component.as_str()),
            (0, "configuration"),
            "{message}"
        );
        assert_eq!(seen.events.errors().len(), 1, "{name}");
    }
}
