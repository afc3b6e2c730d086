//! `parcagpu status`: what every process with the library says about itself.

use std::process::ExitCode;
use std::sync::atomic::Ordering::Relaxed;

use anyhow::Result;
use parcagpu_abi::status::{Counter, Device, State, Status, UNKNOWN};
use serde_json::{Map, Value, json};

use crate::block;
use crate::choice::Choice;
use crate::demangle::clean;
use crate::discover::{self, Found, Scanner};
use crate::options::{Chosen, StatusOptions};
use crate::preflight;
use crate::refusal::refuse;
use crate::text::{clock_ns, count, duration};
use crate::watch;

/// One process, read.
struct Reading {
    found: Found,
    comm: String,
    /// The block, or why there is none.
    status: Result<Box<Status>, String>,
    /// Probes somebody listens to.
    listening: Result<Vec<(&'static str, u16)>, String>,
}

/// `parcagpu status`
pub fn status(options: &StatusOptions) -> Result<ExitCode> {
    let readings = collect(&options.chosen)?;
    if options.json {
        let list: Vec<Value> = readings.iter().map(to_json).collect();
        println!("{}", Value::Array(list));
    } else if readings.is_empty() {
        let chosen = !Choice::of(&options.chosen)?.is_all();
        let which = if chosen { " chosen" } else { "" };
        println!("no{which} process has a library with probes of provider parcagpu");
    } else {
        let texts: Vec<String> = readings.iter().map(to_text).collect();
        print!("{}", texts.join("\n"));
    }
    Ok(ExitCode::SUCCESS)
}

fn collect(chosen: &Chosen) -> Result<Vec<Reading>> {
    let choice = Choice::of(chosen)?;
    let mut scanner = Scanner::default();
    for pid in choice.given() {
        let found = scanner.scan_process(*pid).map_err(|e| {
            let why = preflight::closed(&e);
            refuse(format!("cannot look into process {pid}: {why}"))
        })?;
        if found.is_empty() {
            return Err(refuse(format!(
                "process {pid} does not map a library with our probes"
            )));
        }
    }
    let found = scanner.scan(&choice);
    watch::tell_refused(scanner.refused());
    Ok(found.into_iter().map(read).collect())
}

fn read(found: Found) -> Reading {
    let status = match block::read(&found) {
        Ok(Some(status)) => Ok(status),
        Ok(None) => Err("the library has no status block".to_owned()),
        Err(e) => Err(format!("{e:#}")),
    };
    Reading {
        comm: discover::comm(found.pid),
        status,
        listening: block::semaphores(&found).map_err(|e| format!("{e:#}")),
        found,
    }
}

fn counter(n: u64) -> String {
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

/// The UUID of a device as the driver's tools show it.
pub fn uuid(device: &Device) -> String {
    let hex: Vec<String> = device
        .uuid
        .iter()
        .map(|b| format!("{:02x}", b.load(Relaxed)))
        .collect();
    let part = |from: usize, to: usize| hex[from..to].concat();
    format!(
        "GPU-{}-{}-{}-{}-{}",
        part(0, 4),
        part(4, 6),
        part(6, 8),
        part(8, 10),
        part(10, 16)
    )
}

fn driver_version(n: u32) -> String {
    format!("{}.{}", n / 1000, n % 1000 / 10)
}

fn choice(names: &[&str], n: u32) -> String {
    names
        .get(n as usize)
        .map_or_else(|| n.to_string(), |s| (*s).to_owned())
}

fn state_name(status: &Status) -> String {
    let n = status.state.load(Relaxed);
    State::from_u32(n).map_or_else(|| format!("unknown ({n})"), |s| s.name().to_owned())
}

fn to_text(reading: &Reading) -> String {
    let Found {
        pid,
        library,
        deleted,
        ..
    } = &reading.found;
    let mut out = format!("PID {pid} ({})\n", clean(&reading.comm));
    let mut line = |key: &str, value: String| out += &format!("  {key:<13} {}\n", clean(&value));
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
        }
        Err(e) => line("listened to", format!("unknown: {e}")),
    }
    match &reading.status {
        Ok(status) => block_text(status, &mut line),
        Err(e) => line("state", format!("unknown: {e}")),
    }
    out
}

/// Why the state is what it is. A process that has not used CUDA has written nothing yet.
fn reason(status: &Status) -> String {
    let told = status.reason.load();
    if told.is_empty() && status.state.load(Relaxed) == State::Absent as u32 {
        return "this process has not initialised CUDA".to_owned();
    }
    told
}

