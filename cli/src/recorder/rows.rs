//! From events to rows.

use std::io::Write;

use super::stackless::Why;
use super::stacks::Met;
use super::{Known, Recorder};
use crate::code::Announced;
use crate::events::{Body, Event, Header, Kernel, Stack, Text, TextState};
use crate::recording::columns::fold;
use crate::recording::format::Note;
use crate::session::{ProcessId, Sink};

/// Kinds of `nvtx_resource_name`.
const THREAD: u32 = 1;
const STREAM: u32 = 2;
const DEVICE: u32 = 3;
const DOMAIN: u32 = 5;

/// Bits of a number that may be negative, as the file has them.
fn bits(n: i32) -> u64 {
    n.cast_unsigned().into()
}

impl<W: Write> Sink for Recorder<W> {
    fn event(&mut self, event: &Event<'_>) {
        let h = event.header;
        let id = h.process();
        if let Some(process) = self.process(id).map(|known| known.index) {
            self.take(id, process, &h, &event.body);
        }
        self.look_at_the_clock();
    }
}

impl<W: Write> Recorder<W> {
    fn take(&mut self, id: ProcessId, process: u64, h: &Header, body: &Body<'_>) {
        match body {
            Body::Correlation {
                id: launch,
                cbid,
                name,
                stack,
            } => {
                self.counts.launches += 1;
                if let Some(known) = self.processes.get_mut(&id) {
                    known.launches += 1;
                }
                self.meet_thread(id, h.tid);
                let name = self.name(name);
                let stack = self.stack(process, h.pid, *stack);
                let cbid = fold((*cbid).into());
                let (tid, launch) = (h.tid.into(), (*launch).into());
                self.writer
                    .launch([h.time_ns, process, tid, launch, cbid, name, stack]);
            }
            Body::Kernel(kernel) => self.kernel(process, kernel),
            Body::PcSample {
                crc,
                pc_offset,
                correlation_id,
                reasons,
                name,
                ..
            } => {
                self.counts.pc_records += 1;
                if let Some(known) = self.processes.get_mut(&id) {
                    known.samples.add(reasons, &mut self.pending_samples);
                }
                let name = self.name(name);
                let launch = (*correlation_id).into();
                self.writer.pc_sample(
                    [h.time_ns, process, *crc, *pc_offset, name, launch],
                    reasons,
                );
            }
            Body::StallReasons { names, .. } => {
                if let Some(known) = self.processes.get_mut(&id) {
                    known.samples.learn(names, &mut self.pending_samples);
                }
                for (i, name) in (0..).zip(names) {
                    self.writer.note(process, Note::StallReason, i, 0, name);
                }
            }
            Body::GpuConfig {
                device,
                sampling_factor,
                clock_khz,
                sm_count,
            } => {
                let told = [
                    (Note::SamplingFactor, *sampling_factor),
                    (Note::Clock, *clock_khz),
                    (Note::SmCount, *sm_count),
                ];
                for (note, value) in told {
                    let device = (*device).into();
                    self.writer.note(process, note, device, value.into(), "");
                }
            }
            Body::CubinLoaded { crc, address, size } => {
                self.writer.note(process, Note::Cubin, *crc, *size, "");
                if let Some(cubins) = &mut self.cubins {
                    cubins.ask(Announced {
                        process: id,
                        crc: *crc,
                        address: *address,
                        size: *size,
                    });
                }
            }
            Body::CubinUnloaded { .. } => {}
            Body::Error {
                code,
                message,
                component,
            } => {
                self.counts.errors += 1;
                let component = self.writer.name(component, false);
                let message = self.name(message);
                let code = fold((*code).into());
                self.writer
                    .error([h.time_ns, process, code, component, message]);
            }
            Body::Nvtx {
                timestamp_ns,
                tid,
                domain,
                kind,
                color,
                range_id,
                message,
                ..
            } => {
                self.counts.nvtx += 1;
                let tid = self
                    .processes
                    .get_mut(&id)
                    .map_or(*tid, |known| known.threads.ours(*tid));
                self.meet_thread(id, tid);
                // Ends have no message.
                let name = match kind {
                    1 | 3 | 5 => self.name(message),
                    _ => 0,
                };
                let (kind, domain, color) = ((*kind).into(), (*domain).into(), (*color).into());
                self.writer.nvtx([
                    *timestamp_ns,
                    process,
                    tid.into(),
                    kind,
                    domain,
                    *range_id,
                    color,
                    name,
                ]);
            }
            Body::ResourceName {
                kind,
                id: what,
                name,
            } => {
                let inner = u32::try_from(*what).unwrap_or(u32::MAX);
                let (note, key) = match *kind {
                    THREAD => {
                        let Some(known) = self.processes.get_mut(&id) else {
                            return;
                        };
                        let tid = known.threads.ours(inner);
                        known.threads.was_given_a_name(tid);
                        (Note::Thread, tid.into())
                    }
                    STREAM => (Note::Stream, *what),
                    DEVICE if inner != u32::MAX => (Note::DeviceName, *what),
                    DOMAIN if inner != u32::MAX => (Note::Domain, *what),
                    _ => return,
                };
                let name = name.lossy();
                self.writer.note(process, note, key, 0, &name);
            }
        }
    }

