//! What is known of processes and losses beside the events, written again and again.

use std::io::Write;
use std::time::{Duration, Instant};

use parcagpu_abi::probe;

use super::cubins::Cubins;
use super::{NO_STACK, Recorder};
use crate::ledger::Ledger;
use crate::recording::format::{EVERYBODY, Note};
use crate::session::Session;

/// Names of threads are read again this often, and so many at a time.
const NAMES_EVERY: Duration = Duration::from_secs(10);
const NAMES_AT_ONCE: usize = 1000;

impl<W: Write> Recorder<W> {
    /// Writes what is known of the processes; `ledger` is up to date.
    pub fn say_notes(&mut self, session: &Session, ledger: &Ledger) {
        for (id, known) in &self.processes {
            let Some(entry) = ledger.entry(id.pid) else {
                continue;
            };
            if entry.start_ns().is_some_and(|start| start != id.start_ns) {
                continue;
            }
            let (w, p) = (&mut self.writer, known.index);
            w.note(p, Note::Comm, 0, 0, &entry.comm);
            // The count may have been read before the last launches.
            let seen = entry.launches_seen().map(|n| n.max(known.launches));
            let seen = seen.map_or(0, |n| n.saturating_add(1));
            w.note(p, Note::LaunchesSeen, 0, seen, "");
            for (ordinal, uuid) in entry.devices() {
                w.note(p, Note::DeviceUuid, (*ordinal).into(), 0, uuid);
                if let Some(model) = self.models.get(uuid) {
                    w.note(p, Note::DeviceModel, (*ordinal).into(), 0, model);
                }
            }
            for (i, (noun, what, n)) in (0..).zip(entry.losses()) {
                // By its text: the list has only those that are not 0.
                let text = format!("{noun}: {what}");
                let key = u64::from(crc32fast::hash(text.as_bytes())).max(i);
                w.loss(p, key, &text, n);
            }
        }
        self.say_losses(session);
        self.read_thread_names();
    }

    fn say_losses(&mut self, session: &Session) {
        let losses = session.losses().unwrap_or_default();
        for ((i, probe), loss) in (0..).zip(probe::ALL).zip(losses) {
            let name = probe.name;
            let dropped = format!("{name} events dropped: ring buffer full");
            self.writer.loss(EVERYBODY, 2 * i, &dropped, loss.dropped);
            let unreadable = format!("{name} records unreadable");
            self.writer
                .loss(EVERYBODY, 2 * i + 1, &unreadable, loss.unreadable);
        }
        let undecodable = session.undecodable();
        self.writer
            .loss(EVERYBODY, 100, "events not understood", undecodable);
        let processes = self.gaps.too_many_processes;
        self.writer
            .loss(EVERYBODY, 101, "events of further processes", processes);
    }

    pub(super) fn say_gaps(&mut self) {
        for (key, (what, count)) in (0..).zip(self.gaps()) {
            self.writer.gap(key, &what, count);
        }
    }

    /// What is less than it could be, and how many; also what is 0. Launches without a stack are told by
    /// [`NO_STACK`] and the reason.
    pub fn gaps(&self) -> Vec<(String, u64)> {
        let missed = self.cubins.as_ref().map_or(0, Cubins::missed);
        let mut gaps = vec![
            ("names cut".to_owned(), self.gaps.names_cut),
            ("names unreadable".to_owned(), self.gaps.names_unreadable),
            ("cubins not kept".to_owned(), missed),
        ];
        let stackless = self.stackless.counts();
        gaps.extend(stackless.map(|(why, n)| (format!("{NO_STACK}{why}"), n)));
        gaps
    }

    fn read_thread_names(&mut self) {
        if self.named.elapsed() < NAMES_EVERY {
            return;
        }
        self.named = Instant::now();
        let mut left = NAMES_AT_ONCE;
        for known in self.processes.values_mut() {
            for tid in known.threads.met().into_iter().take(left) {
                left -= 1;
                if let Some(name) = known.threads.read_name(tid) {
                    self.writer
                        .note(known.index, Note::Thread, tid.into(), 0, name);
                }
            }
        }
    }
}
