//! Events in order of time, with what the UI shows of each when it is clicked.

use anyhow::Result;

use super::proto::DebugAnnotation;
use super::{Builder, range_name};
use crate::recording::model::{Kernel, Launch, Range, RangeKind};

/// What happens on a track.
#[derive(Clone, Copy, Debug)]
pub(super) enum What {
    Kernel { index: u32, arrow: bool },
    Launch { index: u32, arrow: bool },
    Graph { index: u32 },
    Range { index: u32 },
    Mark { index: u32 },
    Note { name: u64 },
    End,
}

#[derive(Clone, Copy, Debug)]
pub(super) struct Event {
    pub(super) time: u64,
    pub(super) track: u64,
    pub(super) what: What,
}

impl Builder<'_, '_, '_> {
    pub(super) fn write_events(mut self) -> Result<()> {
        let mut events = std::mem::take(&mut self.events);
        // Stable: at the same time the order of making stands, on which nesting and arrows rely.
        events.sort_by_key(|e| e.time);
        let rec = self.view.rec;
        for event in events {
            let Event { time, track, what } = event;
            match what {
                What::End => self.packets.end(time, track)?,
                What::Note { name } => {
                    self.packets
                        .begin(time, track, "note", name, vec![], None)?
                }
                What::Kernel { index, arrow } => self.kernel(time, track, index, arrow)?,
                What::Launch { index, arrow } => {
                    let launch = &rec.launches[index as usize];
                    let notes = self.launch_notes(launch);
                    let name = self.packets.event_name(self.view.kernel_name(launch.name));
                    let flow = arrow.then_some(u64::from(index) + 1);
                    self.packets
                        .begin(time, track, "launch", name, notes, flow)?;
                }
                What::Graph { index } => {
                    let kernel = &rec.kernels[index as usize];
                    let name = format!("graph {}", kernel.graph_id);
                    let name = self.packets.event_name(&name);
                    let notes = vec![self.packets.uint("correlation_id", kernel.correlation_id)];
                    self.packets
                        .begin(time, track, "graph", name, notes, None)?;
                }
                What::Range { index } | What::Mark { index } => {
                    let range = &rec.ranges[index as usize];
                    let notes = self.range_notes(range);
                    let name = self.packets.event_name(range_name(self.view, range));
                    if let What::Mark { .. } = what {
                        self.packets.instant(time, track, "nvtx", name, notes)?;
                    } else {
                        self.packets.begin(time, track, "nvtx", name, notes, None)?;
                    }
                }
            }
        }
        self.packets.flush()
    }

    fn kernel(&mut self, time: u64, track: u64, index: u32, arrow: bool) -> Result<()> {
        let kernel = &self.view.rec.kernels[index as usize];
        let notes = self.kernel_notes(kernel);
        let name = self.packets.event_name(self.view.kernel_name(kernel.name));
        let flow = kernel
            .launch
            .filter(|_| arrow)
            .map(|launch| u64::from(launch) + 1);
        let category = if kernel.graph_id == 0 {
            "kernel"
        } else {
            "graph kernel"
        };
        self.packets.begin(time, track, category, name, notes, flow)
    }

    fn kernel_notes(&mut self, k: &Kernel) -> Vec<DebugAnnotation> {
        let view = self.view;
        let caller = view
            .launch(k)
            .and_then(|launch| view.caller(launch.stack))
            .map(|frame| view.frame(frame));
        let packets = &mut self.packets;
        let dim = |[x, y, z]: [i32; 3]| format!("{x}x{y}x{z}");
        let mut notes = vec![
            packets.uint("correlation_id", k.correlation_id),
            packets.text("grid", &dim(k.grid)),
            packets.text("block", &dim(k.block)),
            packets.uint("registers_per_thread", k.registers),
            packets.int("static_shared_memory", k.static_shared_memory),
            packets.int("dynamic_shared_memory", k.dynamic_shared_memory),
        ];
        if k.graph_id != 0 {
            notes.push(packets.uint("graph_id", k.graph_id));
            notes.push(packets.uint("graph_node_id", k.graph_node_id));
        }
        if let Some(caller) = caller {
            notes.push(packets.text("launched_by", &caller));
        }
        notes
    }

    fn launch_notes(&mut self, launch: &Launch) -> Vec<DebugAnnotation> {
        let view = self.view;
        let packets = &mut self.packets;
        let mut notes = vec![
            packets.uint("correlation_id", launch.correlation_id),
            packets.int("cbid", launch.cbid),
        ];
        if launch.stack != 0 {
            let stack = packets.stack(launch.stack, || {
                let frames: Vec<String> = view.stack(launch.stack).map(|f| view.frame(f)).collect();
                frames.join(" < ")
            });
            notes.push(stack);
        }
        notes
    }

    fn range_notes(&mut self, range: &Range) -> Vec<DebugAnnotation> {
        let packets = &mut self.packets;
        let mut notes = Vec::new();
        if range.kind != RangeKind::Pushed {
            notes.push(packets.uint("thread", range.tid));
        }
        if range.domain != 0 {
            notes.push(packets.text("domain", self.view.name(range.domain)));
        }
        if range.color != 0 {
            notes.push(packets.text("color", &format!("{:#010x}", range.color)));
        }
        notes
    }
}
