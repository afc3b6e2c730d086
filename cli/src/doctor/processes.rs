//! Processes that have the library or should have it, and how they are.

use std::fs;
use std::os::unix::fs::MetadataExt;
use std::sync::atomic::Ordering::Relaxed;

use parcagpu_abi::status::{State, Status};

use super::{Finding, fail, ok, warn};
use crate::block;
use crate::discover::{self, Found};
use crate::preflight;
use crate::preload::{self, Reason};
use crate::text::plural;

/// Processes listed one by one; a host may have thousands.
const SHOWN: usize = 20;

pub fn findings(found: &[Found], refused: usize) -> Vec<Finding> {
    let mut findings = Vec::new();
    let who = plural(refused as u64, "process");
    if refused > 0 && preflight::Capability::SysPtrace.is_in(preflight::held()) {
        let text = format!("{who} could not be looked into: protected by the system");
        findings.push(ok("processes", text));
    } else if refused > 0 {
        findings.push(warn(
            "processes",
            format!("{who} of other users could not be looked into"),
            "CAP_SYS_PTRACE is needed: run as root",
        ));
    }
    let mut all: Vec<Finding> = found.iter().filter_map(with_library).collect();
    let mut plain = Vec::new();
    for pid in discover::pids() {
        if found.iter().any(|f| f.pid == pid) {
            continue;
        }
        match without_library(pid) {
            Some(finding) => all.push(finding),
            None if uses_cuda(pid) => plain.push(pid),
            None => {}
        }
    }
    if all.is_empty() && plain.is_empty() {
        findings.push(ok("processes", "none has the library now"));
    }
    let more = all.len().saturating_sub(SHOWN);
    all.truncate(SHOWN);
    findings.extend(all);
    if more > 0 {
        findings.push(ok(
            "processes",
            format!("... and {more} more with the library"),
        ));
    }
    if !plain.is_empty() {
        findings.push(ok(
            "processes",
            format!(
                "{} with CUDA and without the library: {}; start them with LD_PRELOAD or `parcagpu run` to see them",
                plural(plain.len() as u64, "process"),
                list(&plain)
            ),
        ));
    }
    findings
}

fn list(pids: &[u32]) -> String {
    let shown: Vec<String> = pids.iter().take(SHOWN).map(u32::to_string).collect();
    let more = if pids.len() > SHOWN { ", ..." } else { "" };
    shown.join(", ") + more
}

fn head(pid: u32) -> String {
    format!("PID {pid} ({})", discover::comm(pid))
}

/// `None`: it ended meanwhile.
fn with_library(found: &Found) -> Option<Finding> {
    let head = head(found.pid);
    let place = if in_other_mount_namespace(found.pid) {
        ", in a mount namespace of its own"
    } else {
        ""
    };
    let finding = match block::read(found) {
        Ok(Some(status)) => judge(&head, place, &status, found.deleted),
        Ok(None) => warn(
            "process",
            format!("{head}: it has the probes and no status block, so it cannot say how it is"),
            "if its library is an old one of ours, start it again with this version",
        ),
        Err(e) => fail(
            "process",
            format!("{head}: {e:#}"),
            "run as root, or use the command that came with that library",
        ),
    };
    discover::is_alive(found.pid).then_some(finding)
}

fn judge(head: &str, place: &str, status: &Status, deleted: bool) -> Finding {
    let state = State::from_u32(status.state.load(Relaxed));
    let name = state.map_or("unknown state", State::name);
    let reason = status.reason.load();
    let because = if reason.is_empty() {
        String::new()
    } else {
        format!(" ({reason})")
    };
    let text = format!("{head}: {name}{because}{place}");
    let last = status.last_error.load();
    // Nothing that follows means anything where the state does not.
    if !last.is_empty() && state.is_some() {
        return warn(
            "process",
            format!("{text}; last error: {last}"),
            error_cure(&last),
        );
    }
    match state {
        Some(State::Yielded) => warn(
            "process",
            format!("{text}; CUPTI is held by {}", status.cupti_holder.load()),
            "nothing is reported until that tool ends (PARCAGPU_YIELD=never takes CUPTI from it)",
        ),
        Some(State::Stopped) => warn("process", text, "start the program again"),
        None => warn(
            "process",
            text,
            "use the command that came with that library",
        ),
        Some(_) if deleted => warn(
            "process",
            format!("{text}; its library was deleted or replaced on disk"),
            "nothing to do for what is here; a new library comes with the program's next start",
        ),
        Some(_) => ok("process", text),
    }
}

fn error_cure(error: &str) -> &'static str {
    if error.contains("libcupti") && error.contains("PARCAGPU_CUPTI_PATH") {
        "see libcupti; then start the program again"
    } else if error.contains("PARCAGPU_") {
        "correct that variable and start the program again"
    } else {
        "see parcagpu status --pid for the rest; PARCAGPU_DEBUG=1 in the program's environment logs more"
    }
}

/// A process that was told to load the library and did not.
fn without_library(pid: u32) -> Option<Finding> {
    let environment = fs::read(format!("/proc/{pid}/environ")).ok()?;
    let preload = environment
        .split(|b| *b == 0)
        .find_map(|entry| entry.strip_prefix(b"LD_PRELOAD="))?;
    let preload = String::from_utf8_lossy(preload).into_owned();
    let file = preload
        .split([' ', ':'])
        .find(|f| f.rsplit('/').next().is_some_and(|n| n.contains("parcagpu")))?
        .to_owned();
    let Reason { why, cure } = preload::why_not(pid, &file)?;
    Some(warn(
        "process",
        format!(
            "{}: LD_PRELOAD names {file}, but it is not loaded: {why}",
            head(pid)
        ),
        cure,
    ))
}

fn uses_cuda(pid: u32) -> bool {
    let Ok(maps) = fs::read(format!("/proc/{pid}/maps")) else {
        return false;
    };
    maps.split(|b| *b == b'\n')
        .any(|line| line.windows(12).any(|w| w == b"/libcuda.so."))
}

fn in_other_mount_namespace(pid: u32) -> bool {
    let inode = |path: &str| fs::metadata(path).map(|m| m.ino()).ok();
    let theirs = inode(&format!("/proc/{pid}/ns/mnt"));
    theirs.is_some() && theirs != inode("/proc/self/ns/mnt")
}

#[cfg(test)]
mod tests {
    use super::super::Level;
    use super::*;

    #[test]
    fn states_are_judged() {
        let status = Status::new();
        let level = |status: &Status| judge("PID 1 (x)", "", status, false).level;
        assert_eq!(level(&status), Level::Ok);
        status.state.store(State::Stopped as u32, Relaxed);
        status.set_text(&status.reason, "a forked child");
        let stopped = judge("PID 1 (x)", "", &status, false);
        assert_eq!(stopped.level, Level::Warn);
        assert!(stopped.text.contains("stopped (a forked child)"));
        status.state.store(State::Yielded as u32, Relaxed);
        status.set_text(&status.cupti_holder, "libtool.so");
        assert!(
            judge("", "", &status, false)
                .text
                .ends_with("held by libtool.so")
        );
        status.state.store(99, Relaxed);
        assert_eq!(level(&status), Level::Warn);
        status.state.store(State::Dormant as u32, Relaxed);
        assert_eq!(judge("", "", &status, true).level, Level::Warn);
        status.set_text(&status.last_error, "config: PARCAGPU_RATE=1 is not known");
        let told = judge("", "", &status, false);
        assert!(told.cure.contains("that variable"), "{told:?}");
    }
}
