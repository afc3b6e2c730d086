//! The block for people: what matters, and every counter if that is wanted.

use std::sync::atomic::Ordering::Relaxed;

use parcagpu_abi::status::{Counter, State, Status, UNKNOWN};
use serde_json::Value;

use super::Reading;
use super::facts::{configuration, driver_version, outstanding, reason, state_name, uuid};
use crate::colour;
use crate::demangle::clean;
use crate::discover::Found;
use crate::text::{clock_ns, count, duration, percent, plural};

/// How to print.
#[derive(Clone, Copy, Debug)]
pub struct Style {
    /// All counters, also those that are 0.
    pub verbose: bool,
    /// On a terminal that has them.
    pub colours: bool,
}

/// Losses and what went wrong: shown when they are not 0.
const TROUBLE: [(Counter, &str, &str); 9] = [
    (
        Counter::RecordsDroppedByCupti,
        "kernel record",
        "dropped by CUPTI",
    ),
    (Counter::IdsExpired, "launch", "given up without a record"),
    (Counter::BuffersRefused, "buffer", "refused (pool full)"),
    (Counter::BuffersForeign, "buffer", "of others passed over"),
    (Counter::SwitchBusy, "launch", "not sampled (switch busy)"),
    (Counter::NvtxDropped, "NVTX event", "dropped"),
    (Counter::PcDropped, "PC sample", "dropped by the hardware"),
    (Counter::CubinsRefused, "cubin", "not kept (cap)"),
    (Counter::Panics, "panic", "stopped"),
];

fn number(n: u64) -> String {
    if n == UNKNOWN {
        "unknown".to_owned()
    } else {
        count(n)
    }
}

/// Time since `then` on `clock`; `None` when it is not set.
fn ago(clock: libc::clockid_t, then: u64) -> Option<String> {
    (then != 0).then(|| duration(clock_ns(clock).saturating_sub(then).into()))
}

/// One process; ends with a newline.
pub fn to_text(reading: &Reading, style: Style) -> String {
    let Found {
        pid,
        library,
        deleted,
        ..
    } = &reading.found;
    let mut out = format!("PID {pid} ({})\n", clean(&reading.comm));
    let mut line = |key: &str, value: String| {
        let value = clean(&value);
        let value = match key {
            "state" => state_colour(&value, style.colours),
            "lost" | "last error" => colour::yellow(&value, style.colours),
            _ => value,
        };
        out += &format!("  {key:<13} {value}\n");
    };
    let gone = if *deleted {
        " (deleted or replaced on disk)"
    } else {
        ""
    };
    line("library", format!("{}{gone}", library.path));
    match &reading.listening {
        Ok(raised) if raised.is_empty() => line("listened to", "nothing".to_owned()),
        Ok(raised) => {
            let names: Vec<String> = raised
                .iter()
                .map(|(name, n)| format!("{name} ({n})"))
                .collect();
            line("listened to", names.join(", "));
            line("consumers", consumers(reading));
        }
        Err(e) => line("listened to", format!("unknown: {e}")),
    }
    match &reading.status {
        Ok(status) => block_text(status, style.verbose, &mut line),
        Err(e) => line("state", format!("unknown: {e}")),
    }
    out
}

fn state_colour(value: &str, colours: bool) -> String {
    match value.split(' ').next() {
        Some("active") => colour::green(value, colours),
        Some("yielded") => colour::yellow(value, colours),
        Some("stopped" | "unknown") => colour::red(value, colours),
        _ => value.to_owned(),
    }
}

fn consumers(reading: &Reading) -> String {
    let mut parts: Vec<String> = reading
        .consumers
        .iter()
        .map(|c| format!("{} (PID {})", c.comm, c.pid))
        .collect();
    match (reading.others(), reading.inherited_from) {
        (None | Some(0), _) => {}
        (Some(_), Some(parent)) => parts.push(format!(
            "none of its own: forked from PID {parent}, which is watched; nothing comes from here"
        )),
        (Some(n), None) => parts.push(format!(
            "{} of unknown holders: {}",
            plural(n, "attachment"),
            reading.why_unknown
        )),
    }
    parts.join(", ")
}

/// The lines of a block.
pub fn block_text(status: &Status, verbose: bool, line: &mut dyn FnMut(&str, String)) {
    let since = ago(libc::CLOCK_REALTIME, status.state_since_ns.load(Relaxed));
    let since = since.map_or_else(String::new, |s| format!(" for {s}"));
    line("state", format!("{}{since}", state_name(status)));
    let text = |key: &str, value: String, line: &mut dyn FnMut(&str, String)| {
        if !value.is_empty() {
            line(key, value);
        }
    };
    text("reason", reason(status), line);
    text("held by", status.cupti_holder.load(), line);
    let engine_reason = status.engine_reason.load();
    let because = if engine_reason.is_empty() {
        String::new()
    } else {
        format!(" ({engine_reason})")
    };
    text("hook engine", status.engine.load() + &because, line);
    let absent = status.state.load(Relaxed) == State::Absent as u32;
    match status.cupti_version.load(Relaxed) {
        0 if absent && !verbose => {}
        0 => line("CUPTI", "not loaded".to_owned()),
        v => line(
            "CUPTI",
            format!("version {v}, {}", status.cupti_path.load()),
        ),
    }
    match status.driver_version.load(Relaxed) {
        0 if absent && !verbose => {}
        0 => line("driver", "not known".to_owned()),
        v => line("driver", driver_version(v)),
    }
    if let Some(s) = ago(libc::CLOCK_REALTIME, status.started_ns.load(Relaxed)) {
        line("session", format!("started {s} ago"));
        let parts: Vec<String> = configuration(status)
            .iter()
            .map(|(name, value)| match value {
                Value::String(s) => format!("{name} {s}"),
                other => format!("{name} {other}"),
            })
            .collect();
        line("configuration", parts.join(", "));
    }
    if let Some(age) = ago(libc::CLOCK_MONOTONIC, status.oldest_buffer_ns.load(Relaxed)) {
        line("oldest buffer", format!("{age} with CUPTI"));
    }
    let last = status.last_error.load();
    if !last.is_empty() {
        line(
            "last error",
            format!("{last} (code {})", status.last_error_code.load(Relaxed)),
        );
    }
    for device in status.devices.iter().filter(|d| d.known.load(Relaxed) == 1) {
        line(
            "device",
            format!("{} {}", device.ordinal.load(Relaxed), uuid(device)),
        );
    }
    summary(status, line);
    if verbose {
        counters(status, line);
    }
}