    fn kernel(&mut self, process: u64, k: &Kernel<'_>) {
        self.counts.kernels += 1;
        let name = self.name(&k.name);
        // Without usable times both are 0.
        let (start, length) = k.duration().map_or((0, 0), |length| (k.start, length));
        let [[gx, gy, gz], [bx, by, bz]] = [k.grid, k.block].map(|dims| dims.map(bits));
        self.writer.kernel([
            start,
            length,
            process,
            k.device.into(),
            k.context.into(),
            k.stream.into(),
            k.correlation_id.into(),
            k.graph_id.into(),
            k.graph_node_id,
            gx,
            gy,
            gz,
            bx,
            by,
            bz,
            k.registers.into(),
            bits(k.static_shared_memory),
            bits(k.dynamic_shared_memory),
            name,
        ]);
    }

    fn name(&mut self, text: &Text<'_>) -> u64 {
        match text.state {
            TextState::Whole => self.writer.name(text.bytes, false),
            TextState::Cut => {
                self.gaps.names_cut += 1;
                self.writer.name(text.bytes, true)
            }
            TextState::Null => 0,
            TextState::Unreadable => {
                self.gaps.names_unreadable += 1;
                self.writer.name(b"(unreadable)", false)
            }
        }
    }

    fn stack(&mut self, process: u64, pid: u32, stack: Stack<'_>) -> u64 {
        let Some(resolver) = &mut self.resolver else {
            return 0;
        };
        let (id, taken) = match stack {
            Stack::NotTaken | Stack::Failed => {
                self.stackless.count(Why::NotTaken);
                return 0;
            }
            Stack::Copied { registers, bytes } => {
                let id = self.book.number();
                (id, resolver.ask_copy(id, process, pid, registers, bytes))
            }
            Stack::Taken(bytes) => match self.book.meet(process, bytes) {
                Met::Known(id) => {
                    self.stackless.again(id);
                    return id;
                }
                Met::New { id, forgot } => {
                    if forgot {
                        self.stackless.forget();
                    }
                    let taken = resolver.ask(id, process, pid, stack.addresses().collect());
                    if !taken {
                        self.book.forget(process, bytes);
                    }
                    (id, taken)
                }
            },
        };
        if !taken {
            self.stackless.count(Why::TooMany);
            return 0;
        }
        self.stackless.asked(id);
        id
    }

    /// Reads the name of a thread that is met for the first time.
    fn meet_thread(&mut self, id: ProcessId, tid: u32) {
        let Some(Known { index, threads, .. }) = self.processes.get_mut(&id) else {
            return;
        };
        if threads.is_new(tid)
            && let Some(name) = threads.read_name(tid)
        {
            self.writer.note(*index, Note::Thread, tid.into(), 0, name);
        }
    }
}
