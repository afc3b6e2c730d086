//! What a machine may lack. A test without its need is skipped aloud, or fails when
//! `PARCAGPU_REQUIRE` names the need.

use std::io::Write;

/// `BPF_PROG_GET_NEXT_ID`: refused to those who may not load programs, harmless to all.
const GET_NEXT_ID: libc::c_int = 11;

/// Root with BPF and BTF; otherwise the test is skipped.
pub fn bpf(test: &str) -> bool {
    match bpf_missing() {
        None => true,
        Some(why) => {
            skip(test, "bpf", &why);
            false
        }
    }
}

/// Whether [`bpf`] would say yes, without a word.
pub fn may_bpf() -> bool {
    bpf_missing().is_none()
}

/// A program that is found in `PATH`.
pub fn program(test: &str, name: &str) -> bool {
    let found = std::env::var_os("PATH")
        .is_some_and(|path| std::env::split_paths(&path).any(|dir| dir.join(name).is_file()));
    if !found {
        skip(test, name, &format!("{name} is not installed"));
    }
    found
}

fn bpf_missing() -> Option<String> {
    // SAFETY: no preconditions.
    if unsafe { libc::geteuid() } != 0 {
        return Some("not root".to_owned());
    }
    if !std::path::Path::new("/sys/kernel/btf/vmlinux").exists() {
        return Some("the kernel has no BTF".to_owned());
    }
    let mut attributes = [0u8; 128];
    // SAFETY: the attributes are readable and writable with the size given.
    let result = unsafe {
        libc::syscall(
            libc::SYS_bpf,
            GET_NEXT_ID,
            attributes.as_mut_ptr(),
            attributes.len(),
        )
    };
    let error = std::io::Error::last_os_error();
    match (result, error.raw_os_error()) {
        (-1, Some(libc::EPERM)) => Some("no right to load BPF programs".to_owned()),
        (-1, Some(libc::ENOSYS)) => Some("the kernel has no BPF".to_owned()),
        _ => None,
    }
}

/// Tells that a test did not run, and why.
pub fn skip(test: &str, need: &str, reason: &str) {
    let required = std::env::var("PARCAGPU_REQUIRE").unwrap_or_default();
    assert!(
        !required.split(',').any(|r| r.trim() == need),
        "{test} needs {need}, which PARCAGPU_REQUIRE demands: {reason}"
    );
    // Past the capture of the test harness, which shows output of failed tests only.
    // In one write each, as tests run side by side.
    let _ = std::io::stderr().write_all(format!("SKIPPED {test}: {reason}\n").as_bytes());
    if let Some(path) = std::env::var_os("PARCAGPU_SKIP_LOG") {
        std::fs::OpenOptions::new()
            .append(true)
            .create(true)
            .open(path)
            .and_then(|mut file| file.write_all(format!("{test}: {reason}\n").as_bytes()))
            .expect("the skip log can be written");
    }
}
