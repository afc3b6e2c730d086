//! Puts the rows of a tab together from what was added up.

use std::collections::{BTreeMap, BTreeSet};

use super::live::Live;
use super::rows::{DeviceLine, KernelLine, ProcessLine, RangeLine, SampleLine};
use super::scale::{Amount, Scale};
use super::screen::Filter;
use super::sums::{Pc, Sums};
use crate::accounts::ProcessAccount;
use crate::demangle::clean;
use crate::ledger::Ledger;
use crate::nvtx_table;
use crate::pc::rows::Rows;
use crate::pc_table;
use crate::session::ProcessId;
use crate::table::SILENT_SHOWN;
use crate::text::clock_ns;

/// Instructions named in a row.
const MNEMONICS_SHOWN: usize = 2;
/// A buffer that CUPTI keeps longer holds a kernel that runs.
const HELD_NS: u64 = 2_000_000_000;

/// What the rows are made from.
pub struct Facts<'a> {
    /// Events, added up.
    pub sums: &'a Sums,
    /// What processes say.
    pub ledger: &'a Ledger,
    /// Rates and busy shares.
    pub live: &'a Live,
    /// Events lost on the way to us.
    pub dropped: u64,
    /// Names as the compiler made them.
    pub raw_names: bool,
}

impl<'a> Facts<'a> {
    fn scale(&self, id: ProcessId) -> Scale {
        let account = self.sums.accounts.processes.get(&id);
        Scale::of(account, self.ledger.entry(id.pid), self.dropped)
    }

    /// What a device is called: its UUID, so that processes that number devices differently meet.
    fn device(&self, id: ProcessId, ordinal: u32) -> String {
        let entry = self.ledger.entry(id.pid);
        let uuid = entry.and_then(|e| e.devices().get(&ordinal));
        uuid.cloned()
            .unwrap_or_else(|| format!("device {ordinal} of PID {} (UUID not known)", id.pid))
    }

    fn accounts(&self) -> impl Iterator<Item = (ProcessId, &'a ProcessAccount)> {
        self.sums.accounts.processes.iter().map(|(id, a)| (*id, a))
    }

    /// Busy share of a process on a device, scaled as its time is.
    fn busy(&self, id: ProcessId, ordinal: u32, row: &crate::accounts::Row) -> Amount {
        let entry = self.ledger.entry(id.pid);
        let held = entry.map_or(0, |e| e.oldest_buffer_ns);
        if held != 0 && clock_ns(libc::CLOCK_MONOTONIC).saturating_sub(held) > HELD_NS {
            return Amount::Unknown;
        }
        let Amount::Whole(sampled) = self.live.busy(id, ordinal) else {
            return Amount::Unknown;
        };
        match self.scale(id).time(row) {
            Amount::Whole(_) => Amount::Whole(sampled),
            Amount::Estimate(_) if row.total_ns == 0 => Amount::Unknown,
            Amount::Estimate(ns) => Amount::Estimate(sampled * ns / row.total_ns as f64),
            Amount::Unknown => Amount::Unknown,
        }
    }

    /// All processes, also those that told nothing.
    pub fn processes(&self) -> Vec<ProcessLine> {
        let mut ids: BTreeSet<ProcessId> = self.accounts().map(|(id, _)| id).collect();
        for (pid, _) in self.ledger.entries() {
            if !ids.iter().any(|id| id.pid == pid) {
                ids.insert(ProcessId { pid, start_ns: 0 });
            }
        }
        ids.into_iter().map(|id| self.process(id)).collect()
    }

    fn process(&self, id: ProcessId) -> ProcessLine {
        let entry = self.ledger.entry(id.pid);
        let account = self.sums.accounts.processes.get(&id);
        let (launches, kernels) = self.live.rates(id.pid);
        let devices = account.map(ProcessAccount::devices).unwrap_or_default();
        let busy = devices
            .iter()
            .map(|(ordinal, row)| self.busy(id, *ordinal, row))
            .reduce(Amount::plus);
        ProcessLine {
            id,
            comm: entry.map_or_else(|| "?".to_owned(), |e| e.comm.clone()),
            state: entry.and_then(crate::ledger::Entry::state),
            launches,
            sampled: (
                account.map_or(0, |a| a.launches),
                entry.and_then(crate::ledger::Entry::launches_seen),
            ),
            kernels,
            gpu: account.map_or(Amount::Unknown, |a| self.scale(id).time(&a.sum())),
            busy: busy.unwrap_or(Amount::Unknown),
            lost: entry.map(|e| e.library_losses()).unwrap_or_default(),
        }
    }

