//! Events as JSON; the fields are listed in `parcagpu trace --help` and kept stable.

use serde_json::{Map, Value, json};

use crate::code::Place;
use crate::demangle::Demangler;
use crate::events::{Body, Event, Text, TextState};
use crate::pc::reasons::Reasons;

/// Name of an NVTX event's kind.
pub fn nvtx_kind(kind: u16) -> &'static str {
    match kind {
        1 => "push",
        2 => "pop",
        3 => "start",
        4 => "end",
        5 => "mark",
        _ => "unknown",
    }
}

/// Name of a resource's kind.
pub fn resource_kind(kind: u32) -> &'static str {
    match kind {
        1 => "os_thread",
        2 => "cuda_stream",
        3 => "cuda_device",
        4 => "cuda_kernel",
        5 => "nvtx_domain",
        _ => "unknown",
    }
}

/// Adds to a PC sample where its instruction lies and what its stall reasons are called.
pub fn add_place(line: &mut Value, place: &Place, reasons: &Reasons) {
    let name = |index: &Value| {
        let known = !reasons.is_empty();
        let index = index.as_u64().and_then(|i| u32::try_from(i).ok());
        index.filter(|_| known).map(|i| reasons.name(i))
    };
    if let Some(told) = line["stall_reasons"].as_array_mut() {
        for reason in told {
            reason["name"] = name(&reason["index"]).into();
        }
    }
    let function = place.function.as_deref();
    let source = place.line.as_ref();
    line["function"] = function.map(String::from_utf8_lossy).into();
    line["place"] = place.knowledge.name().into();
    line["file"] = source.map(|l| &*l.file).into();
    line["line"] = source.map(|l| l.line).into();
    line["mnemonic"] = place.mnemonic.as_deref().into();
}

/// The JSON form of an event.
pub fn line(event: &Event<'_>, demangler: &mut Demangler) -> Value {
    let h = event.header;
    let mut line = Map::new();
    line.insert("time_ns".into(), h.time_ns.into());
    line.insert("pid".into(), h.pid.into());
    line.insert("tid".into(), h.tid.into());
    line.insert("probe".into(), h.probe().name.into());
    let mut put = |fields: Value| {
        if let Value::Object(fields) = fields {
            line.extend(fields);
        }
    };
    let mut named = |text: &Text<'_>| {
        json!({
            "name": text.lossy(),
            "name_state": text.state.name(),
            "demangled": demangler.name(text.bytes, text.state == TextState::Cut),
        })
    };
    match &event.body {
        Body::Correlation { id, cbid, name, .. } => {
            put(json!({"correlation_id": id, "cbid": cbid}));
            put(named(name));
        }
        Body::Kernel(k) => {
            put(json!({
                "correlation_id": k.correlation_id, "start_ns": k.start, "end_ns": k.end,
                "device_id": k.device, "context_id": k.context, "stream_id": k.stream,
                "graph_id": k.graph_id, "graph_node_id": k.graph_node_id,
                "grid": k.grid, "block": k.block, "registers": k.registers,
                "static_shared_memory": k.static_shared_memory,
                "dynamic_shared_memory": k.dynamic_shared_memory, "kind": k.kind,
            }));
            put(named(&k.name));
        }
        Body::PcSample {
            crc,
            pc_offset,
            function_index,
            correlation_id,
            reasons,
            reason_count,
            name,
        } => {
            put(json!({
                "cubin_crc": crc, "pc_offset": pc_offset, "function_index": function_index,
                "correlation_id": correlation_id, "stall_reason_count": reason_count,
                "stall_reasons": reasons.iter()
                    .map(|(index, samples)| json!({"index": index, "samples": samples}))
                    .collect::<Vec<_>>(),
            }));
            put(named(name));
        }
        Body::StallReasons { count, names } => put(json!({"count": count, "names": names})),
        Body::GpuConfig {
            device,
            sampling_factor,
            clock_khz,
            sm_count,
        } => put(json!({
            "device_id": device, "sampling_factor": sampling_factor,
            "clock_khz": clock_khz, "sm_count": sm_count,
        })),
        Body::CubinLoaded { crc, address, size } => {
            put(json!({"cubin_crc": crc, "address": address, "size": size}));
        }
        Body::CubinUnloaded { crc } => put(json!({"cubin_crc": crc})),
        Body::Error {
            code,
            message,
            component,
        } => put(json!({
            "code": code, "message": message.lossy(), "message_state": message.state.name(),
            "component": String::from_utf8_lossy(component),
        })),
        Body::Nvtx {
            timestamp_ns,
            tid,
            correlation_id,
            domain,
            kind,
            flags,
            color,
            device,
            payload,
            range_id,
            message,
        } => put(json!({
            "timestamp_ns": timestamp_ns, "thread": tid, "correlation_id": correlation_id,
            "domain_id": domain, "kind": nvtx_kind(*kind), "payload_type": flags & 15,
            "payload": payload, "color": color, "device_id": device, "range_id": range_id,
            "message": message.lossy(), "message_state": message.state.name(),
        })),
        Body::ResourceName { kind, id, name } => put(json!({
            "kind": resource_kind(*kind), "id": id, "name": name.lossy(),
            "name_state": name.state.name(),
        })),
    }
    Value::Object(line)
}
