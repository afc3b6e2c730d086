//! Which processes are meant: by number, by name, by cgroup, by container, or all.
//!
//! A process is meant when any of the given words fits it. Only /proc is read: `comm`, `exe` and `cgroup`
//! of a process, and our own `mountinfo`, which says where cgroups are mounted.

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;

use anyhow::Result;
use parcagpu_abi::probe::PROVIDER;

use crate::discover::{self, Found, Scanner};
use crate::options::Chosen;
use crate::preflight;
use crate::refusal::refuse;

/// The kernel keeps so many bytes of a name.
const COMM_MAX: usize = 15;
/// Runtimes give containers ids of so many hexadecimal digits.
const ID_DIGITS: usize = 64;

/// The processes that are meant.
#[derive(Clone, Debug, Default)]
pub struct Choice {
    pids: Vec<u32>,
    comms: Vec<String>,
    /// Paths as /proc/PID/cgroup has them, without a slash at the end.
    cgroups: Vec<String>,
    containers: Vec<String>,
}

impl Choice {
    /// What the options say. A prefix that several containers have is refused, and so are empty words, which
    /// scripts make of variables that are not set.
    pub fn of(options: &Chosen) -> Result<Self> {
        for (option, words) in [
            ("--comm", &options.comm),
            ("--cgroup", &options.cgroup),
            ("--container", &options.container),
        ] {
            if words.iter().any(String::is_empty) {
                return Err(refuse(format!("{option} is given an empty word")));
            }
        }
        let mounts = fs::read_to_string("/proc/self/mountinfo").unwrap_or_default();
        let choice = Self {
            pids: options.pid.clone(),
            comms: options.comm.clone(),
            cgroups: options
                .cgroup
                .iter()
                .map(|path| cgroup_path(path, &mounts))
                .collect(),
            containers: options.container.clone(),
        };
        choice.check_containers()?;
        Ok(choice)
    }

    fn check_containers(&self) -> Result<()> {
        for wanted in &self.containers {
            let ids: BTreeSet<String> = discover::pids()
                .into_iter()
                .flat_map(|pid| container_ids(&cgroups_of(pid), wanted))
                .collect();
            if ids.len() > 1 {
                let ids: Vec<String> = ids.into_iter().collect();
                return Err(refuse(format!(
                    "several containers have ids that begin with {wanted}: {}",
                    ids.join(", ")
                )));
            }
        }
        Ok(())
    }

    /// Nothing was chosen: all processes are meant.
    pub fn is_all(&self) -> bool {
        self.pids.is_empty() && self.is_closed()
    }

    /// No process that starts later can be meant (unless all are).
    pub fn is_closed(&self) -> bool {
        self.comms.is_empty() && self.cgroups.is_empty() && self.containers.is_empty()
    }

    /// Numbers that were given.
    pub fn given(&self) -> &[u32] {
        &self.pids
    }

    /// The processes of now that are meant, ours left out unless its number was given.
    pub fn present(&self) -> Vec<u32> {
        if self.is_all() {
            return discover::pids();
        }
        let mut present = self.pids.clone();
        if !self.is_closed() {
            present.extend(discover::pids().into_iter().filter(|pid| self.fits(*pid)));
            present.sort_unstable();
            present.dedup();
        }
        present
    }

    fn fits(&self, pid: u32) -> bool {
        if !self.comms.is_empty() {
            let comm = discover::comm(pid);
            // A script's name is in comm, a program's full name in exe.
            let exe = fs::read_link(format!("/proc/{pid}/exe")).ok();
            let file = exe.as_deref().and_then(Path::file_name);
            let file = file.map_or_else(String::new, |f| f.to_string_lossy().into_owned());
            let file = file.strip_suffix(" (deleted)").unwrap_or(&file);
            if self.comms.iter().any(|name| {
                name == file || !comm.is_empty() && cut(name).as_bytes() == comm.as_bytes()
            }) {
                return true;
            }
        }
        if self.cgroups.is_empty() && self.containers.is_empty() {
            return false;
        }
        let paths = cgroups_of(pid);
        paths
            .iter()
            .any(|p| self.cgroups.iter().any(|c| below(p, c)))
            || self
                .containers
                .iter()
                .any(|id| !container_ids(&paths, id).is_empty())
    }
}