/// The lines of a block for people.
pub fn block_text(status: &Status, line: &mut dyn FnMut(&str, String)) {
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
    match status.cupti_version.load(Relaxed) {
        0 => line("CUPTI", "not loaded".to_owned()),
        v => line(
            "CUPTI",
            format!("version {v}, {}", status.cupti_path.load()),
        ),
    }
    match status.driver_version.load(Relaxed) {
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
    for c in Counter::ALL {
        line(
            "",
            format!("{:<26} {:>20}", c.name(), counter(status.get(*c))),
        );
    }
    line(
        "",
        format!(
            "{:<26} {:>20}",
            "ids_outstanding",
            counter(outstanding(status))
        ),
    );
}

fn outstanding(status: &Status) -> u64 {
    let needed = [
        Counter::EagerSampled,
        Counter::GraphSampled,
        Counter::IdsMatched,
        Counter::IdsExpired,
    ];
    if needed.iter().any(|c| status.get(*c) == UNKNOWN) {
        return UNKNOWN;
    }
    status.ids_outstanding()
}

/// The configuration in force, under the names of the environment variables without their prefix.
fn configuration(status: &Status) -> Map<String, Value> {
    let c = &status.config;
    let rate = |bits: u64| {
        let rate = f64::from_bits(bits);
        if rate.is_nan() {
            json!("off")
        } else {
            json!(rate)
        }
    };
    let mut map = Map::new();
    let mut put = |name: &str, value: Value| map.insert(name.to_owned(), value);
    put("rate_limit", rate(c.rate_limit.load(Relaxed)));
    put("graph_rate_limit", rate(c.graph_rate_limit.load(Relaxed)));
    put("pc_sampling_rate", rate(c.pc_sampling_rate.load(Relaxed)));
    put("sampling_factor", c.sampling_factor.load(Relaxed).into());
    put("pc_hw_buffer_mb", c.pc_hw_buffer_mb.load(Relaxed).into());
    let mode = choice(
        &["continuous", "serialized"],
        c.pc_sampling_mode.load(Relaxed),
    );
    put("pc_sampling_mode", mode.into());
    let callbacks = choice(&["driver", "runtime"], c.api_callbacks.load(Relaxed));
    put("api_callbacks", callbacks.into());
    let engine = choice(
        &["auto", "gum", "detour", "none"],
        c.hook_engine.load(Relaxed),
    );
    put("hook_engine", engine.into());
    put(
        "yield",
        choice(&["auto", "never"], c.yield_mode.load(Relaxed)).into(),
    );
    put("cubin_memory_mb", c.cubin_memory_mb.load(Relaxed).into());
    put("debug", c.debug.load(Relaxed).into());
    map
}

fn to_json(reading: &Reading) -> Value {
    let Found {
        pid,
        library,
        deleted,
        ..
    } = &reading.found;
    let mut out = json!({
        "pid": pid, "comm": reading.comm, "library": library.path, "library_deleted": deleted,
    });
    let mut put = |key: &str, value: Value| out[key] = value;
    match &reading.listening {
        Ok(raised) => {
            let map: Map<String, Value> = raised
                .iter()
                .map(|(name, n)| ((*name).to_owned(), (*n).into()))
                .collect();
            put("semaphores", map.into());
        }
        Err(e) => put("semaphores_error", e.as_str().into()),
    }
    match &reading.status {
        Ok(status) => block_json(status, &mut put),
        Err(e) => put("status_error", e.as_str().into()),
    }
    out
}

/// The fields of a block.
pub fn block_json(status: &Status, put: &mut dyn FnMut(&str, Value)) {
    let known = |n: u64| if n == UNKNOWN { Value::Null } else { n.into() };
    put("state", state_name(status).into());
    put("reason", reason(status).into());
    put("block_pid", status.pid.load(Relaxed).into());
    put("started_ns", status.started_ns.load(Relaxed).into());
    put("state_since_ns", status.state_since_ns.load(Relaxed).into());
    put("engine", status.engine.load().into());
    put("engine_reason", status.engine_reason.load().into());
    put("cupti_version", status.cupti_version.load(Relaxed).into());
    put("cupti_path", status.cupti_path.load().into());
    put("cupti_holder", status.cupti_holder.load().into());
    put("driver_version", status.driver_version.load(Relaxed).into());
    put("configuration", configuration(status).into());
    put(
        "oldest_buffer_ns",
        status.oldest_buffer_ns.load(Relaxed).into(),
    );
    put("last_error", status.last_error.load().into());
    put(
        "last_error_code",
        status.last_error_code.load(Relaxed).into(),
    );
    let mut counters: Map<String, Value> = Counter::ALL
        .iter()
        .map(|c| (c.name().to_owned(), known(status.get(*c))))
        .collect();
    counters.insert("ids_outstanding".to_owned(), known(outstanding(status)));
    put("counters", counters.into());
    let devices: Vec<Value> = status
        .devices
        .iter()
        .filter(|d| d.known.load(Relaxed) == 1)
        .map(|d| json!({"ordinal": d.ordinal.load(Relaxed), "uuid": uuid(d)}))
        .collect();
    put("devices", devices.into());
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn unknown_is_said_and_numbers_are_grouped() {
        let status = Status::new();
        status.counters[Counter::EagerSeen as usize].store(UNKNOWN, Relaxed);
        status.add(Counter::RecordsReceived, 12_345);
        status.devices[0].known.store(1, Relaxed);
        status.devices[0].uuid[15].store(0xab, Relaxed);
        let mut text = String::new();
        block_text(&status, &mut |key, value| {
            text += &format!("{key}={value}\n")
        });
        assert!(text.contains("state=absent\n"));
        let squeezed: Vec<&str> = text.split_whitespace().collect();
        let squeezed = squeezed.join(" ");
        assert!(squeezed.contains("eager_launches_seen unknown"));
        assert!(squeezed.contains("records_received 12,345"));
        assert!(text.contains("GPU-00000000-0000-0000-0000-0000000000ab"));
        let mut json = json!({});
        block_json(&status, &mut |key, value| json[key] = value);
        assert_eq!(json["counters"]["eager_launches_seen"], Value::Null);
        assert_eq!(json["counters"]["records_received"], 12_345);
    }

    #[test]
    fn versions() {
        assert_eq!(driver_version(13_000), "13.0");
        assert_eq!(driver_version(12_080), "12.8");
        assert_eq!(choice(&["a"], 7), "7");
    }
}
