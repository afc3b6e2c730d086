//! Who is attached to a library's probes.
//!
//! The kernel keeps no list that names owners. What holds a uprobe is an open descriptor, so every process's
//! descriptors are looked at: a BPF link says in `fdinfo` which path it is attached to (Linux 6.16 and
//! later), a perf event tells it through `BPF_TASK_FD_QUERY` (CAP_SYS_ADMIN). The file is told by its identity, and
//! where the path does not lead to it any more (deleted, replaced, in a mount namespace of its own) by the path
//! and the process that the link is limited to. What neither tells, such as links that are pinned, or held by
//! processes out of sight, stays unknown and is counted as such, with the reason.

use std::collections::HashMap;
use std::ffi::CStr;
use std::fs::{self, File};
use std::io::ErrorKind;
use std::path::PathBuf;

use libbpf_rs::libbpf_sys;

use crate::discover::{self, FileId, Found};
use crate::preflight::{self, Capability};
use crate::text::plural;

/// One holder of attachments.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Consumer {
    /// Its number.
    pub pid: u32,
    /// Its name.
    pub comm: String,
    /// Probes it is attached to.
    pub attachments: u64,
}

struct Attachment {
    owner: u32,
    /// As the owner's kernel writes it, without what it adds where the file is gone.
    path: String,
    /// `None`: the path does not lead to it.
    file: Option<FileId>,
    /// The one process it is limited to.
    target: Option<u32>,
    probes: u64,
}

impl Attachment {
    /// Whether it is to this library, as far as the file goes.
    fn is_to(&self, found: &Found) -> bool {
        self.file == Some(found.library.id)
    }

    /// Whether it may be by its path, which leads the owner somewhere else or nowhere.
    fn may_be_to(&self, found: &Found) -> bool {
        let limited = self.target == Some(found.pid);
        self.path == found.library.path && (limited || self.file.is_none())
    }

    fn meets(&self, pid: u32) -> bool {
        self.target.is_none_or(|target| target == pid)
    }
}

/// All attachments to files that could be seen.
#[derive(Default)]
pub struct Consumers {
    attachments: Vec<Attachment>,
    /// Processes whose descriptors we may not see.
    refused: usize,
}

/// The first Linux whose links tell what they are attached to.
const LINKS_TELL: (u32, u32) = (6, 16);

impl Consumers {
    /// Looks at the descriptors of all processes.
    pub fn look() -> Self {
        let mut all = Self::default();
        let mut pids = discover::pids();
        pids.push(std::process::id());
        let mut files = HashMap::new();
        for pid in pids {
            let descriptors = match fs::read_dir(format!("/proc/{pid}/fd")) {
                Ok(descriptors) => descriptors,
                Err(e) => {
                    all.refused += usize::from(e.kind() == ErrorKind::PermissionDenied);
                    continue;
                }
            };
            for entry in descriptors.flatten() {
                let Ok(target) = fs::read_link(entry.path()) else {
                    continue;
                };
                let Some(fd) = entry.file_name().to_str().and_then(|n| n.parse().ok()) else {
                    continue;
                };
                let held = match target.to_string_lossy().as_ref() {
                    "anon_inode:bpf_link" | "anon_inode:bpf-link" => link(pid, fd),
                    "anon_inode:[perf_event]" => perf_event(pid, fd),
                    _ => None,
                };
                let Some(held) = held else { continue };
                let file = files
                    .entry((pid, held.path.clone()))
                    .or_insert_with(|| identity(pid, &held.path));
                let path = held.path.strip_suffix(DELETED);
                all.attachments.push(Attachment {
                    owner: pid,
                    file: *file,
                    path: path.unwrap_or(&held.path).to_owned(),
                    target: held.pid,
                    probes: held.probes,
                });
            }
        }
        all
    }

    /// Those attached to this process's library, by number.
    pub fn of(&self, found: &Found) -> Vec<Consumer> {
        let mut consumers: Vec<Consumer> = Vec::new();
        let meant = self
            .attachments
            .iter()
            .filter(|a| a.meets(found.pid) && (a.is_to(found) || a.may_be_to(found)));
        for attachment in meant {
            match consumers.iter_mut().find(|c| c.pid == attachment.owner) {
                Some(consumer) => consumer.attachments += attachment.probes,
                None => consumers.push(Consumer {
                    pid: attachment.owner,
                    comm: discover::comm(attachment.owner),
                    attachments: attachment.probes,
                }),
            }
        }
        consumers.sort_by_key(|c| c.pid);
        consumers
    }

    /// The process that this one was forked from, and that somebody attached to its library watches alone. A child
    /// has its parent's semaphores from then on, raised, and nothing comes from it.
    pub fn inherited_from(&self, found: &Found) -> Option<u32> {
        let mut ancestor = discover::parent(found.pid)?;
        for _ in 0..ANCESTORS {
            let watched = |a: &Attachment| {
                a.target == Some(ancestor) && (a.is_to(found) || a.path == found.library.path)
            };
            if self.attachments.iter().any(watched) {
                return Some(ancestor);
            }
            ancestor = discover::parent(ancestor)?;
        }
        None
    }

