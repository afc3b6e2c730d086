//! The block as JSON; everything that is known, whether it matters or not.

use std::sync::atomic::Ordering::Relaxed;

use parcagpu_abi::status::{Counter, Status, UNKNOWN};
use serde_json::{Map, Value, json};

use super::Reading;
use super::facts::{configuration, outstanding, reason, state_name, uuid};
use crate::discover::Found;

/// One process.
pub(super) fn to_json(reading: &Reading) -> Value {
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
    let consumers: Vec<Value> = reading
        .consumers
        .iter()
        .map(|c| json!({"pid": c.pid, "comm": c.comm, "attachments": c.attachments}))
        .collect();
    put("consumers", consumers.into());
    put("attachments_of_unknown_consumers", reading.unknown().into());
    let inherited = reading
        .inherited_from
        .filter(|_| reading.others() != Some(0));
    put("attachments_inherited_from", inherited.into());
    let why = reading.unknown().is_some_and(|n| n > 0);
    put(
        "why_consumers_are_unknown",
        why.then_some(reading.why_unknown.as_str()).into(),
    );
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
