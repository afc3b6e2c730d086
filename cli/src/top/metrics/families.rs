//! The metrics that there are, and the series of each as they come together.

use std::sync::Arc;

use super::page::{Family, Label, Page, Series, Value};

/// Name, without what all have in common, and help.
pub type Name = (&'static str, &'static str);

/// By process.
pub const SEEN: Name = (
    "launches_seen",
    "Kernel and graph launches that the library saw since this program came.",
);
/// By process.
pub const SAMPLED: Name = (
    "launches_sampled",
    "Launches that were sampled and told to this program.",
);
/// By process.
pub const COMPLETE: Name = (
    "sample_complete",
    "1 where every launch was sampled and nothing was lost: sums of sampled kernels are totals.",
);
/// By process and device.
pub const KERNELS: Name = ("kernels_recorded", "Kernel records of sampled launches.");
/// By process and device.
pub const NO_TIME: Name = (
    "kernels_without_time",
    "Kernel records without usable times; part of parcagpu_kernels_recorded_total.",
);
/// By process and device.
pub const TIME: Name = (
    "sampled_gpu_time",
    "GPU time of the kernels of sampled launches, added up; kernels side by side count both.",
);
/// By process and kind.
pub const LOST: Name = ("losses", "What was lost in the library, by kind.");
/// By process and state.
pub const STATE: Name = ("library_state", "1 for the state that the library is in.");
/// By process and component.
pub const ERRORS: Name = (
    "errors",
    "Distinct errors that the library told; 64 over all processes are told apart.",
);
/// By process and reason.
pub const PC: Name = (
    "pc_samples",
    "Samples of where warps are, by what they wait for; selected: they issue an instruction.",
);
/// By process and kernel.
pub const OF_KERNEL: Name = (
    "kernel_executions_recorded",
    "Kernel records of sampled launches, by kernel.",
);
/// By process and kernel.
pub const TIME_OF_KERNEL: Name = (
    "kernel_sampled_gpu_time",
    "GPU time of the kernels of sampled launches, by kernel.",
);
/// By probe.
pub const DROPPED: Name = (
    "events_dropped",
    "Events that found this program's ring buffer full, by probe.",
);
/// By probe.
pub const UNREADABLE: Name = (
    "records_unreadable",
    "Records whose memory could not be read, by probe.",
);
/// Of all.
pub const UNDECODABLE: Name = (
    "events_undecodable",
    "Events that this program did not understand.",
);
/// By version.
pub const BUILD: Name = ("build_info", "Version of this program.");

/// Families, by the order in which they are asked for first.
#[derive(Default)]
pub struct Families(Vec<Family>);

impl Families {
    /// All of them.
    pub fn page(self) -> Page {
        Page(self.0)
    }

    fn family(&mut self, name: &'static str, help: &'static str) -> &mut Family {
        let at = self.0.iter().position(|f| f.name == name);
        let at = at.unwrap_or_else(|| {
            self.0.push(Family {
                name,
                help,
                counter: true,
                seconds: false,
                series: Vec::new(),
            });
            self.0.len() - 1
        });
        &mut self.0[at]
    }

    /// Adds a series of a counter.
    pub fn count(&mut self, (name, help): Name, of: &Arc<[Label]>, own: Vec<Label>, n: u64) {
        let of = Arc::clone(of);
        let value = Value::Count(n);
        self.family(name, help)
            .series
            .push(Series { of, own, value });
    }

    /// Adds a series of a gauge.
    pub fn gauge(&mut self, name: Name, of: &Arc<[Label]>, own: Vec<Label>, n: u64) {
        self.count(name, of, own, n);
        self.family(name.0, name.1).counter = false;
    }

    /// Adds a series of a counter of time.
    pub fn time(&mut self, (name, help): Name, of: &Arc<[Label]>, own: Vec<Label>, ns: u128) {
        let of = Arc::clone(of);
        let value = Value::Nanoseconds(ns);
        let family = self.family(name, help);
        family.seconds = true;
        family.series.push(Series { of, own, value });
    }
}
