//! What a line says of an event, for people.

use super::Tracer;
use crate::code::Place;
use crate::demangle::clean;
use crate::events::{Body, Event, Text, TextState};
use crate::json::{nvtx_kind, resource_kind};
use crate::pc::reasons::Reasons;
use crate::text::duration;

impl Tracer {
    /// A PC sample with what is known of its code.
    pub(super) fn sample_fields(&mut self, event: &Event<'_>, place: &Place) -> String {
        let Body::PcSample {
            crc,
            pc_offset,
            correlation_id,
            reasons,
            name,
            ..
        } = &event.body
        else {
            return self.fields(&event.body);
        };
        let none = Reasons::default();
        let known = self.reasons.get(&event.header.process()).unwrap_or(&none);
        let reasons: Vec<String> = reasons
            .iter()
            .map(|(i, n)| format!("{}:{n}", clean(&known.name(*i).replace(' ', "_"))))
            .collect();
        let spot = match &place.line {
            Some(line) => format!("{}:{}", clean(&line.file), line.line),
            None => format!("({})", place.knowledge.words()),
        };
        let name = match &place.function {
            Some(whole) => self.name(&Text {
                bytes: whole,
                state: TextState::Whole,
            }),
            None => self.name(name),
        };
        format!(
            "crc={crc:#010x} pc={pc_offset:#x} id={correlation_id} reasons={} at={spot} {} {name}",
            reasons.join(","),
            place.mnemonic.as_deref().unwrap_or("?"),
        )
    }

    /// Any other event.
    pub(super) fn fields(&mut self, body: &Body<'_>) -> String {
        match body {
            Body::Correlation { id, cbid, name, .. } => {
                format!("id={id} cbid={cbid} {}", self.name(name))
            }
            Body::Kernel(k) => {
                let time = k
                    .duration()
                    .map_or("no time".to_owned(), |ns| duration(ns.into()));
                let graph = if k.graph_id == 0 && k.graph_node_id == 0 {
                    String::new()
                } else {
                    format!(" graph={} node={}", k.graph_id, k.graph_node_id)
                };
                format!(
                    "id={} device={} stream={}{graph} grid={} block={} {time} {}",
                    k.correlation_id,
                    k.device,
                    k.stream,
                    triple(k.grid),
                    triple(k.block),
                    self.name(&k.name)
                )
            }
            Body::PcSample {
                crc,
                pc_offset,
                correlation_id,
                reasons,
                name,
                ..
            } => {
                let reasons: Vec<String> =
                    reasons.iter().map(|(i, n)| format!("{i}:{n}")).collect();
                format!(
                    "crc={crc:#010x} pc={pc_offset:#x} id={correlation_id} reasons={} {}",
                    reasons.join(","),
                    self.name(name)
                )
            }
            Body::StallReasons { count, names } => {
                format!("count={count} {}", clean(&names.join(",")))
            }
            Body::GpuConfig {
                device,
                sampling_factor,
                clock_khz,
                sm_count,
            } => format!(
                "device={device} factor={sampling_factor} clock={clock_khz}kHz sms={sm_count}"
            ),
            Body::CubinLoaded { crc, address, size } => {
                format!("crc={crc:#010x} address={address:#x} size={size}")
            }
            Body::CubinUnloaded { crc } => format!("crc={crc:#010x}"),
            Body::Error {
                code,
                message,
                component,
            } => format!(
                "code={code} {}: {}",
                clean(&String::from_utf8_lossy(component)),
                clean(&message.lossy())
            ),
            Body::Nvtx {
                tid,
                domain,
                kind,
                range_id,
                message,
                ..
            } => format!(
                "{} thread={tid} domain={domain} range={range_id} {}",
                nvtx_kind(*kind),
                clean(&message.lossy())
            ),
            Body::ResourceName { kind, id, name } => {
                format!("{} id={id} {}", resource_kind(*kind), clean(&name.lossy()))
            }
        }
    }
    fn name(&mut self, text: &Text<'_>) -> String {
        match text.state {
            TextState::Null => "(null)".to_owned(),
            TextState::Unreadable => "(unreadable)".to_owned(),
            state if self.style.raw_names => {
                clean(&text.lossy()) + if state == TextState::Cut { "…" } else { "" }
            }
            state => self.demangler.name(text.bytes, state == TextState::Cut),
        }
    }
}

fn triple([x, y, z]: [i32; 3]) -> String {
    format!("{x}x{y}x{z}")
}
