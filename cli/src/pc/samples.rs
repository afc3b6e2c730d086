//! Adds up PC samples as the probes tell them: per process, function, offset and reason.

use std::collections::{BTreeMap, HashMap};

use super::reasons::{Counts, Reasons};
use crate::code::FunctionName;
use crate::events::{Body, Event, Text, TextState};
use crate::recording::model::Device;
use crate::session::{ProcessId, Sink};

/// Distinct instructions kept per process; samples of further ones are added up together.
const POINTS_MAX: usize = 200_000;
/// Distinct reasons kept of one of them.
const REASONS_MAX: usize = 128;
/// Devices kept per process.
const DEVICES_MAX: usize = 64;

/// A function as samples name it.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Function {
    /// Checksum of its cubin.
    pub crc: u64,
    /// Mangled, perhaps cut.
    pub name: Box<[u8]>,
    /// Whether `name` is whole.
    pub state: State,
    /// Index of its symbol.
    pub index: u32,
}

/// What a sample has of a name.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum State {
    /// All.
    Whole,
    /// Its beginning.
    Cut,
    /// Nothing.
    None,
}

impl Function {
    /// As the code is asked for it.
    pub fn name(&self) -> FunctionName<'_> {
        FunctionName {
            name: &self.name,
            cut: self.state != State::Whole,
            index: self.index,
        }
    }
}

/// What [`FunctionName`] a PC sample's text is.
pub fn function_name<'a>(text: &Text<'a>, index: u32) -> FunctionName<'a> {
    FunctionName {
        name: text.bytes,
        cut: text.state != TextState::Whole,
        index,
    }
}

fn add(counts: &mut Counts, reasons: &[(u32, u32)]) {
    for (reason, samples) in reasons {
        let full = counts.len() >= REASONS_MAX && !counts.contains_key(reason);
        let reason = if full { u32::MAX } else { *reason };
        *counts.entry(reason).or_default() += u64::from(*samples);
    }
}

/// Functions of one name, by checksum, symbol and state of the name.
type Numbers = HashMap<(u64, u32, State), u32>;

/// One process.
#[derive(Debug, Default)]
pub struct ProcessSamples {
    /// Its stall reasons.
    pub reasons: Reasons,
    /// Its devices by ordinal.
    pub devices: BTreeMap<u32, Device>,
    /// Counts by function and offset.
    pub points: HashMap<u32, HashMap<u64, Counts>>,
    /// Samples of instructions that are not kept one by one.
    pub further: Counts,
    /// All samples.
    pub all: Counts,
    /// Records, whether or not their reasons could be read.
    pub records: u64,
    /// Records whose reasons could not be read.
    pub unreadable: u64,
    /// Records that had more reasons than a consumer reads.
    pub too_many_reasons: u64,
    functions: Vec<Function>,
    by_name: HashMap<Box<[u8]>, Numbers>,
    kept: usize,
}

impl ProcessSamples {
    /// A function, by the number that `points` has.
    pub fn function(&self, number: u32) -> &Function {
        &self.functions[number as usize]
    }

    fn counts(&mut self, crc: u64, text: &Text<'_>, index: u32, pc_offset: u64) -> &mut Counts {
        let state = match text.state {
            TextState::Whole => State::Whole,
            TextState::Cut => State::Cut,
            TextState::Null | TextState::Unreadable => State::None,
        };
        let key = (crc, index, state);
        let known = self.by_name.get(text.bytes).and_then(|n| n.get(&key));
        let known = known.copied();
        let offsets = known.and_then(|number| self.points.get(&number));
        if !offsets.is_some_and(|o| o.contains_key(&pc_offset)) {
            if self.kept == POINTS_MAX {
                return &mut self.further;
            }
            self.kept += 1;
        }
        let number = known.unwrap_or_else(|| {
            let number = self.functions.len() as u32;
            self.functions.push(Function {
                crc,
                name: text.bytes.into(),
                state,
                index,
            });
            let of_name = self.by_name.entry(text.bytes.into()).or_default();
            of_name.insert(key, number);
            number
        });
        let offsets = self.points.entry(number).or_default();
        offsets.entry(pc_offset).or_default()
    }

    /// SM time that one sample stands for, ns; `None` while not known, or where devices differ: a sample does not say
    /// which device it is of.
    pub fn ns_per_sample(&self) -> Option<f64> {
        let mut all = self.devices.values().map(Device::ns_per_sample);
        let first = all.next()??;
        all.all(|other| other == Some(first)).then_some(first)
    }
}