/// The libraries of a process that was named by its number. Refused, with what is possible, where it has none.
pub fn libraries_of(scanner: &mut Scanner, pid: u32) -> Result<Vec<Found>> {
    if !Path::new(&format!("/proc/{pid}")).exists() {
        return Err(refuse(format!(
            "there is no process {pid}; parcagpu status lists those that have the library"
        )));
    }
    if let Some(owner) = owner_of_thread(pid) {
        return Err(refuse(format!(
            "{pid} is a thread of process {owner}: --pid {owner}"
        )));
    }
    let found = scanner.scan_process(pid).map_err(|e| {
        let why = preflight::closed(&e);
        refuse(format!("cannot look into process {pid}: {why}"))
    })?;
    if found.is_empty() {
        return Err(refuse(format!(
            "process {pid} ({}) does not map a library with probes of provider {PROVIDER}; it has to be started with it: \
             LD_PRELOAD=FILE, or parcagpu run",
            discover::comm(pid)
        )));
    }
    Ok(found)
}

/// The process of a thread that is not its first; threads have numbers of the same kind.
fn owner_of_thread(tid: u32) -> Option<u32> {
    let status = fs::read(format!("/proc/{tid}/status")).ok()?;
    let status = String::from_utf8_lossy(&status);
    let group = status.lines().find_map(|l| l.strip_prefix("Tgid:"))?;
    group.trim().parse().ok().filter(|owner| *owner != tid)
}

fn cut(name: &str) -> String {
    let end = name.len().min(COMM_MAX);
    String::from_utf8_lossy(&name.as_bytes()[..end]).into_owned()
}

fn below(path: &str, cgroup: &str) -> bool {
    path.strip_prefix(cgroup)
        .is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
}

/// Paths of a process in all hierarchies.
fn cgroups_of(pid: u32) -> Vec<String> {
    let text = fs::read(format!("/proc/{pid}/cgroup")).unwrap_or_default();
    parse_cgroups(&String::from_utf8_lossy(&text))
}

fn parse_cgroups(text: &str) -> Vec<String> {
    text.lines()
        .filter_map(|line| line.splitn(3, ':').nth(2))
        .map(str::to_owned)
        .collect()
}

/// Ids of the containers that have a cgroup among `paths` and are meant by `wanted`: a prefix of an id,
/// or the whole name where the runtime names containers otherwise.
fn container_ids(paths: &[String], wanted: &str) -> BTreeSet<String> {
    let mut ids = BTreeSet::new();
    for part in paths.iter().flat_map(|p| p.split('/')) {
        let name = part.strip_suffix(".scope").unwrap_or(part);
        // docker-ID, cri-containerd-ID, crio-ID, libpod-ID.
        let id = name.rsplit('-').next().unwrap_or(name);
        let is_id = id.len() == ID_DIGITS && id.bytes().all(|b| b.is_ascii_hexdigit());
        if is_id && id.starts_with(wanted) {
            ids.insert(id.to_owned());
        } else if name == wanted {
            ids.insert(name.to_owned());
        }
    }
    ids
}

