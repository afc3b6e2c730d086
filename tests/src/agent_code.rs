//! What an agent like Parca's makes of PC samples and of announced code.
//!
//! A sample counts only if its process announced the code it lies in; the agent has nothing to say about others.

use std::collections::HashMap;
use std::fs::File;
use std::os::unix::fs::FileExt;

/// Bytes of `struct head`.
const HEAD: usize = 8;
const SLOTS: usize = 64;
const NAME: usize = 64;

/// A PC sample as the agent reads it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Sample {
    /// Process.
    pub pid: u32,
    /// Checksum of the code.
    pub crc: u64,
    /// Offset in the function.
    pub pc_offset: u64,
    /// Index of the function's symbol.
    pub function_index: u32,
    /// The launch; 0: none.
    pub correlation_id: u32,
    /// Entries in use.
    pub reason_count: u64,
    /// All that were read: index and samples.
    pub reasons: Vec<(u32, u32)>,
    /// Function, cut at 127 bytes; `None`: unreadable.
    pub name: Option<Vec<u8>>,
}

/// An announced cubin.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Cubin {
    /// Process.
    pub pid: u32,
    /// Checksum.
    pub crc: u64,
    /// In the process.
    pub address: u64,
    /// Bytes.
    pub size: u64,
}

impl Cubin {
    /// The bytes, read as the agent does.
    pub fn read(&self) -> std::io::Result<Vec<u8>> {
        let mut bytes = vec![0; usize::try_from(self.size).map_err(std::io::Error::other)?];
        let memory = File::open(format!("/proc/{}/mem", self.pid))?;
        memory.read_exact_at(&mut bytes, self.address)?;
        Ok(bytes)
    }
}

/// `gpu_config`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Config {
    /// Ordinal.
    pub device: u64,
    /// log2 of the period in cycles.
    pub factor: u64,
    /// kHz.
    pub clock_khz: u64,
    /// SMs.
    pub sm_count: u64,
}

/// One event.
#[derive(Clone, Debug)]
pub enum Told {
    /// A record of `pc_sample_batch`.
    Sample(Sample),
    /// `stall_reason_map`: process, count and the table as it was read.
    Reasons(u32, u64, Vec<[u8; NAME]>),
    /// `gpu_config`.
    Config(u32, Config),
    /// `cubin_loaded`.
    Cubin(Cubin),
}

impl Told {
    /// `None` for an event of another probe.
    pub fn decode(bytes: &[u8]) -> Option<Self> {
        let word = |at: usize| u32::from_le_bytes(bytes[at..at + 4].try_into().expect("4 bytes"));
        let long = |at: usize| u64::from_le_bytes(bytes[at..at + 8].try_into().expect("8 bytes"));
        let pid = word(4);
        let number = |n: usize| long(HEAD + 8 * n);
        match word(0) {
            5 => {
                let record = |at: usize| HEAD + at;
                let reasons = HEAD + 64;
                let name_len = reasons + 8 * SLOTS;
                let name = &bytes[name_len + 8..];
                Some(Self::Sample(Sample {
                    pid,
                    crc: long(record(8)),
                    pc_offset: long(record(16)),
                    function_index: word(record(24)),
                    reason_count: long(record(40)),
                    correlation_id: word(record(56)),
                    reasons: (0..SLOTS)
                        .map(|i| (word(reasons + 8 * i), word(reasons + 8 * i + 4)))
                        .collect(),
                    name: (long(name_len).cast_signed() > 0).then(|| {
                        name.split(|b| *b == 0)
                            .next()
                            .unwrap_or_default()
                            .to_owned()
                    }),
                }))
            }
            6 => {
                let names = bytes[HEAD + 8..].chunks_exact(NAME);
                let names = names.map(|n| n.try_into().expect("64 bytes")).collect();
                Some(Self::Reasons(pid, number(0), names))
            }
            7 => Some(Self::Config(
                pid,
                Config {
                    device: number(0),
                    factor: number(1),
                    clock_khz: number(2),
                    sm_count: number(3),
                },
            )),
            8 => Some(Self::Cubin(Cubin {
                pid,
                crc: number(0),
                address: number(1),
                size: number(2),
            })),
            _ => None,
        }
    }
}

/// All that was told.
#[derive(Debug, Default)]
pub struct Code {
    /// Samples of announced code, in order.
    pub samples: Vec<Sample>,
    /// Samples of code that was not announced before them: dropped.
    pub unannounced: u64,
    /// By process and checksum.
    pub cubins: HashMap<(u32, u64), Cubin>,
    /// By process: the count and the table.
    pub reasons: HashMap<u32, (u64, Vec<[u8; NAME]>)>,
    /// By process, the last.
    pub configs: HashMap<u32, Config>,
}

impl Code {
    /// Takes an event.
    pub fn take(&mut self, told: Told) {
        match told {
            Told::Sample(sample) => {
                if self.cubins.contains_key(&(sample.pid, sample.crc)) {
                    self.samples.push(sample);
                } else {
                    self.unannounced += 1;
                }
            }
            Told::Reasons(pid, count, names) => {
                self.reasons.insert(pid, (count, names));
            }
            Told::Config(pid, config) => {
                self.configs.insert(pid, config);
            }
            Told::Cubin(cubin) => {
                self.cubins.insert((cubin.pid, cubin.crc), cubin);
            }
        }
    }

    /// Names of a process's stall reasons, by index.
    pub fn reason_names(&self, pid: u32) -> Vec<String> {
        let (count, names) = &self.reasons[&pid];
        let text = |name: &[u8; NAME]| {
            let end = name
                .iter()
                .position(|b| *b == 0)
                .expect("padded with zeros");
            String::from_utf8_lossy(&name[..end]).into_owned()
        };
        let count = usize::try_from(*count).expect("a count");
        names.iter().take(count).map(text).collect()
    }
}
