//! What a test scripts about PC sampling: `MOCK_CUPTI_PC`, see the crate's documentation.

use std::sync::OnceLock;

use crate::settings::{text, unusable};

/// The script of this process.
#[derive(Debug, PartialEq, Eq)]
pub struct PcScript {
    /// Samples of a kernel that runs 1 ms, at a period of 2^20 cycles.
    pub per_ms: u64,
    /// Places in a kernel's code that samples are at.
    pub pcs: u64,
    /// That of them which comes most.
    pub hot: u64,
    /// A call that never returns on hardware aborts the process; otherwise it does not return.
    pub abort: bool,
    /// How long calls still get into a context that is being taken, ns.
    pub window_ns: u64,
    /// A period is refused.
    pub no_period: bool,
    /// A size of the hardware buffer is refused.
    pub no_buffer: bool,
    /// A period that was set silences sampling.
    pub mute_period: bool,
    /// So many calls of `GetData` find the hardware buffer full.
    pub full: u64,
    /// Samples that were dropped, in every call of `GetData` that has records.
    pub dropped: u64,
    /// Samples of kernels that are not the program's, likewise.
    pub foreign: u64,
    /// The highest index of the stall reasons is 200.
    pub sparse: bool,
    /// One name of a stall reason has no NUL.
    pub unterminated: bool,
}

const DEFAULTS: PcScript = PcScript {
    per_ms: 100,
    pcs: 8,
    hot: 0,
    abort: true,
    window_ns: 100_000,
    no_period: false,
    no_buffer: false,
    mute_period: false,
    full: 0,
    dropped: 0,
    foreign: 0,
    sparse: false,
    unterminated: false,
};

/// The script; the environment is read at the first call.
pub fn get() -> &'static PcScript {
    static SCRIPT: OnceLock<PcScript> = OnceLock::new();
    SCRIPT.get_or_init(|| {
        let value = text("MOCK_CUPTI_PC");
        parse(&value).unwrap_or_else(|| unusable("MOCK_CUPTI_PC", &value))
    })
}

fn parse(value: &str) -> Option<PcScript> {
    let mut script = DEFAULTS;
    for item in value.split(',').filter(|item| !item.is_empty()) {
        let (what, count) = item.split_once(':').unwrap_or((item, ""));
        let count = || count.parse::<u64>().ok();
        match what {
            "per-ms" => script.per_ms = count()?.max(1),
            "pcs" => script.pcs = count()?.max(1),
            "hot" => script.hot = count()?,
            "hang" => script.abort = false,
            "window-us" => script.window_ns = count()? * 1000,
            "no-period" => script.no_period = true,
            "no-buffer" => script.no_buffer = true,
            "mute-period" => script.mute_period = true,
            "full" => script.full = count()?,
            "dropped" => script.dropped = count()?,
            "foreign" => script.foreign = count()?,
            "sparse" => script.sparse = true,
            "unterminated" => script.unterminated = true,
            _ => return None,
        }
    }
    Some(script)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lists() {
        assert_eq!(parse(""), Some(DEFAULTS));
        let script = parse("per-ms:7,full:2,hang").unwrap();
        assert_eq!((script.per_ms, script.full, script.abort), (7, 2, false));
        assert_eq!((parse("full"), parse("nonsense")), (None, None));
    }
}