/// A folder of a mounted cgroup file system as the kernel names its cgroup; other paths stay.
fn cgroup_path(given: &str, mountinfo: &str) -> String {
    let given = given.trim_end_matches('/');
    let mounts = mountinfo.lines().filter_map(|line| {
        let (left, right) = line.split_once(" - ")?;
        let mut fields = left.split(' ').skip(3);
        let (root, point) = (fields.next()?, fields.next()?);
        let kind = right.split(' ').next()?;
        (kind == "cgroup" || kind == "cgroup2").then_some((root, point))
    });
    let inside = mounts
        .filter(|(_, point)| below(given, point))
        .max_by_key(|(_, point)| point.len());
    match inside {
        Some((root, point)) => root.trim_end_matches('/').to_owned() + &given[point.len()..],
        None if given.is_empty() || given.starts_with('/') => given.to_owned(),
        None => format!("/{given}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ID: &str = "3f4e8a0b5c6d7e8f9a0b1c2d3e4f5a6b7c8d9e0f1a2b3c4d5e6f7a8b9c0d1e2f";

    fn ids(path: &str, wanted: &str) -> usize {
        container_ids(&[path.to_owned()], wanted).len()
    }

    #[test]
    fn container_ids_of_the_runtimes() {
        for path in [
            format!("/docker/{ID}"),
            format!("/system.slice/docker-{ID}.scope"),
            format!("/kubepods/besteffort/pod1234-5/{ID}"),
            format!("/kubepods.slice/kubepods-pod1.slice/cri-containerd-{ID}.scope"),
            format!("/machine.slice/libpod-{ID}.scope/container"),
            format!("/docker/{ID}/init"),
        ] {
            assert_eq!(ids(&path, "3f4e8a0b5c6d"), 1, "{path}");
            assert_eq!(ids(&path, ID), 1, "{path}");
            assert_eq!(ids(&path, "4e8a"), 0, "only from the beginning: {path}");
            assert_eq!(ids(&path, "docker-"), 0, "{path}");
        }
        assert_eq!(ids("/default/my-job", "my-job"), 1);
        assert_eq!(ids("/default/my-job", "my"), 0);
        assert_eq!(ids("/user.slice/user-1000.slice", "1000"), 0);
    }

    #[test]
    fn cgroups_and_what_is_below() {
        assert!(below("/a/b", "/a") && below("/a", "/a") && below("/a", ""));
        assert!(!below("/ab", "/a"));
        let lines = "9:name=systemd:/x\n4:memory:/y/z:w\n0::/u\n";
        assert_eq!(parse_cgroups(lines), ["/x", "/y/z:w", "/u"]);
    }

    #[test]
    fn folders_of_cgroup_mounts_are_cgroups() {
        let mounts = "30 1 0:26 / /sys/fs/cgroup rw - tmpfs tmpfs rw\n\
            31 30 0:27 / /sys/fs/cgroup/unified rw shared:5 - cgroup2 cgroup2 rw\n\
            32 30 0:28 /box /sys/fs/cgroup/memory rw - cgroup cgroup rw,memory\n";
        let path = |given| cgroup_path(given, mounts);
        assert_eq!(path("/sys/fs/cgroup/unified/a/b/"), "/a/b");
        assert_eq!(path("/sys/fs/cgroup/memory/a"), "/box/a");
        assert_eq!(path("/system.slice/x.service"), "/system.slice/x.service");
        assert_eq!(path("system.slice"), "/system.slice");
        assert_eq!(path("/"), "");
    }

    #[test]
    fn numbers_that_are_no_process_with_the_library() {
        let of = |pid| libraries_of(&mut Scanner::default(), pid).unwrap_err();
        assert!(
            of(1 << 22)
                .to_string()
                .contains("there is no process 4194304")
        );
        let own = std::process::id();
        let without = of(own).to_string();
        assert!(
            without.contains("does not map a library") && without.contains("LD_PRELOAD"),
            "{without}"
        );
        let thread = std::thread::spawn(move || {
            // SAFETY: no preconditions.
            let tid = unsafe { libc::gettid() }.cast_unsigned();
            (tid, of(tid).to_string())
        });
        let (tid, said) = thread.join().unwrap();
        assert_eq!(
            said,
            format!("{tid} is a thread of process {own}: --pid {own}")
        );
    }

    #[test]
    fn empty_words_choose_nothing() {
        let of = |word: &str| {
            let options = Chosen {
                cgroup: vec![word.to_owned()],
                ..Chosen::default()
            };
            Choice::of(&options)
        };
        assert!(of("").is_err() && of("/").is_ok());
    }

    #[test]
    fn names_are_cut_as_the_kernel_cuts_them() {
        assert_eq!(cut("a-very-long-name-of-a-program"), "a-very-long-nam");
        assert_eq!(cut("short"), "short");
    }

    #[test]
    fn a_child_is_found_by_its_name() {
        let mut child = std::process::Command::new("sleep")
            .arg("600")
            .spawn()
            .unwrap();
        let by = |comm: &str| Choice {
            comms: vec![comm.to_owned()],
            ..Choice::default()
        };
        // Between fork and exec it still has our name.
        while discover::comm(child.id()) != "sleep" {
            std::thread::yield_now();
        }
        assert!(by("sleep").present().contains(&child.id()));
        assert!(!by("sleepy").present().contains(&child.id()));
        child.kill().unwrap();
        child.wait().unwrap();
    }
}
