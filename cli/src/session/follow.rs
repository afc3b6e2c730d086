//! Processes that come and go, and what is attached to them.

use std::collections::HashSet;
use std::fs;

use anyhow::{Context, Result};
use libbpf_rs::{Link, MapCore, MapFlags};
use parcagpu_abi::probe::{self, Probe};

use super::Session;
use super::attach::{Target, attach_to};
use crate::discover::{self, FileId, Found, Library};
use crate::elf::Image;
use crate::scan_thread::ScanThread;

/// A file, for one process or all.
pub(super) struct Attached {
    id: FileId,
    /// The library again, for probes that are wanted later.
    file: fs::File,
    image: Image,
    /// Number and start of the one process; `None`: all.
    process: Option<(u32, u64)>,
    links: Vec<Link>,
}

impl Session {
    /// Attaches to a file that may not be mapped anywhere yet, for all processes.
    pub fn attach_library(&mut self, library: &Library) -> Result<()> {
        self.own.push(library.id);
        if self.is_attached(&library.id, None) {
            return Ok(());
        }
        self.attach(library, None)
    }

    /// Looks for processes and attaches to nothing.
    pub fn look_around(&mut self) {
        let mut found = self.scanner.scan(&self.wanted.choice);
        found.retain(|f| self.is_meant(f));
        self.found = found;
    }

    /// Whether a process's library is the one that was asked for, if one was.
    fn is_meant(&self, found: &Found) -> bool {
        self.wanted.only.as_ref().is_none_or(|(id, path)| {
            found.library.id == *id || std::path::Path::new(&found.library.path) == path
        })
    }

    /// Looks for processes, attaches where we are not yet, and forgets files that nobody maps.
    /// The number of new attachments. With chosen processes, one that is gone is no error here.
    pub fn rescan(&mut self) -> Result<usize> {
        let found = self.scanner.scan(&self.wanted.choice);
        self.take_over(found)
    }

    /// Does the same with what the scanning thread found since the last call; starts that thread.
    pub fn rescan_aside(&mut self) -> Result<()> {
        let thread = match &self.scan_thread {
            Some(thread) => thread,
            None => self
                .scan_thread
                .insert(ScanThread::start(self.wanted.choice.clone())?),
        };
        if let Some(found) = thread.take() {
            self.take_over(found)?;
        }
        Ok(())
    }

    fn take_over(&mut self, found: Vec<Found>) -> Result<usize> {
        self.found = found.into_iter().filter(|f| self.is_meant(f)).collect();
        if !self.wanted.discover {
            self.found.retain(|f| self.own.contains(&f.library.id));
            return Ok(0);
        }
        self.leave_the_gone();
        let mut new = 0;
        for found in self.found.clone() {
            let process = (!self.wanted.choice.is_all()).then_some((found.pid, found.started));
            if self.is_attached(&found.library.id, process) {
                continue;
            }
            match self.attach(&found.library, process) {
                Ok(()) => new += 1,
                // A process may end while we attach to it.
                Err(_) if !discover::is_alive(found.pid) => {}
                Err(e) => self.warn_once(&format!(
                    "{} (process {}): {e:#}",
                    found.library.path, found.pid
                )),
            }
            if found.deleted {
                self.warn_once(&format!(
                    "process {} maps a copy of {} that was deleted or replaced on disk; attached to that copy",
                    found.pid, found.library.path
                ));
            }
        }
        Ok(new)
    }

    fn warn_once(&mut self, message: &str) {
        if !self.warned.iter().any(|w| w == message) {
            if !self.hold_warnings {
                eprintln!("warning: {message}");
            }
            self.warned.push(message.to_owned());
        }
    }

    /// Keeps warnings from stderr, which is a terminal that something is drawn on.
    pub fn hold_warnings(&mut self) {
        self.hold_warnings = true;
        self.warned.clear();
    }

