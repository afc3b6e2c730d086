//! One JSON object per line and record; the fields are listed in `parcagpu report --help` and kept stable.

use std::io::Write;

use anyhow::Result;
use serde_json::{Value, json};

use super::stalls::{reason_tables, stalls};
use super::sums::total_ns;
use super::view::{View, gpu_ns};
use crate::recording::model::{Frame, RangeKind};

/// Writes all records.
pub fn write(view: &View<'_>, out: &mut dyn Write) -> Result<()> {
    let mut line = |value: Value| -> Result<()> {
        serde_json::to_writer(&mut *out, &value)?;
        out.write_all(b"\n")?;
        Ok(())
    };
    line(recording(view))?;
    for i in (0..).zip(&view.rec.processes).map(|(i, _)| i) {
        line(process(view, i))?;
    }
    for id in 1..view.rec.stacks.len() as u32 {
        let frames: Vec<Value> = view.stack(id).map(|f| frame(view, f)).collect();
        line(json!({"type": "stack", "id": id, "frames": frames}))?;
    }
    for launch in &view.rec.launches {
        line(json!({
            "type": "launch", "time_ns": launch.time_ns, "pid": view.pid(launch.process),
            "tid": launch.tid, "correlation_id": launch.correlation_id, "cbid": launch.cbid,
            "name": raw(view, launch.name), "demangled": view.name(launch.name), "stack": (launch.stack != 0).then_some(launch.stack),
        }))?;
    }
    for k in &view.rec.kernels {
        line(json!({
            "type": "kernel", "start_ns": gpu_ns(k).map(|_| k.start_ns),
            "end_ns": gpu_ns(k).map(|_| k.end_ns), "gpu_ns": gpu_ns(k),
            "pid": view.pid(k.process), "device": k.device, "context": k.context,
            "stream": k.stream, "correlation_id": k.correlation_id, "graph_id": k.graph_id,
            "graph_node_id": k.graph_node_id, "grid": k.grid, "block": k.block,
            "registers": k.registers, "static_shared_memory": k.static_shared_memory,
            "dynamic_shared_memory": k.dynamic_shared_memory, "name": raw(view, k.name),
            "demangled": view.name(k.name), "launch_told": k.launch.is_some(),
        }))?;
    }
    let tables = reason_tables(view);
    for sample in &view.rec.pc_samples {
        let names = tables
            .get(sample.process as usize)
            .filter(|t| !t.is_empty());
        let reasons: Vec<Value> = sample
            .reasons
            .iter()
            .map(|(index, samples)| {
                let name = names.map(|table| table.name(*index));
                json!({"index": index, "name": name, "samples": samples})
            })
            .collect();
        line(json!({
            "type": "pc_sample", "time_ns": sample.time_ns, "pid": view.pid(sample.process),
            "cubin_crc": sample.crc, "pc_offset": sample.pc_offset,
            "function": raw(view, sample.function), "demangled": view.name(sample.function),
            "correlation_id": sample.correlation_id, "stall_reasons": reasons,
            "file": some(view.name(sample.file)), "line": (sample.line != 0).then_some(sample.line),
            "mnemonic": some(view.name(sample.mnemonic)),
        }))?;
    }
    for range in &view.rec.ranges {
        line(json!({
            "type": "range", "kind": kind(range.kind), "start_ns": range.start_ns,
            "end_ns": range.end_ns, "pid": view.pid(range.process), "tid": range.tid,
            "domain": some(view.name(range.domain)), "name": view.name(range.name),
            "color": range.color,
        }))?;
    }
    for error in &view.rec.errors {
        line(json!({
            "type": "error", "time_ns": error.time_ns, "pid": view.pid(error.process),
            "code": error.code, "component": error.component, "message": error.message,
        }))?;
    }
    Ok(())
}

fn recording(view: &View<'_>) -> Value {
    let (rec, seen) = (view.rec, &view.coverage);
    json!({
        "type": "recording", "version": rec.about.version, "command": rec.about.command,
        "kernel_release": rec.about.kernel_release, "host": some(&rec.about.host),
        "utc_offset_s": rec.about.utc_offset_s, "begin_ns": rec.about.begin_ns,
        "end_ns": rec.about.end_ns, "clock_offset_ns": rec.clocks.offset_ns,
        "clock_uncertainty_ns": rec.clocks.uncertainty_ns, "clock_drift_ns": rec.clocks.drift_ns,
        "truncated": rec.truncated, "damage": rec.damage, "launches_sampled": seen.sampled, "launches_seen": seen.seen,
        "whole": seen.whole, "kernels": seen.kernels, "kernels_without_times": seen.no_time,
        "kernels_without_launch": seen.no_launch, "launches_without_kernel": seen.no_kernel, "launches_without_stack": seen.no_stack,
        "gpu_ns": u64::try_from(total_ns(view)).unwrap_or(u64::MAX),
        "pc_samples": stalls(view).tally.samples, "losses": losses(&seen.losses), "notes": view.notes(),
    })
}

fn process(view: &View<'_>, index: u32) -> Value {
    let p = &view.rec.processes[index as usize];
    let devices: Vec<Value> = p
        .devices
        .iter()
        .map(|(ordinal, d)| {
            json!({
                "device": ordinal, "model": some(&d.model), "name": some(&d.name), "uuid": some(&d.uuid), "sampling_factor": d.sampling_factor,
                "clock_khz": d.clock_khz, "sm_count": d.sm_count,
            })
        })
        .collect();
    json!({
        "type": "process", "pid": p.pid, "comm": p.comm, "threads": p.threads,
        "streams": p.streams, "devices": devices, "launches_sampled": p.launches_sampled,
        "launches_seen": p.launches_seen, "whole": p.is_whole(), "losses": losses(&p.losses),
    })
}

fn losses(losses: &[(String, u64)]) -> Value {
    losses
        .iter()
        .map(|(what, n)| json!({"what": what, "count": n}))
        .collect()
}

fn frame(view: &View<'_>, frame: &Frame) -> Value {
    json!({
        "function": view.name(frame.function), "module": some(view.name(frame.module)),
        "file": some(view.name(frame.file)), "line": (frame.line != 0).then_some(frame.line),
    })
}

fn kind(kind: RangeKind) -> &'static str {
    match kind {
        RangeKind::Pushed => "push",
        RangeKind::Started => "start",
        RangeKind::Mark => "mark",
    }
}

fn raw<'v>(view: &'v View<'_>, name: u32) -> &'v str {
    view.rec.names.get(name as usize).map_or("", |name| name)
}

fn some(text: &str) -> Option<&str> {
    (!text.is_empty()).then_some(text)
}
