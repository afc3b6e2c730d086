//! Says what the host or our rights lack before the kernel says EPERM.

use std::fs;
use std::path::Path;

use anyhow::Result;

use crate::refusal::refuse;

const CAP_SYS_PTRACE: u32 = 19;
const CAP_SYS_ADMIN: u32 = 21;
const CAP_PERFMON: u32 = 38;
const CAP_BPF: u32 = 39;

/// Where the kernel shows its own types.
const BTF: &str = "/sys/kernel/btf/vmlinux";
/// All-process attach to a shared library needs BPF cookies.
const OLDEST_KERNEL: (u32, u32) = (5, 15);

/// Checks kernel, BTF and capabilities.
pub fn check() -> Result<()> {
    let release = fs::read_to_string("/proc/sys/kernel/osrelease").unwrap_or_default();
    let status = fs::read_to_string("/proc/self/status").unwrap_or_default();
    if let Some(problem) = problem(
        release.trim(),
        effective_capabilities(&status),
        Path::new(BTF).exists(),
    ) {
        return Err(refuse(problem));
    }
    Ok(())
}

fn problem(release: &str, capabilities: u64, btf: bool) -> Option<String> {
    if let Some(version) = version(release)
        && version < OLDEST_KERNEL
    {
        return Some(format!(
            "kernel {release} is too old: {}.{} or newer is needed",
            OLDEST_KERNEL.0, OLDEST_KERNEL.1
        ));
    }
    let has = |cap: u32| capabilities >> cap & 1 == 1;
    if !has(CAP_SYS_ADMIN) {
        let missing: Vec<&str> = [
            (CAP_BPF, "CAP_BPF"),
            (CAP_PERFMON, "CAP_PERFMON"),
            (CAP_SYS_PTRACE, "CAP_SYS_PTRACE (to read other processes)"),
        ]
        .iter()
        .filter(|(cap, _)| !has(*cap))
        .map(|(_, name)| *name)
        .collect();
        if !missing.is_empty() {
            return Some(format!(
                "missing rights: {}; run as root (in a container: docker run --privileged --pid=host)",
                missing.join(", ")
            ));
        }
    }
    if !btf {
        return Some(format!(
            "{BTF} is not there: the kernel was built without BTF (CONFIG_DEBUG_INFO_BTF), or /sys is not mounted"
        ));
    }
    None
}

fn version(release: &str) -> Option<(u32, u32)> {
    let mut numbers = release.split(|c: char| !c.is_ascii_digit());
    Some((numbers.next()?.parse().ok()?, numbers.next()?.parse().ok()?))
}

fn effective_capabilities(status: &str) -> u64 {
    status
        .lines()
        .find_map(|l| l.strip_prefix("CapEff:"))
        .and_then(|v| u64::from_str_radix(v.trim(), 16).ok())
        .unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn problems_name_what_is_missing() {
        let admin = 1u64 << CAP_SYS_ADMIN;
        assert_eq!(problem("6.1.0-13-amd64", admin, true), None);
        assert_eq!(problem("5.15.0", admin, true), None);
        assert!(problem("5.14.21", admin, true).unwrap().contains("too old"));
        assert!(problem("6.1.0", admin, false).unwrap().contains("BTF"));
        let some = problem("6.1.0", 1 << CAP_BPF | 1 << CAP_SYS_PTRACE, true).unwrap();
        assert!(some.contains("CAP_PERFMON") && !some.contains("CAP_BPF"));
        let split = 1u64 << CAP_BPF | 1 << CAP_PERFMON | 1 << CAP_SYS_PTRACE;
        assert_eq!(problem("6.1.0", split, true), None);
    }

    #[test]
    fn capabilities_line() {
        assert_eq!(
            effective_capabilities("Name:\tx\nCapEff:\t0000000000200000\n"),
            1 << 21
        );
        assert_eq!(effective_capabilities(""), 0);
    }
}
