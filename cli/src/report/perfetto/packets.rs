//! Packets of a Perfetto trace, one by one: each text is sent once and stands behind a number from then on.

use std::collections::HashMap;
use std::io::Write;

use anyhow::Result;
use prost::Message;

use super::proto::{
    Clock, ClockSnapshot, DebugAnnotation, Interned, InternedData, TracePacket,
    TracePacketDefaults, TrackDescriptor, TrackEvent,
};

const REALTIME: u32 = 1;
const MONOTONIC: u32 = 3;
const BEGIN: u32 = 1;
const END: u32 = 2;
const INSTANT: u32 = 3;
/// `sequence_flags`: what was interned before does not count any more; what follows uses what was interned.
const STATE_CLEARED: u32 = 1;
const NEEDS_STATE: u32 = 2;
/// Field `packet` of a trace, length-delimited.
const PACKET_TAG: u8 = 0x0a;

/// Texts of one kind.
#[derive(Debug, Default)]
struct Texts {
    known: HashMap<String, u64>,
}

impl Texts {
    /// The text's number; the text itself goes to `fresh` the first time.
    fn get(&mut self, text: &str, fresh: &mut Vec<Interned>) -> u64 {
        if let Some(known) = self.known.get(text) {
            return *known;
        }
        let iid = self.known.len() as u64 + 1;
        self.known.insert(text.to_owned(), iid);
        fresh.push(Interned {
            iid: Some(iid),
            name: Some(text.to_owned()),
        });
        iid
    }
}

/// Writes packets.
pub struct Packets<'w> {
    out: &'w mut dyn Write,
    buffer: Vec<u8>,
    fresh: InternedData,
    names: Texts,
    categories: Texts,
    keys: Texts,
    values: Texts,
    stacks: HashMap<u32, u64>,
}

impl<'w> Packets<'w> {
    /// Of a new trace.
    pub fn new(out: &'w mut dyn Write) -> Self {
        Self {
            out,
            buffer: Vec::new(),
            fresh: InternedData::default(),
            names: Texts::default(),
            categories: Texts::default(),
            keys: Texts::default(),
            values: Texts::default(),
            stacks: HashMap::new(),
        }
    }

    fn packet(&mut self, mut packet: TracePacket) -> Result<()> {
        packet.trusted_packet_sequence_id = Some(1);
        if self.fresh != InternedData::default() {
            packet.interned_data = Some(std::mem::take(&mut self.fresh));
        }
        self.buffer.clear();
        self.buffer.push(PACKET_TAG);
        packet.encode_length_delimited(&mut self.buffer)?;
        self.out.write_all(&self.buffer)?;
        Ok(())
    }

    /// The trace's clock is `CLOCK_REALTIME`; `offset` added to `CLOCK_MONOTONIC` gives it.
    pub fn clocks(&mut self, begin: u64, offset: i64) -> Result<()> {
        let clock = |clock_id, timestamp| Clock {
            clock_id: Some(clock_id),
            timestamp: Some(timestamp),
        };
        self.packet(TracePacket {
            clock_snapshot: Some(ClockSnapshot {
                clocks: vec![
                    clock(REALTIME, begin),
                    clock(
                        MONOTONIC,
                        begin.saturating_add_signed(offset.saturating_neg()),
                    ),
                ],
                primary_trace_clock: Some(REALTIME),
            }),
            sequence_flags: Some(STATE_CLEARED),
            trace_packet_defaults: Some(TracePacketDefaults {
                timestamp_clock_id: Some(REALTIME),
            }),
            ..TracePacket::default()
        })
    }

    /// A track, before its first event.
    pub fn describe(&mut self, track: TrackDescriptor) -> Result<()> {
        self.packet(TracePacket {
            track_descriptor: Some(track),
            ..TracePacket::default()
        })
    }

    /// A slice begins; `flow` is the arrow it is on.
    pub fn begin(
        &mut self,
        time: u64,
        track: u64,
        category: &str,
        name_iid: u64,
        debug_annotations: Vec<DebugAnnotation>,
        flow: Option<u64>,
    ) -> Result<()> {
        let event = TrackEvent {
            r#type: Some(BEGIN),
            name_iid: Some(name_iid),
            category_iids: vec![self.category(category)],
            debug_annotations,
            flow_ids: flow.into_iter().collect(),
            track_uuid: Some(track),
        };
        self.event(time, event)
    }

    /// A moment.
    pub fn instant(
        &mut self,
        time: u64,
        track: u64,
        category: &str,
        name_iid: u64,
        debug_annotations: Vec<DebugAnnotation>,
    ) -> Result<()> {
        let event = TrackEvent {
            r#type: Some(INSTANT),
            name_iid: Some(name_iid),
            category_iids: vec![self.category(category)],
            debug_annotations,
            track_uuid: Some(track),
            ..TrackEvent::default()
        };
        self.event(time, event)
    }

    /// The innermost slice of a track ends.
    pub fn end(&mut self, time: u64, track: u64) -> Result<()> {
        let event = TrackEvent {
            r#type: Some(END),
            track_uuid: Some(track),
            ..TrackEvent::default()
        };
        self.event(time, event)
    }

    fn event(&mut self, time: u64, event: TrackEvent) -> Result<()> {
        self.packet(TracePacket {
            timestamp: Some(time),
            sequence_flags: Some(NEEDS_STATE),
            track_event: Some(event),
            ..TracePacket::default()
        })
    }

    /// Number of an event's name.
    pub fn event_name(&mut self, name: &str) -> u64 {
        self.names.get(name, &mut self.fresh.event_names)
    }

    fn category(&mut self, category: &str) -> u64 {
        self.categories
            .get(category, &mut self.fresh.event_categories)
    }

    fn annotation(&mut self, key: &str) -> DebugAnnotation {
        let iid = self.keys.get(key, &mut self.fresh.debug_annotation_names);
        DebugAnnotation {
            name_iid: Some(iid),
            ..DebugAnnotation::default()
        }
    }

    /// A number as argument of an event.
    pub fn uint(&mut self, key: &str, value: impl Into<u64>) -> DebugAnnotation {
        DebugAnnotation {
            uint_value: Some(value.into()),
            ..self.annotation(key)
        }
    }

    /// See [`Packets::uint`].
    pub fn int(&mut self, key: &str, value: impl Into<i64>) -> DebugAnnotation {
        DebugAnnotation {
            int_value: Some(value.into()),
            ..self.annotation(key)
        }
    }

    /// A text as argument of an event.
    pub fn text(&mut self, key: &str, value: &str) -> DebugAnnotation {
        let iid = self
            .values
            .get(value, &mut self.fresh.debug_annotation_string_values);
        DebugAnnotation {
            string_value_iid: Some(iid),
            ..self.annotation(key)
        }
    }

    /// A CPU stack as argument; put into words once.
    pub fn stack(&mut self, stack: u32, words: impl FnOnce() -> String) -> DebugAnnotation {
        let known = self.stacks.get(&stack).copied();
        let annotation = match known {
            Some(iid) => DebugAnnotation {
                string_value_iid: Some(iid),
                ..self.annotation("stack")
            },
            None => self.text("stack", &words()),
        };
        if let Some(iid) = annotation.string_value_iid {
            self.stacks.insert(stack, iid);
        }
        annotation
    }

    /// Hands everything to the file.
    pub fn flush(&mut self) -> Result<()> {
        self.out.flush()?;
        Ok(())
    }
}
