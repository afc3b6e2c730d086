//! Says what the host or our rights lack before the kernel says EPERM.

use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::Path;

use anyhow::Result;

use crate::refusal::refuse;

/// The capabilities that matter to us.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Capability {
    /// To look into processes of other users, or with more rights than ours.
    SysPtrace = 19,
    /// Includes `Bpf`, `Perfmon` and `CheckpointRestore`.
    SysAdmin = 21,
    /// To attach to uprobes and let BPF read memory.
    Perfmon = 38,
    /// To load BPF programs.
    Bpf = 39,
    /// To open a mapped file that is not at its path any more.
    CheckpointRestore = 40,
}

impl Capability {
    /// Whether it is in a set as /proc/PID/status prints them.
    pub fn is_in(self, set: u64) -> bool {
        set >> self as u32 & 1 == 1
    }
}

/// Where the kernel shows its own types.
pub const BTF: &str = "/sys/kernel/btf/vmlinux";
/// Inode number of the initial PID namespace (PROC_PID_INIT_INO).
pub const INITIAL_PID_NS: u64 = 0xefff_fffc;
/// All-process attach to a shared library needs BPF cookies.
const OLDEST_KERNEL: (u32, u32) = (5, 15);

/// Checks kernel, BTF and the capabilities without which nothing can be attached to.
pub fn check() -> Result<()> {
    let release = fs::read_to_string("/proc/sys/kernel/osrelease").unwrap_or_default();
    match problem(release.trim(), held(), Path::new(BTF).exists()) {
        Some(problem) => Err(refuse(problem)),
        None => Ok(()),
    }
}

/// Our effective capabilities.
pub fn held() -> u64 {
    effective_capabilities(&fs::read_to_string("/proc/self/status").unwrap_or_default())
}

/// Why a process cannot be looked into, and what would help.
pub fn closed(error: &std::io::Error) -> String {
    if error.kind() == std::io::ErrorKind::PermissionDenied && !Capability::SysPtrace.is_in(held())
    {
        "it is another user's or has more rights: CAP_SYS_PTRACE is needed (run as root)".to_owned()
    } else if error.kind() == std::io::ErrorKind::PermissionDenied {
        "the system protects it, also from CAP_SYS_PTRACE (a security module)".to_owned()
    } else {
        error.to_string()
    }
}

fn problem(release: &str, capabilities: u64, btf: bool) -> Option<String> {
    if let Some(problem) = kernel_problem(release) {
        return Some(problem);
    }
    let missing = missing_for_bpf(capabilities);
    if !missing.is_empty() {
        return Some(format!(
            "missing rights: {}; run as root, or give them: setcap cap_bpf,cap_perfmon,cap_sys_ptrace+ep on this program \
             (in a container: docker run --cap-add BPF --cap-add PERFMON --cap-add SYS_PTRACE --pid=host)",
            missing.join(", ")
        ));
    }
    if !btf {
        return Some(format!(
            "{BTF} is not there: the kernel was built without BTF (CONFIG_DEBUG_INFO_BTF), or /sys is not mounted"
        ));
    }
    None
}

/// What is wrong with a kernel of this release; one that cannot be read passes.
pub fn kernel_problem(release: &str) -> Option<String> {
    version(release)
        .filter(|version| *version < OLDEST_KERNEL)
        .map(|_| {
            format!(
                "kernel {release} is too old: {}.{} or newer is needed",
                OLDEST_KERNEL.0, OLDEST_KERNEL.1
            )
        })
}

/// Names of the capabilities that every view needs and the set lacks.
pub fn missing_for_bpf(held: u64) -> Vec<&'static str> {
    if Capability::SysAdmin.is_in(held) {
        return Vec::new();
    }
    [
        (Capability::Bpf, "CAP_BPF"),
        (Capability::Perfmon, "CAP_PERFMON"),
    ]
    .iter()
    .filter(|(capability, _)| !capability.is_in(held))
    .map(|(_, name)| *name)
    .collect()
}

/// Major and minor number of a release.
pub fn version(release: &str) -> Option<(u32, u32)> {
    let mut numbers = release.split(|c: char| !c.is_ascii_digit());
    Some((numbers.next()?.parse().ok()?, numbers.next()?.parse().ok()?))
}

/// The effective set in the text of /proc/PID/status.
pub fn effective_capabilities(status: &str) -> u64 {
    status
        .lines()
        .find_map(|l| l.strip_prefix("CapEff:"))
        .and_then(|v| u64::from_str_radix(v.trim(), 16).ok())
        .unwrap_or(0)
}

/// Inode number of our PID namespace.
pub fn own_pid_namespace() -> Option<u64> {
    Some(fs::metadata("/proc/self/ns/pid").ok()?.ino())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn problems_name_what_is_missing() {
        let set = |all: &[Capability]| all.iter().fold(0u64, |set, c| set | 1 << *c as u32);
        let admin = set(&[Capability::SysAdmin]);
        assert_eq!(problem("6.1.0-13-amd64", admin, true), None);
        assert_eq!(problem("5.15.0", admin, true), None);
        assert!(problem("5.14.21", admin, true).unwrap().contains("too old"));
        assert!(problem("6.1.0", admin, false).unwrap().contains("BTF"));
        let some = set(&[Capability::Bpf, Capability::SysPtrace]);
        let some = problem("6.1.0", some, true).unwrap();
        assert!(some.starts_with("missing rights: CAP_PERFMON; "), "{some}");
        // Other processes are another matter: not every view looks into them.
        let split = set(&[Capability::Bpf, Capability::Perfmon]);
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