/// All processes.
#[derive(Debug, Default)]
pub struct Samples {
    /// By process.
    pub processes: BTreeMap<ProcessId, ProcessSamples>,
}

impl Sink for Samples {
    fn event(&mut self, event: &Event<'_>) {
        let id = event.header.process();
        match &event.body {
            Body::PcSample {
                crc,
                pc_offset,
                function_index,
                reasons,
                reason_count,
                name,
                ..
            } => {
                let process = self.processes.entry(id).or_default();
                process.records += 1;
                let told = *reason_count;
                process.unreadable += u64::from(reasons.is_empty() && told > 0);
                process.too_many_reasons +=
                    u64::from(!reasons.is_empty() && told > reasons.len() as u64);
                add(&mut process.all, reasons);
                let counts = process.counts(*crc, name, *function_index, *pc_offset);
                add(counts, reasons);
            }
            Body::StallReasons { names, .. } if !names.is_empty() => {
                self.processes.entry(id).or_default().reasons = Reasons::new(names);
            }
            Body::GpuConfig {
                device,
                sampling_factor,
                clock_khz,
                sm_count,
            } => {
                let devices = &mut self.processes.entry(id).or_default().devices;
                if devices.len() < DEVICES_MAX || devices.contains_key(device) {
                    let device = devices.entry(*device).or_default();
                    // What no hardware has is not known.
                    device.sampling_factor = match *sampling_factor {
                        factor @ 1..=31 => factor,
                        _ => 0,
                    };
                    device.clock_khz = *clock_khz;
                    device.sm_count = *sm_count;
                }
            }
            _ => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::events::Header;

    fn event(body: Body<'_>) -> Event<'_> {
        Event {
            header: Header {
                probe: 3,
                pid: 7,
                tid: 7,
                time_ns: 1,
                start_ns: 1,
            },
            body,
        }
    }

    fn sample(pc_offset: u64, reasons: Vec<(u32, u32)>) -> Event<'static> {
        event(Body::PcSample {
            crc: 5,
            pc_offset,
            function_index: 3,
            correlation_id: 0,
            reason_count: reasons.len() as u64,
            reasons,
            name: Text {
                bytes: b"k",
                state: TextState::Whole,
            },
        })
    }

    fn config(device: u32, sampling_factor: u32) -> Event<'static> {
        event(Body::GpuConfig {
            device,
            sampling_factor,
            clock_khz: 1_980_000,
            sm_count: 132,
        })
    }

    #[test]
    fn counts_add_up_and_have_a_limit() {
        let mut samples = Samples::default();
        samples.event(&sample(16, vec![(1, 2), (2, 3)]));
        samples.event(&sample(16, vec![(1, 5)]));
        for offset in 0..POINTS_MAX as u64 + 10 {
            samples.event(&sample(100 + offset, vec![(1, 1)]));
        }
        // Known ones still count by themselves.
        samples.event(&sample(16, vec![(2, 1)]));
        let process = samples.processes.values().next().unwrap();
        let kept: usize = process.points.values().map(HashMap::len).sum();
        assert_eq!(kept, POINTS_MAX);
        assert_eq!(process.points[&0][&16], Counts::from([(1, 7), (2, 4)]));
        assert_eq!(process.further, Counts::from([(1, 11)]));
        assert_eq!(*process.function(0).name, *b"k");
        let mut many = Samples::default();
        for reason in 0..1000 {
            many.event(&sample(0, vec![(reason, 1)]));
        }
        let process = many.processes.values().next().unwrap();
        let counts = &process.points[&0][&0];
        assert_eq!(counts.values().sum::<u64>(), 1000);
        assert_eq!(counts.len(), REASONS_MAX + 1);
    }

    #[test]
    fn time_is_known_where_all_devices_agree() {
        let mut samples = Samples::default();
        samples.event(&sample(0, vec![]));
        let per_sample = |samples: &Samples| {
            let process = samples.processes.values().next().unwrap();
            process.ns_per_sample().map(f64::round)
        };
        assert_eq!(per_sample(&samples), None);
        samples.event(&config(0, 20));
        assert_eq!(per_sample(&samples), Some(529_584.0));
        samples.event(&config(1, 20));
        assert_eq!(per_sample(&samples), Some(529_584.0));
        samples.event(&config(1, 10));
        assert_eq!(per_sample(&samples), None);
        samples.event(&config(1, 77));
        assert_eq!(per_sample(&samples), None);
    }
}
