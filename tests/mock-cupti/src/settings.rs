//! Everything a test can script about CUPTI, read once from the environment.
//!
//! The table of variables is in the crate's documentation.

use std::ffi::{CStr, CString, c_char};
use std::sync::OnceLock;
use std::time::Duration;

use crate::odd_modules::Odd;

/// Which records reach the client.
#[derive(Default)]
pub struct Records {
    /// None at all.
    pub none: bool,
    /// Every N-th has times 0/0; 0: none has.
    pub zero_times: u64,
    /// Every N-th comes twice.
    pub duplicate: u64,
    /// Every N-th is withheld without being counted.
    pub withhold: u64,
}

/// The script of this process.
pub struct Settings {
    /// What `cuptiGetVersion` says.
    pub version: u32,
    /// Bytes of one kernel record.
    pub record_size: usize,
    /// First correlation id.
    pub first_correlation: u32,
    /// A lock is held during every call and callback.
    pub lock: bool,
    /// Replaces every kernel name; inside, `None` is a null pointer.
    pub kernel_name: Option<Option<CString>>,
    /// Which records come.
    pub records: Records,
    /// At most this many records in a buffer, 0: as many as fit.
    pub buffer_records: usize,
    /// At process end, complete buffers are delivered from a thread of CUPTI's.
    pub exit_buffers: bool,
    /// A call after `cuptiFinalize`, or for a context that is gone, aborts, and so do two at once that switch
    /// callbacks.
    pub strict: bool,
    /// How long such a call takes.
    pub switch_time: Duration,
    /// Number of stall reasons.
    pub stall_reasons: usize,
    /// What is told of modules, in their order; empty: the truth.
    pub modules: Vec<Odd>,
}

/// The settings; the environment is read at the first call.
pub fn get() -> &'static Settings {
    static SETTINGS: OnceLock<Settings> = OnceLock::new();
    SETTINGS.get_or_init(|| {
        let version = number("MOCK_CUPTI_VERSION", 130_001) as u32;
        Settings {
            version,
            record_size: record_size(version),
            first_correlation: number("MOCK_CUPTI_FIRST_CORRELATION", 1) as u32,
            lock: number("MOCK_CUPTI_LOCK", 0) != 0,
            kernel_name: kernel_name(&text("MOCK_CUPTI_KERNEL_NAME")),
            records: records(&text("MOCK_CUPTI_RECORDS")),
            buffer_records: number("MOCK_CUPTI_BUFFER_RECORDS", 0) as usize,
            exit_buffers: number("MOCK_CUPTI_EXIT_BUFFERS", 0) != 0,
            strict: number("MOCK_CUPTI_STRICT", 0) != 0,
            switch_time: Duration::from_micros(number("MOCK_CUPTI_SWITCH_US", 0)),
            stall_reasons: number("MOCK_CUPTI_STALL_REASONS", 40) as usize,
            modules: modules(&text("MOCK_CUPTI_MODULES")),
        }
    })
}

impl Settings {
    /// The name to report for a kernel.
    pub fn name(&self, real: *const c_char) -> *const c_char {
        match &self.kernel_name {
            None => real,
            Some(None) => std::ptr::null(),
            Some(Some(name)) => name.as_ptr(),
        }
    }
}

/// Size of the current kernel record of that CUPTI version.
fn record_size(version: u32) -> usize {
    match version {
        0..=17 => 176,
        18..=28 => 208,
        29..130_100 => 216,
        130_100..130_300 => 224,
        130_300..130_400 => 232,
        _ => 248,
    }
}

fn kernel_name(value: &str) -> Option<Option<CString>> {
    match value {
        "" => None,
        "null" => Some(None),
        "empty" => Some(Some(CString::default())),
        "invalid" => Some(CString::new(&b"bad\xff\xfe\x80name"[..]).ok()),
        _ => match value
            .strip_prefix("length:")
            .and_then(|length| length.parse().ok())
        {
            Some(length) => Some(
                CString::new(
                    (0..length)
                        .map(|at| b'a' + (at % 26) as u8)
                        .collect::<Vec<_>>(),
                )
                .ok(),
            ),
            None => unusable("MOCK_CUPTI_KERNEL_NAME", value),
        },
    }
}

fn modules(value: &str) -> Vec<Odd> {
    if value.is_empty() {
        return Vec::new();
    }
    let odd = |name| Odd::parse(name).unwrap_or_else(|| unusable("MOCK_CUPTI_MODULES", value));
    value.split(',').map(odd).collect()
}

fn records(value: &str) -> Records {
    let mut records = Records::default();
    for item in value.split(',').filter(|item| !item.is_empty()) {
        let (what, every) = item.split_once(':').unwrap_or((item, "1"));
        let every = every
            .parse()
            .unwrap_or_else(|_| unusable("MOCK_CUPTI_RECORDS", value));
        match what {
            "none" => records.none = true,
            "zero" => records.zero_times = every,
            "duplicate" => records.duplicate = every,
            "withhold" => records.withhold = every,
            _ => unusable("MOCK_CUPTI_RECORDS", value),
        }
    }
    records
}

/// A variable's value; "" when unset.
pub fn text(name: &str) -> String {
    let name = CString::new(name).expect("no NUL in our own names");
    // SAFETY: getenv returns null or a NUL-terminated string, copied at once.
    unsafe {
        let value = libc::getenv(name.as_ptr());
        if value.is_null() {
            String::new()
        } else {
            CStr::from_ptr(value).to_string_lossy().into_owned()
        }
    }
}

fn number(name: &str, default: u64) -> u64 {
    let value = text(name);
    if value.is_empty() {
        default
    } else {
        value.parse().unwrap_or_else(|_| unusable(name, &value))
    }
}

/// Nonsense stops the test rather than hiding in it.
pub fn unusable(name: &str, value: &str) -> ! {
    eprintln!("simulated CUPTI: cannot use {name}={value}");
    std::process::abort()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn record_lists() {
        let records = records("zero:3,duplicate:10");
        assert_eq!(
            (
                records.zero_times,
                records.duplicate,
                records.withhold,
                records.none
            ),
            (3, 10, 0, false)
        );
    }

    #[test]
    fn names() {
        assert!(kernel_name("").is_none());
        assert_eq!(kernel_name("null"), Some(None));
        assert_eq!(
            kernel_name("length:600000")
                .unwrap()
                .unwrap()
                .as_bytes()
                .len(),
            600_000
        );
        assert!(kernel_name("invalid").unwrap().unwrap().to_str().is_err());
    }

    #[test]
    fn sizes_by_version() {
        assert_eq!(
            [17, 18, 28, 130_001, 130_101, 130_301, 130_401].map(record_size),
            [176, 208, 208, 216, 224, 232, 248]
        );
    }
}