/// The counters that say whether all is well, in sentences.
fn summary(status: &Status, line: &mut dyn FnMut(&str, String)) {
    let get = |c: Counter| status.get(c);
    let launches = |seen: Counter, sampled: Counter| {
        let (seen, sampled) = (get(seen), get(sampled));
        let share = match seen {
            0 | UNKNOWN => String::new(),
            _ => format!(" ({})", percent(sampled.into(), seen.into())),
        };
        format!("{} seen, {} sampled{share}", number(seen), number(sampled))
    };
    if get(Counter::Activations) > 0 || get(Counter::EagerSeen) > 0 {
        line(
            "launches",
            launches(Counter::EagerSeen, Counter::EagerSampled),
        );
    }
    if get(Counter::GraphSeen) > 0 {
        line(
            "graphs",
            launches(Counter::GraphSeen, Counter::GraphSampled),
        );
    }
    let outstanding = outstanding(status);
    if get(Counter::RecordsMatched) > 0 || outstanding > 0 {
        let waiting = match outstanding {
            0 => String::new(),
            n => format!("; {} sampled without a record so far", number(n)),
        };
        let records = number(get(Counter::RecordsMatched));
        line("kernels", format!("{records} records{waiting}"));
    }
    if get(Counter::NvtxEvents) > 0 {
        line("NVTX", plural(get(Counter::NvtxEvents), "event"));
    }
    if get(Counter::PcSamples) > 0 {
        line("PC samples", number(get(Counter::PcSamples)));
    }
    if get(Counter::CubinsKept) > 0 {
        let cubins = plural(get(Counter::CubinsKept), "cubin");
        line(
            "code",
            format!("{cubins}, {} bytes", number(get(Counter::CubinBytes))),
        );
    }
    let lost: Vec<String> = TROUBLE
        .iter()
        .filter(|(c, _, _)| !matches!(get(*c), 0 | UNKNOWN))
        .map(|(c, noun, what)| format!("{} {what}", plural(get(*c), noun)))
        .collect();
    if !lost.is_empty() {
        line("lost", lost.join(", "));
    }
}

fn counters(status: &Status, line: &mut dyn FnMut(&str, String)) {
    let waiting = ("ids_outstanding", outstanding(status));
    let all = Counter::ALL.iter().map(|c| (c.name(), status.get(*c)));
    for (name, n) in all.chain([waiting]) {
        line("", format!("{name:<26} {:>20}", number(n)));
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::super::json::block_json;
    use super::*;

    fn shown(status: &Status, verbose: bool) -> String {
        let mut text = String::new();
        block_text(status, verbose, &mut |key, value| {
            text += &format!("{key}={value}\n");
        });
        text
    }

    #[test]
    fn unknown_is_said_and_numbers_are_grouped() {
        let status = Status::new();
        status.counters[Counter::EagerSeen as usize].store(UNKNOWN, Relaxed);
        status.add(Counter::RecordsReceived, 12_345);
        status.devices[0].known.store(1, Relaxed);
        status.devices[0].uuid[15].store(0xab, Relaxed);
        let text = shown(&status, true);
        assert!(text.contains("state=absent\n"));
        let squeezed: Vec<&str> = text.split_whitespace().collect();
        let squeezed = squeezed.join(" ");
        assert!(squeezed.contains("eager_launches_seen unknown"));
        assert!(squeezed.contains("records_received 12,345"));
        assert!(squeezed.contains("launches=unknown seen, 0 sampled"));
        assert!(text.contains("GPU-00000000-0000-0000-0000-0000000000ab"));
        let mut json = json!({});
        block_json(&status, &mut |key, value| json[key] = value);
        assert_eq!(json["counters"]["eager_launches_seen"], Value::Null);
        assert_eq!(json["counters"]["records_received"], 12_345);
    }

    #[test]
    fn what_matters_is_shown_and_the_rest_on_demand() {
        let status = Status::new();
        assert!(!shown(&status, false).contains("seen"));
        status.add(Counter::EagerSeen, 1_093);
        status.add(Counter::EagerSampled, 219);
        status.add(Counter::IdsMatched, 201);
        status.add(Counter::RecordsMatched, 201);
        status.add(Counter::NvtxDropped, 1);
        let text = shown(&status, false);
        assert!(
            text.contains("launches=1,093 seen, 219 sampled (20.0 %)\n"),
            "{text}"
        );
        assert!(text.contains("kernels=201 records; 18 sampled without a record so far\n"));
        assert!(text.contains("lost=1 NVTX event dropped\n"));
        assert!(!text.contains("buffers_requested"));
        assert!(shown(&status, true).contains("buffers_requested"));
    }
}