    /// All devices that had kernels.
    pub fn devices(&self) -> Vec<DeviceLine> {
        let mut lines: BTreeMap<String, DeviceLine> = BTreeMap::new();
        for (id, account) in self.accounts() {
            for (ordinal, row) in account.devices() {
                let device = self.device(id, ordinal);
                let gpu = self.scale(id).time(&row);
                let busy = self.busy(id, ordinal, &row);
                let line = lines.entry(device.clone()).or_insert(DeviceLine {
                    device,
                    processes: 0,
                    records: 0,
                    gpu: Amount::Whole(0.0),
                    busy: Amount::Whole(0.0),
                });
                line.processes += 1;
                line.records += row.calls;
                line.gpu = line.gpu.plus(gpu);
                line.busy = line.busy.plus(busy);
            }
        }
        lines.into_values().collect()
    }

    /// Kernels of the processes and devices that are looked at.
    pub fn kernels(&self, filter: &Filter) -> Vec<KernelLine<'a>> {
        let mut lines = Vec::new();
        for (id, account) in self.accounts() {
            let scale = self.scale(id);
            let ordinals: Vec<Option<u32>> = match filter {
                Filter::All => vec![None],
                Filter::Process(wanted) if *wanted == id => vec![None],
                Filter::Process(_) => vec![],
                Filter::Device(uuid) => account
                    .devices()
                    .into_keys()
                    .filter(|ordinal| self.device(id, *ordinal) == *uuid)
                    .map(Some)
                    .collect(),
            };
            for ordinal in ordinals {
                lines.extend(account.rows(ordinal).map(|(name, row)| KernelLine {
                    id,
                    name,
                    raw_names: self.raw_names,
                    row,
                    scale,
                    all: 0.0,
                }));
            }
        }
        let all = lines.iter().map(|l| l.scale.weight(&l.row)).sum();
        for line in &mut lines {
            line.all = all;
        }
        lines
    }

    /// Why there are no PC samples, by process.
    pub fn why_no_samples(&self) -> String {
        let whys = self.ledger.entries().map(|(pid, entry)| {
            let comm = clean(&entry.comm);
            format!("PID {pid} ({comm}): {}", entry.why_no_pc_samples())
        });
        let whys: Vec<String> = whys.take(SILENT_SHOWN as usize).collect();
        format!("no PC samples yet\n{}", whys.join("\n"))
    }

    /// NVTX ranges of the processes that are looked at.
    pub fn ranges(&self, filter: &Filter) -> Vec<RangeLine> {
        let Some(ranges) = &self.sums.ranges else {
            return Vec::new();
        };
        let mut lines = Vec::new();
        for (id, process) in &ranges.processes {
            if matches!(filter, Filter::Process(wanted) if wanted != id) {
                continue;
            }
            let account = self.sums.accounts.processes.get(id);
            let sum = account.map(ProcessAccount::sum).unwrap_or_default();
            let whole = self.scale(*id).time(&sum);
            for (key, row) in process.rows() {
                let name = match nvtx_table::domain(process, key) {
                    Some(domain) => format!("{domain}: {}", key.name),
                    None => key.name.clone(),
                };
                let ns = row.gpu_ns as f64;
                let gpu = match whole {
                    Amount::Whole(_) => Amount::Whole(ns),
                    Amount::Estimate(all) if sum.total_ns > 0 => {
                        Amount::Estimate(ns * all / sum.total_ns as f64)
                    }
                    _ => Amount::Unknown,
                };
                lines.push(RangeLine {
                    id: *id,
                    name,
                    row,
                    gpu,
                });
            }
        }
        lines
    }
}

/// PC samples by line, of the processes that are looked at.
pub fn samples(pc: Option<&mut Pc>, filter: &Filter, raw_names: bool) -> Vec<SampleLine> {
    let Some(Pc { samples, code }) = pc else {
        return Vec::new();
    };
    let mut lines = Vec::new();
    for (id, process) in &samples.processes {
        if matches!(filter, Filter::Process(wanted) if wanted != id) {
            continue;
        }
        let rows = Rows::new(process, code, raw_names);
        for kernel in &rows.kernels {
            lines.extend(kernel.lines.iter().map(|line| {
                let mnemonics = line.mnemonics.iter().take(MNEMONICS_SHOWN);
                let mnemonics: Vec<&str> = mnemonics.map(|(m, _)| &**m).collect();
                let time = rows.time_ns(line.tally.samples);
                SampleLine {
                    id: *id,
                    kernel: kernel.name.clone(),
                    spot: pc_table::spot(&line.spot),
                    tally: line.tally.clone(),
                    mnemonics: mnemonics.join(" "),
                    time: time.map_or(Amount::Unknown, |ns| Amount::Estimate(ns as f64)),
                    all: 0,
                }
            }));
        }
    }
    let all = lines.iter().map(|l| l.tally.samples).sum();
    for line in &mut lines {
        line.all = all;
    }
    lines
}