    /// Why nobody in sight has attachments that there are, in words.
    pub fn why_unknown(&self) -> String {
        let release = fs::read_to_string("/proc/sys/kernel/osrelease").unwrap_or_default();
        let inside = preflight::own_pid_namespace() != Some(preflight::INITIAL_PID_NS);
        why_unknown(
            release.trim(),
            Capability::SysAdmin.is_in(preflight::held()),
            self.refused,
            inside,
        )
    }
}

fn why_unknown(release: &str, admin: bool, refused: usize, inside: bool) -> String {
    if refused > 0 {
        return format!(
            "the descriptors of {} cannot be read (CAP_SYS_PTRACE is needed)",
            plural(refused as u64, "process")
        );
    }
    if preflight::version(release).is_some_and(|version| version < LINKS_TELL) {
        let (major, minor) = LINKS_TELL;
        return format!(
            "Linux {release} does not tell what a BPF link is attached to, {major}.{minor} and later do"
        );
    }
    if !admin {
        return "no process has a BPF link to it, and perf events tell CAP_SYS_ADMIN only"
            .to_owned();
    }
    if inside {
        return "no process of this PID namespace has them: one outside, or a pinned BPF link"
            .to_owned();
    }
    "no process has a descriptor for them: a pinned BPF link".to_owned()
}

/// How far up the parents are looked at.
const ANCESTORS: usize = 16;
/// What the kernel adds to the path of a file that is gone.
const DELETED: &str = " (deleted)";

/// What a descriptor is attached to.
#[derive(Debug, PartialEq, Eq)]
struct Held {
    path: String,
    pid: Option<u32>,
    probes: u64,
}

fn link(pid: u32, fd: i32) -> Option<Held> {
    let text = fs::read_to_string(format!("/proc/{pid}/fdinfo/{fd}")).ok()?;
    parse_link(&text)
}

fn parse_link(text: &str) -> Option<Held> {
    let field = |name: &str| {
        text.lines()
            .find_map(|l| l.strip_prefix(name)?.strip_prefix(':'))
            .map(str::trim)
    };
    (field("link_type")? == "uprobe_multi").then_some(())?;
    Some(Held {
        path: field("path")?.to_owned(),
        pid: field("pid")?.parse().ok().filter(|pid| *pid != 0),
        probes: field("uprobe_cnt")?.parse().ok()?,
    })
}

fn perf_event(pid: u32, fd: i32) -> Option<Held> {
    let mut path = [0u8; 4096];
    let mut length = path.len() as u32;
    let (mut program, mut kind, mut offset, mut address) = (0, 0, 0, 0);
    // SAFETY: writes at most `length` bytes of the buffer and one number each; all live through the call.
    let rc = unsafe {
        libbpf_sys::bpf_task_fd_query(
            pid.cast_signed(),
            fd,
            0,
            path.as_mut_ptr().cast(),
            &raw mut length,
            &raw mut program,
            &raw mut kind,
            &raw mut offset,
            &raw mut address,
        )
    };
    (rc == 0 && kind == libbpf_sys::BPF_FD_TYPE_UPROBE).then_some(())?;
    let path = CStr::from_bytes_until_nul(&path).ok()?;
    Some(Held {
        path: path.to_string_lossy().into_owned(),
        pid: None,
        probes: 1,
    })
}

/// The file that a consumer means by a path; `None` where it is not there any more.
fn identity(owner: u32, path: &str) -> Option<FileId> {
    let theirs = match path.strip_prefix("/proc/self/") {
        Some(rest) => PathBuf::from(format!("/proc/{owner}/{rest}")),
        None => PathBuf::from(format!("/proc/{owner}/root{path}")),
    };
    let file = File::open(theirs).or_else(|_| File::open(path)).ok()?;
    FileId::of(&file).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn links_of_uprobes_are_read() {
        let text = "pos:\t0\nflags:\t02000000\nlink_type:\tuprobe_multi\nlink_id:\t45200\nprog_id:\t1\n\
            uprobe_cnt:\t1\npid:\t0\npath:\t/opt/a b/lib.so\ncookie\t offset\t ref_ctr_offset\n0\t 0x11d5\t 0x42f8\n";
        let held = |text: &str| parse_link(text);
        assert_eq!(
            held(text),
            Some(Held {
                path: "/opt/a b/lib.so".to_owned(),
                pid: None,
                probes: 1
            })
        );
        assert_eq!(
            held(&text.replace("pid:\t0\npath", "pid:\t77\npath"))
                .unwrap()
                .pid,
            Some(77)
        );
        assert_eq!(held(&text.replace("uprobe_multi", "kprobe_multi")), None);
        assert_eq!(held(&text.replace("path:", "x:")), None);
    }
}
