//! The rows of the live view: what is in them, how they are sorted and written.

use std::cmp::Ordering;

use parcagpu_abi::status::State;

use super::scale::{Amount, Scale};
use crate::accounts::{Name, Row};
use crate::demangle::clean;
use crate::nvtx;
use crate::pc::reasons::Tally;
use crate::session::ProcessId;
use crate::text::{count, duration, percent};

/// A column.
#[derive(Clone, Copy, Debug)]
pub struct Column {
    /// Its head.
    pub title: &'static str,
    /// Cells; 0: what is left.
    pub width: u16,
    /// Numbers, written at the right.
    pub number: bool,
}

const fn number(title: &'static str, width: u16) -> Column {
    Column {
        title,
        width,
        number: true,
    }
}

const fn text(title: &'static str, width: u16) -> Column {
    Column {
        title,
        width,
        number: false,
    }
}

/// What names a row from one look to the next.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Id {
    /// A process.
    Process(ProcessId),
    /// A device, by UUID or by what stands for it.
    Device(String),
    /// Anything else, by process and name.
    Named(ProcessId, Vec<u8>),
}

/// What a column is sorted by.
#[derive(Clone, Debug, PartialEq)]
pub enum Key {
    /// A number; -1: not known.
    Number(f64),
    /// A text.
    Text(String),
}

impl Key {
    /// Numbers by size, texts by letters.
    pub fn order(&self, other: &Self) -> Ordering {
        match (self, other) {
            (Self::Number(a), Self::Number(b)) => a.total_cmp(b),
            (Self::Text(a), Self::Text(b)) => a.cmp(b),
            (Self::Number(_), Self::Text(_)) => Ordering::Less,
            (Self::Text(_), Self::Number(_)) => Ordering::Greater,
        }
    }
}

/// A row of the live view.
pub trait Line {
    /// Its columns.
    const COLUMNS: &'static [Column];
    /// What names it.
    fn id(&self) -> Id;
    /// What a column is sorted by.
    fn key(&self, column: usize) -> Key;
    /// What stands in a column.
    fn cell(&self, column: usize) -> String;
}

fn rate(n: Option<f64>) -> String {
    match n {
        #[expect(
            clippy::cast_possible_truncation,
            clippy::cast_sign_loss,
            reason = "a rate that fits, not below 0"
        )]
        Some(n) => count(n.round() as u64),
        None => "-".to_owned(),
    }
}

fn known(n: Option<f64>) -> Key {
    Key::Number(n.unwrap_or(-1.0))
}

fn share(part: f64) -> String {
    #[expect(
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        reason = "a share between 0 and 1"
    )]
    percent((part.clamp(0.0, 1.0) * 1000.0).round() as u128, 1000)
}

/// A process.
pub struct ProcessLine {
    /// Which.
    pub id: ProcessId,
    /// Its name.
    pub comm: String,
    /// Of its library.
    pub state: Option<State>,
    /// Launches per second.
    pub launches: Option<f64>,
    /// Launches told to us, and seen by the library.
    pub sampled: (u64, Option<u64>),
    /// Kernel records per second.
    pub kernels: Option<f64>,
    /// Time on GPUs since we came.
    pub gpu: Amount,
    /// Share of the last seconds.
    pub busy: Amount,
    /// Losses in its library.
    pub lost: String,
}

impl ProcessLine {
    fn sampled_share(&self) -> Option<f64> {
        let (told, seen) = self.sampled;
        let seen = seen?.max(told);
        (seen > 0).then(|| told as f64 / seen as f64)
    }
}

