//! Kernel, rights and namespaces.

use std::fs;
use std::path::Path;

use super::{Finding, fail, ok, read, warn};
use crate::preflight::{self, Capability};

/// How the capabilities are given.
const GRANT: &str = "run as root, or once: setcap cap_bpf,cap_perfmon,cap_sys_ptrace+ep $(command -v parcagpu)\n\
    in a container: docker run --cap-add BPF --cap-add PERFMON --cap-add SYS_PTRACE --pid=host";

/// Since this kernel BPF memory counts as the cgroup's, not as locked memory.
const MEMLOCK_UNTIL: (u32, u32) = (5, 11);

pub fn findings(root: &Path) -> Vec<Finding> {
    let release = read(root, "proc/sys/kernel/osrelease").unwrap_or_default();
    let status = read(root, "proc/self/status").unwrap_or_default();
    let mut findings = vec![kernel(&release), btf(root)];
    findings.extend(capabilities(&status));
    findings.extend(seccomp(&status));
    findings.extend([lockdown(root), sysctls(root), uprobes(root)]);
    findings.extend([
        memlock(root, &release),
        pid_namespace(root),
        proc_mount(root),
    ]);
    findings
}

fn kernel(release: &str) -> Finding {
    match preflight::kernel_problem(release) {
        None => ok("kernel", release),
        Some(problem) => fail("kernel", problem, "boot a newer kernel"),
    }
}

fn btf(root: &Path) -> Finding {
    if root.join(preflight::BTF.trim_start_matches('/')).exists() {
        return ok("btf", preflight::BTF);
    }
    fail(
        "btf",
        format!("{} is not there", preflight::BTF),
        "mount -t sysfs sysfs /sys, or boot a kernel with CONFIG_DEBUG_INFO_BTF=y",
    )
}

fn capabilities(status: &str) -> Vec<Finding> {
    let held = preflight::effective_capabilities(status);
    let missing = preflight::missing_for_bpf(held);
    if !missing.is_empty() {
        let text = format!("missing: {}", missing.join(", "));
        return vec![fail("capabilities", text, GRANT)];
    }
    let mut lacking = Vec::new();
    if !Capability::SysPtrace.is_in(held) {
        lacking.push(warn(
            "capabilities",
            "no CAP_SYS_PTRACE: only processes of your own user can be watched (and what `run` starts)",
            GRANT,
        ));
    }
    if !Capability::CheckpointRestore.is_in(held) && !Capability::SysAdmin.is_in(held) {
        lacking.push(warn(
            "capabilities",
            "no CAP_CHECKPOINT_RESTORE: processes whose library was replaced on disk are not found",
            "add CAP_CHECKPOINT_RESTORE, or start those programs again",
        ));
    }
    if lacking.is_empty() {
        lacking.push(ok("capabilities", "all that are needed"));
    }
    lacking
}

fn seccomp(status: &str) -> Option<Finding> {
    let mode = status.lines().find_map(|l| l.strip_prefix("Seccomp:"))?;
    match mode.trim() {
        "0" => None,
        _ => Some(ok(
            "seccomp",
            "a filter is in force (a container's); whether it lets bpf() through shows below",
        )),
    }
}

fn lockdown(root: &Path) -> Finding {
    let text = read(root, "sys/kernel/security/lockdown").unwrap_or_default();
    if text.contains("[confidentiality]") {
        return fail(
            "lockdown",
            "mode confidentiality: BPF must not read memory",
            "boot with lockdown=integrity or without lockdown=",
        );
    }
    let mode = if text.contains("[integrity]") {
        "integrity, which does no harm"
    } else {
        "off"
    };
    ok("lockdown", mode)
}

/// None of them stands in the way of the capabilities; people look for them all the same.
fn sysctls(root: &Path) -> Finding {
    let value = |name: &str| {
        read(root, &format!("proc/sys/kernel/{name}")).unwrap_or_else(|| "not there".to_owned())
    };
    let text = format!(
        "unprivileged_bpf_disabled {}, perf_event_paranoid {}, kptr_restrict {}: of no effect beside the capabilities",
        value("unprivileged_bpf_disabled"),
        value("perf_event_paranoid"),
        value("kptr_restrict")
    );
    ok("sysctls", text)
}

fn uprobes(root: &Path) -> Finding {
    let cure = "boot a kernel with CONFIG_UPROBE_EVENTS=y (and mount /sys)";
    let folder = root.join("sys/bus/event_source/devices/uprobe");
    if !folder.exists() {
        return fail(
            "uprobes",
            "the kernel has no uprobes, or /sys is not mounted",
            cure,
        );
    }
    if !folder.join("format/ref_ctr_offset").exists() {
        return fail("uprobes", "the kernel's uprobes raise no semaphores", cure);
    }
    ok("uprobes", "with semaphores")
}