    /// Prints the warnings that were held.
    pub fn release_warnings(&mut self) {
        self.hold_warnings = false;
        for message in &self.warned {
            eprintln!("warning: {message}");
        }
    }

    /// Warnings so far.
    pub fn warnings(&self) -> &[String] {
        &self.warned
    }

    fn is_attached(&self, id: &FileId, process: Option<(u32, u64)>) -> bool {
        self.attached
            .iter()
            .any(|a| a.id == *id && (a.process.is_none() || a.process == process))
    }

    /// Lets go of chosen processes that ended, left what was chosen or unloaded the library: their numbers
    /// may be given to others.
    fn leave_the_gone(&mut self) {
        let here: HashSet<(u32, u64)> = self.found.iter().map(|f| (f.pid, f.started)).collect();
        let (stay, go): (Vec<_>, Vec<_>) = std::mem::take(&mut self.attached)
            .into_iter()
            .partition(|a| a.process.is_none_or(|p| here.contains(&p)));
        self.attached = stay;
        for (pid, _) in go.iter().filter_map(|a| a.process) {
            if !self.found.iter().any(|f| f.pid == pid) {
                // Absent is as good.
                let _ = self.skel.maps.wanted_pids.delete(&pid.to_le_bytes());
            }
        }
    }

    fn attach(&mut self, library: &Library, process: Option<(u32, u64)>) -> Result<()> {
        if let Some((pid, _)) = process {
            let map = &self.skel.maps.wanted_pids;
            map.update(&pid.to_le_bytes(), &[1], MapFlags::ANY)
                .context("too many processes")?;
        }
        let probes: Vec<Probe> = probe::ALL
            .iter()
            .filter(|p| self.wanted.probes.contains(&p.name))
            .copied()
            .collect();
        let target = Target {
            file: &library.file,
            image: &library.image,
            process,
        };
        let links = attach_to(&mut self.skel, &self.wanted, &target, &probes)?;
        self.attached.push(Attached {
            id: library.id,
            file: library.file.try_clone()?,
            image: library.image.clone(),
            process,
            links,
        });
        Ok(())
    }

    /// Wants further probes from now on, also of what we are attached to already.
    pub fn attach_more(&mut self, probes: &[Probe]) -> Result<()> {
        let mut new = probes.to_vec();
        new.retain(|p| !self.wanted.probes.contains(&p.name));
        self.wanted.probes.extend(new.iter().map(|p| p.name));
        for attached in &mut self.attached {
            let target = Target {
                file: &attached.file,
                image: &attached.image,
                process: attached.process,
            };
            let links = attach_to(&mut self.skel, &self.wanted, &target, &new)?;
            attached.links.extend(links);
        }
        Ok(())
    }

    /// Looks at one process between two scans; one that is gone stays as it was found.
    pub fn look_at(&mut self, pid: u32) {
        let Ok(found) = self.scanner.scan_process(pid) else {
            return;
        };
        for found in found {
            if !self.own.contains(&found.library.id) {
                continue;
            }
            // After exec the library lies elsewhere.
            let other = |f: &Found| f.pid != pid || f.library.id != found.library.id;
            self.found.retain(other);
            self.found.push(found);
        }
    }

    /// Processes were chosen by number and nothing else, and all have ended.
    pub fn chosen_are_gone(&self) -> bool {
        let choice = &self.wanted.choice;
        let pids = choice.given();
        choice.is_closed() && !pids.is_empty() && !pids.iter().any(|pid| discover::is_alive(*pid))
    }

    /// Processes that map a library, as of the last scan.
    pub fn found(&self) -> &[Found] {
        &self.found
    }

    /// Processes that we were not allowed to look into when we looked around.
    pub fn refused(&self) -> usize {
        self.scanner.refused()
    }

    /// Files (or, with chosen processes, files per process) we are attached to.
    pub fn attachments(&self) -> usize {
        self.attached.len()
    }

    /// Leaves all processes; what is in the ring buffer stays.
    pub fn detach(&mut self) {
        self.attached.clear();
    }
}