impl Line for ProcessLine {
    const COLUMNS: &'static [Column] = &[
        number("PID", 8),
        text("COMMAND", 16),
        text("STATE", 8),
        number("LAUNCH/S", 11),
        number("SAMPLED", 8),
        number("KERNEL/S", 11),
        number("GPU TIME", 11),
        number("BUSY", 8),
        text("LOST", 0),
    ];

    fn id(&self) -> Id {
        Id::Process(self.id)
    }

    fn key(&self, column: usize) -> Key {
        match column {
            0 => Key::Number(f64::from(self.id.pid)),
            1 => Key::Text(self.comm.clone()),
            2 => Key::Text(self.cell(2)),
            3 => known(self.launches),
            4 => known(self.sampled_share()),
            5 => known(self.kernels),
            6 => Key::Number(self.gpu.value()),
            7 => Key::Number(self.busy.value()),
            _ => Key::Text(self.lost.clone()),
        }
    }

    fn cell(&self, column: usize) -> String {
        match column {
            0 => self.id.pid.to_string(),
            1 => clean(&self.comm),
            2 => self.state.map_or("?", State::name).to_owned(),
            3 => rate(self.launches),
            4 => self.sampled_share().map_or_else(|| "-".to_owned(), share),
            5 => rate(self.kernels),
            6 => self.gpu.time(),
            7 => self.busy.shown(share),
            _ => self.lost.clone(),
        }
    }
}

/// A device.
pub struct DeviceLine {
    /// UUID, or what stands for it.
    pub device: String,
    /// Processes that had kernels on it.
    pub processes: u64,
    /// Kernel records since we came.
    pub records: u64,
    /// Time since we came.
    pub gpu: Amount,
    /// Share of the last seconds.
    pub busy: Amount,
}

impl Line for DeviceLine {
    const COLUMNS: &'static [Column] = &[
        text("DEVICE", 42),
        number("PROCESSES", 10),
        number("KERNELS", 14),
        number("GPU TIME", 12),
        number("BUSY", 9),
    ];

    fn id(&self) -> Id {
        Id::Device(self.device.clone())
    }

    fn key(&self, column: usize) -> Key {
        match column {
            0 => Key::Text(self.device.clone()),
            1 => Key::Number(self.processes as f64),
            2 => Key::Number(self.records as f64),
            3 => Key::Number(self.gpu.value()),
            _ => Key::Number(self.busy.value()),
        }
    }

    fn cell(&self, column: usize) -> String {
        match column {
            0 => self.device.clone(),
            1 => count(self.processes),
            2 => count(self.records),
            3 => self.gpu.time(),
            _ => self.busy.shown(share),
        }
    }
}

/// A kernel of a process.
pub struct KernelLine<'a> {
    /// Whose.
    pub id: ProcessId,
    /// Its name.
    pub name: Name<'a>,
    /// Names as the compiler made them.
    pub raw_names: bool,
    /// Its records.
    pub row: Row,
    /// What they stand for.
    pub scale: Scale,
    /// Weights of all rows shown.
    pub all: f64,
}

impl KernelLine<'_> {
    fn share(&self) -> Amount {
        let part = self.scale.weight(&self.row) / self.all;
        match self.scale {
            _ if self.all <= 0.0 => Amount::Unknown,
            Scale::Whole => Amount::Whole(part),
            _ => Amount::Estimate(part),
        }
    }
}

impl Line for KernelLine<'_> {
    const COLUMNS: &'static [Column] = &[
        number("SHARE", 9),
        number("RECORDS", 13),
        number("TOTAL", 11),
        number("MEAN", 11),
        number("PID", 8),
        text("KERNEL", 0),
    ];

    fn id(&self) -> Id {
        let name = match self.name {
            Name::Bytes(bytes, cut) => [bytes, &[u8::from(cut)]].concat(),
            Name::None => vec![2],
            Name::Further => vec![3],
        };
        Id::Named(self.id, name)
    }

    fn key(&self, column: usize) -> Key {
        match column {
            0 => Key::Number(self.share().value()),
            1 => Key::Number(self.row.calls as f64),
            2 => Key::Number(self.scale.weight(&self.row)),
            3 => Key::Number(self.row.mean_ns().map_or(-1.0, |ns| ns as f64)),
            4 => Key::Number(f64::from(self.id.pid)),
            _ => Key::Text(self.name.shown(self.raw_names)),
        }
    }

    fn cell(&self, column: usize) -> String {
        let timed = self.row.mean_ns();
        match column {
            0 => self.share().shown(share),
            1 => count(self.row.calls),
            2 if timed.is_none() => "no time".to_owned(),
            2 => self.scale.time(&self.row).time(),
            3 => timed.map_or_else(|| "no time".to_owned(), duration),
            4 => self.id.pid.to_string(),
            _ => self.name.shown(self.raw_names),
        }
    }
}

