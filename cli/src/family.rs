//! The processes that a command started, for when nothing comes from them: how many of what name, and what kept the
//! library out.
//!
//! They are found through `/proc/PID/task/*/children` while they live. One that is gone between two looks stays
//! unknown, and so do those that were handed over to another parent.

use std::collections::BTreeMap;
use std::fs;
use std::time::Instant;

use crate::demangle::clean;
use crate::discover::{self, FileId, Scanner};
use crate::preload::{self, Reason};
use crate::text::{count, plural};

/// Processes that are remembered, and looked at in one look.
const MEMBERS_MAX: usize = 512;
const LOOKED_AT: usize = 64;
/// Once it is known what became of the library in one, it is looked at again after this part of the time that it has
/// been known: often at first, and never for the last time.
const AGAIN: u32 = 4;
/// Names, and reasons, that are told.
const SHOWN: usize = 6;

/// What became of the library in one process.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Fate {
    /// It is there, and no other copy.
    There,
    /// Another copy is there, with or without ours.
    Another(String),
    /// It is not there, and why.
    Missing(&'static str, &'static str),
    /// It was gone before it could be looked at.
    Unknown,
}

#[derive(Debug)]
struct Member {
    /// It changes with exec.
    comm: String,
    fate: Fate,
    /// Since when that is known; its name was the same since.
    since: Option<Instant>,
    next: Instant,
}

/// See the module.
pub struct Family {
    file: String,
    id: FileId,
    scanner: Scanner,
    members: BTreeMap<u32, Member>,
    full: bool,
}

impl Family {
    /// Of processes that are to have the library `file`.
    pub fn new(file: String, id: FileId) -> Self {
        Self {
            file,
            id,
            scanner: Scanner::default(),
            members: BTreeMap::new(),
            full: false,
        }
    }

    /// Has a look at a process and all below it.
    pub fn look(&mut self, root: u32) {
        let mut next = vec![root];
        let mut looked_at = 0;
        while let Some(pid) = next.pop() {
            looked_at += 1;
            if looked_at > LOOKED_AT {
                return;
            }
            self.look_at(pid);
            next.extend(children(pid));
        }
    }

    fn look_at(&mut self, pid: u32) {
        let comm = discover::comm(pid);
        if comm.is_empty() {
            return;
        }
        if self.members.len() >= MEMBERS_MAX && !self.members.contains_key(&pid) {
            self.full = true;
            return;
        }
        let now = Instant::now();
        let member = self.members.entry(pid).or_insert_with(|| Member {
            comm: comm.clone(),
            fate: Fate::Unknown,
            since: None,
            next: now,
        });
        if member.comm != comm {
            (member.comm, member.fate, member.since) = (comm, Fate::Unknown, None);
        }
        if member.since.is_some() && now < member.next {
            return;
        }
        let Ok(found) = self.scanner.scan_process(pid) else {
            return;
        };
        let others = found.iter().find(|f| f.library.id != self.id);
        if let Some(other) = others {
            member.fate = Fate::Another(other.library.path.clone());
        } else if !found.is_empty() {
            member.fate = Fate::There;
        } else if let Some(Reason { why, cure }) = preload::why_not(pid, &self.file) {
            member.fate = Fate::Missing(why, cure);
        }
        if member.fate != Fate::Unknown {
            let since = *member.since.get_or_insert(now);
            member.next = now + now.duration_since(since) / AGAIN;
        }
    }

    /// Whether something stood in the library's way in one of them.
    pub fn is_odd(&self) -> bool {
        let odd = |m: &Member| matches!(m.fate, Fate::Another(_) | Fate::Missing(..));
        self.members.values().any(odd)
    }

    /// Whether the library was met in one of them, as the only copy.
    fn has_it(&self) -> bool {
        self.members.values().any(|m| m.fate == Fate::There)
    }

    /// What was started and what kept the library out; ends with a newline, empty where nobody could be looked at.
    pub fn text(&self) -> String {
        let everybody: Vec<&str> = self.members.values().map(|m| m.comm.as_str()).collect();
        if self.members.values().all(|m| m.fate == Fate::Unknown) {
            return String::new();
        }
        let met = everybody.len() as u64;
        let at_least = if self.full { "at least " } else { "" };
        let who = format!(
            "{at_least}{} ({})",
            plural(met, "process"),
            names(&everybody)
        );
        let mut out = if self.has_it() {
            format!("the command started {who}, as far as they were met\n")
        } else {
            format!(
                "the command started {who}, as far as they were met; none was seen with the library in charge\n"
            )
        };
        let mut fates: BTreeMap<&Fate, Vec<&str>> = BTreeMap::new();
        for member in self.members.values().filter(|m| m.fate != Fate::There) {
            fates.entry(&member.fate).or_default().push(&member.comm);
        }
        for (fate, who) in fates.into_iter().take(SHOWN) {
            let who = names(&who);
            out += &match fate {
                Fate::Another(path) => format!(
                    "  {who}: another copy of the library is in charge there, {}, and nothing comes from ours\n    \
                     -> start it without that copy (LD_PRELOAD; scripts/sim --bare), or record it with --pid or --comm\n",
                    clean(path)
                ),
                Fate::Missing(why, cure) => format!("  {who}: {why}\n    -> {cure}\n"),
                Fate::Unknown | Fate::There => {
                    format!("  {who}: gone before it could be looked at\n")
                }
            };
        }
        out
    }
}