fn memlock(root: &Path, release: &str) -> Finding {
    let limits = read(root, "proc/self/limits").unwrap_or_default();
    let line = limits
        .lines()
        .find_map(|l| l.strip_prefix("Max locked memory"));
    let soft = line
        .and_then(|l| l.split_whitespace().next())
        .unwrap_or("not known");
    match preflight::version(release) {
        Some(version) if version < MEMLOCK_UNTIL && soft != "unlimited" => warn(
            "memlock",
            format!("{soft} bytes; BPF memory counts as locked on this kernel"),
            "ulimit -l unlimited",
        ),
        _ => ok(
            "memlock",
            format!("{soft} bytes; BPF memory does not count on this kernel"),
        ),
    }
}

fn pid_namespace(root: &Path) -> Finding {
    let inside = ["run/.containerenv", ".dockerenv"]
        .iter()
        .any(|f| root.join(f).exists());
    match preflight::own_pid_namespace() {
        Some(inode) if inode != preflight::INITIAL_PID_NS => warn(
            "pid_namespace",
            "not the host's: only processes of this container can be seen",
            "docker run --pid=host, or hostPID: true",
        ),
        Some(_) if inside => ok("pid_namespace", "the host's, in a container"),
        Some(_) => ok("pid_namespace", "the host's"),
        None => fail(
            "pid_namespace",
            "/proc/self/ns/pid cannot be read",
            "mount -t proc proc /proc",
        ),
    }
}

fn proc_mount(root: &Path) -> Finding {
    let mounts = fs::read_to_string(root.join("proc/self/mounts")).unwrap_or_default();
    let options = mounts.lines().rev().find_map(|line| {
        let mut fields = line.split(' ');
        let (_, point, kind) = (fields.next()?, fields.next()?, fields.next()?);
        (point == "/proc" && kind == "proc").then(|| fields.next().unwrap_or("").to_owned())
    });
    let hidden = options.as_deref().unwrap_or("").split(',').any(|option| {
        option
            .strip_prefix("hidepid=")
            .is_some_and(|v| !matches!(v, "0" | "off"))
    });
    if hidden {
        return warn(
            "proc",
            "/proc hides processes of other users (hidepid)",
            "mount -o remount,hidepid=0 /proc, or run as root",
        );
    }
    ok("proc", "shows all processes of its namespace")
}

#[cfg(test)]
mod tests {
    use super::super::Level;
    use super::*;

    fn level(findings: &[Finding], check: &str) -> Level {
        findings.iter().find(|f| f.check == check).unwrap().level
    }

    /// A host of files.
    fn host(files: &[(&str, &str)]) -> tempfile::TempDir {
        let root = tempfile::tempdir().unwrap();
        for (path, text) in files {
            let path = root.path().join(path);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, text).unwrap();
        }
        root
    }

    const STATUS: (&str, &str) = (
        "proc/self/status",
        "CapEff:\t000001c000280000\nSeccomp:\t0\n",
    );

    #[test]
    fn a_good_host() {
        let root = host(&[
            ("proc/sys/kernel/osrelease", "6.1.0-13-amd64\n"),
            STATUS,
            ("sys/kernel/btf/vmlinux", ""),
            (
                "sys/kernel/security/lockdown",
                "none [integrity] confidentiality\n",
            ),
            (
                "sys/bus/event_source/devices/uprobe/format/ref_ctr_offset",
                "config:32-63\n",
            ),
            (
                "proc/self/limits",
                "Max locked memory         8388608     8388608   bytes\n",
            ),
            ("proc/self/mounts", "proc /proc proc rw,nosuid 0 0\n"),
        ]);
        let findings = findings(root.path());
        for finding in findings.iter().filter(|f| f.check != "pid_namespace") {
            assert_eq!(finding.level, Level::Ok, "{finding:?}");
        }
    }

    #[test]
    fn a_bad_host() {
        let root = host(&[
            ("proc/sys/kernel/osrelease", "5.10.0-generic"),
            (
                "proc/self/status",
                "CapEff:\t0000000000080000\nSeccomp:\t2\n",
            ),
            (
                "sys/kernel/security/lockdown",
                "none integrity [confidentiality]",
            ),
            (
                "proc/self/limits",
                "Max locked memory  65536  65536  bytes\n",
            ),
            (
                "proc/self/mounts",
                "proc /proc proc rw,hidepid=invisible 0 0\n",
            ),
        ]);
        let findings = findings(root.path());
        for check in ["kernel", "btf", "capabilities", "lockdown", "uprobes"] {
            assert_eq!(level(&findings, check), Level::Fail, "{check}");
        }
        assert_eq!(level(&findings, "proc"), Level::Warn);
        assert_eq!(level(&findings, "seccomp"), Level::Ok);
        let rights = findings.iter().find(|f| f.check == "capabilities").unwrap();
        assert_eq!(rights.text, "missing: CAP_BPF, CAP_PERFMON");
        assert!(rights.cure.contains("setcap") && rights.cure.contains("--cap-add"));
        assert_eq!(memlock(root.path(), "5.10.1").level, Level::Warn);
    }

    #[test]
    fn rights_that_are_enough_for_some() {
        let some = capabilities("CapEff:\t000000c000000000\n");
        assert_eq!(some.len(), 2);
        assert!(some.iter().all(|f| f.level == Level::Warn));
        assert!(some[0].text.contains("your own user"));
    }
}