/// The NVTX ranges of one name of a process.
pub struct RangeLine {
    /// Whose.
    pub id: ProcessId,
    /// Domain and name.
    pub name: String,
    /// Its sums.
    pub row: nvtx::Row,
    /// GPU time of what was launched inside.
    pub gpu: Amount,
}

impl Line for RangeLine {
    const COLUMNS: &'static [Column] = &[
        number("GPU", 11),
        number("COUNT", 11),
        number("OPEN", 7),
        number("TOTAL", 11),
        number("MEAN", 11),
        number("KERNELS", 11),
        number("PID", 8),
        text("RANGE", 0),
    ];

    fn id(&self) -> Id {
        Id::Named(self.id, self.name.clone().into_bytes())
    }

    fn key(&self, column: usize) -> Key {
        let mean = self.row.total_ns.checked_div(self.row.count.into());
        match column {
            0 => Key::Number(self.gpu.value()),
            1 => Key::Number(self.row.count as f64),
            2 => Key::Number(self.row.open as f64),
            3 => Key::Number(self.row.total_ns as f64),
            4 => Key::Number(mean.map_or(-1.0, |ns| ns as f64)),
            5 => Key::Number(self.row.kernels as f64),
            6 => Key::Number(f64::from(self.id.pid)),
            _ => Key::Text(self.name.clone()),
        }
    }

    fn cell(&self, column: usize) -> String {
        let mean = self.row.total_ns.checked_div(self.row.count.into());
        match column {
            0 if self.row.kernels > 0 && self.row.kernels == self.row.no_time => {
                "no time".to_owned()
            }
            0 if self.row.kernels == 0 => "-".to_owned(),
            0 => self.gpu.time(),
            1 => count(self.row.count),
            2 => count(self.row.open),
            3 if self.row.count == 0 => "-".to_owned(),
            3 => duration(self.row.total_ns),
            4 => mean.map_or_else(|| "-".to_owned(), duration),
            5 => count(self.row.kernels),
            6 => self.id.pid.to_string(),
            _ => self.name.clone(),
        }
    }
}

/// PC samples of one line of a kernel.
pub struct SampleLine {
    /// Whose.
    pub id: ProcessId,
    /// The kernel.
    pub kernel: String,
    /// File and line, or why it is not known.
    pub spot: String,
    /// What its warps did.
    pub tally: Tally,
    /// Its most frequent instructions.
    pub mnemonics: String,
    /// SM time, ns: by what one sample stands for.
    pub time: Amount,
    /// Samples of all lines shown.
    pub all: u64,
}

impl SampleLine {
    fn part(part: u64, of: u64) -> f64 {
        if of == 0 {
            0.0
        } else {
            part as f64 / of as f64
        }
    }
}

impl Line for SampleLine {
    const COLUMNS: &'static [Column] = &[
        number("SHARE", 8),
        number("SAMPLES", 10),
        number("SM TIME", 11),
        number("ISSUED", 7),
        number("PID", 7),
        text("LINE", 18),
        text("KERNEL", 16),
        text("WAITS FOR", 0),
    ];

    fn id(&self) -> Id {
        Id::Named(
            self.id,
            format!("{}\0{}", self.kernel, self.spot).into_bytes(),
        )
    }

    fn key(&self, column: usize) -> Key {
        match column {
            0 | 1 => Key::Number(self.tally.samples as f64),
            2 => Key::Number(self.time.value()),
            3 => Key::Number(Self::part(self.tally.issued, self.tally.samples)),
            4 => Key::Number(f64::from(self.id.pid)),
            _ => Key::Text(self.cell(column)),
        }
    }

    fn cell(&self, column: usize) -> String {
        match column {
            0 => share(Self::part(self.tally.samples, self.all)),
            1 => count(self.tally.samples),
            2 => self.time.time(),
            3 => share(Self::part(self.tally.issued, self.tally.samples)),
            4 => self.id.pid.to_string(),
            5 => self.spot.clone(),
            6 => self.kernel.clone(),
            _ if self.mnemonics.is_empty() => self.tally.words(),
            _ => format!("{} ({})", self.tally.words(), self.mnemonics),
        }
    }
}