/// `sh, python3 x 4 and 3 more`.
fn names(all: &[&str]) -> String {
    let mut counts: BTreeMap<&str, u64> = BTreeMap::new();
    for name in all {
        *counts.entry(name).or_default() += 1;
    }
    let mut counts: Vec<(&str, u64)> = counts.into_iter().collect();
    counts.sort_by_key(|(name, n)| (std::cmp::Reverse(*n), *name));
    let shown = counts.iter().take(SHOWN).map(|(name, n)| match n {
        1 => clean(name),
        n => format!("{} x {}", clean(name), count(*n)),
    });
    let shown: Vec<String> = shown.collect();
    let more = counts.len().saturating_sub(SHOWN);
    let more = if more > 0 {
        format!(" and {more} more names")
    } else {
        String::new()
    };
    shown.join(", ") + &more
}

fn children(pid: u32) -> Vec<u32> {
    let tasks = fs::read_dir(format!("/proc/{pid}/task"));
    let tasks = tasks.into_iter().flatten().flatten().take(LOOKED_AT);
    let lists = tasks.filter_map(|task| fs::read_to_string(task.path().join("children")).ok());
    lists
        .flat_map(|list| {
            let pids = list.split_whitespace().flat_map(str::parse);
            pids.collect::<Vec<u32>>()
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn family(members: &[(&str, Fate)]) -> Family {
        let mut family = Family::new(
            "/tmp/x/lib.so".to_owned(),
            FileId::of(&tempfile::tempfile().unwrap()).unwrap(),
        );
        for (pid, (comm, fate)) in (1..).zip(members) {
            let member = Member {
                comm: (*comm).to_owned(),
                fate: fate.clone(),
                since: None,
                next: Instant::now(),
            };
            family.members.insert(pid, member);
        }
        family
    }

    #[test]
    fn names_counts_and_reasons_are_told() {
        let missing = Fate::Missing("a static program", "link it dynamically");
        let text = family(&[
            ("sh", missing.clone()),
            ("app", Fate::Another("/opt/lib.so".to_owned())),
            ("sh", missing),
            ("ls", Fate::Unknown),
        ])
        .text();
        assert!(
            text.starts_with("the command started 4 processes (sh x 2, app, ls), as far as they were met; none was seen with"),
            "{text}"
        );
        assert!(
            text.contains("  sh x 2: a static program\n    -> link it"),
            "{text}"
        );
        assert!(
            text.contains("  app: another copy of the library is in charge there, /opt/lib.so,"),
            "{text}"
        );
        assert!(text.contains("  ls: gone before"), "{text}");
        let some = family(&[("sh", Fate::There), ("app", Fate::Unknown)]).text();
        assert!(!some.contains("none was"), "{some}");
        assert_eq!(family(&[("true", Fate::Unknown)]).text(), "");
    }

    #[test]
    fn many_names_are_cut() {
        let all = ["a", "b", "c", "d", "e", "f", "g", "g"];
        assert_eq!(names(&all), "g x 2, a, b, c, d, e and 1 more names");
    }

    #[test]
    fn children_are_met_with_the_reason() {
        let mut family = family(&[]);
        let mut child = std::process::Command::new("sleep")
            .arg("600")
            .spawn()
            .unwrap();
        // At first the loader may still bring it.
        let deadline = Instant::now() + std::time::Duration::from_secs(120);
        let met = loop {
            if Instant::now() > deadline {
                let _ = child.kill();
                panic!("{:?}", family.members);
            }
            family.look(std::process::id());
            let met = family.members.get(&child.id());
            match met.filter(|m| m.comm == "sleep" && m.fate != Fate::Unknown) {
                Some(met) => break met,
                None => std::thread::yield_now(),
            }
        };
        assert!(matches!(met.fate, Fate::Missing(..)), "{met:?}");
        child.kill().unwrap();
        child.wait().unwrap();
    }
}
