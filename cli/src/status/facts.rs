//! What the block says, in words that text and JSON share.

use std::sync::atomic::Ordering::Relaxed;

use parcagpu_abi::status::{Counter, Device, State, Status, UNKNOWN};
use serde_json::{Map, Value, json};

/// The way the driver's tools write it.
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

pub(super) fn driver_version(n: u32) -> String {
    format!("{}.{}", n / 1000, n % 1000 / 10)
}

pub(super) fn choice(names: &[&str], n: u32) -> String {
    names
        .get(n as usize)
        .map_or_else(|| n.to_string(), |s| (*s).to_owned())
}

pub(super) fn state_name(status: &Status) -> String {
    let n = status.state.load(Relaxed);
    State::from_u32(n).map_or_else(|| format!("unknown ({n})"), |s| s.name().to_owned())
}

/// Why the state is what it is. A process that has not used CUDA has written nothing yet.
pub(super) fn reason(status: &Status) -> String {
    let told = status.reason.load();
    if told.is_empty() && status.state.load(Relaxed) == State::Absent as u32 {
        return "this process has not initialised CUDA".to_owned();
    }
    told
}

pub(super) fn outstanding(status: &Status) -> u64 {
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
pub(super) fn configuration(status: &Status) -> Map<String, Value> {
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn versions() {
        assert_eq!(driver_version(13_000), "13.0");
        assert_eq!(driver_version(12_080), "12.8");
        assert_eq!(choice(&["a"], 7), "7");
    }
}
