//! Everything a test can script about the driver, read once from the environment.
//!
//! The table of variables is in the crate's documentation.

use std::ffi::{CStr, CString};
use std::sync::OnceLock;

/// Which calls hold their context while they work.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Holds {
    /// Launches, and what brings and takes code.
    Launches,
    /// All but those that wait or only ask.
    Calls,
    /// Those that wait, too.
    All,
}

/// The script of this process.
pub struct Settings {
    /// Every call returns 34.
    pub stub: bool,
    /// What `cuDriverGetVersion` says.
    pub version: i32,
    /// Number of devices.
    pub devices: i32,
    /// In the UUIDs of the devices: processes with the same number share them.
    pub gpu: u32,
    /// Compute capability of the devices, as 90.
    pub sm: u32,
    /// Time from a launch to its kernel's start.
    pub latency_ns: u64,
    /// Kernel duration when no rule fits.
    pub kernel_ns: u64,
    /// `name part=ns` rules, first match wins.
    pub kernel_rules: Vec<(String, u64)>,
    /// Outstanding launches a stream takes before the caller waits.
    pub queue_depth: usize,
    /// Which calls hold their context.
    pub holds: Holds,
    /// `cuInit` looks itself up through its own handle and calls it.
    pub init_reenters: bool,
    /// `cuGetProcAddress` gives entries other than the exported ones.
    pub copies: bool,
    /// Functions that the driver pretends not to have.
    pub absent: Vec<String>,
}

/// The settings; the environment is read at the first call.
pub fn get() -> &'static Settings {
    static SETTINGS: OnceLock<Settings> = OnceLock::new();
    SETTINGS.get_or_init(|| {
        let (kernel_ns, kernel_rules) = kernel_rules(&text("MOCK_CUDA_KERNEL_NS"));
        Settings {
            stub: number("MOCK_CUDA_STUB", 0) != 0,
            version: number("MOCK_CUDA_VERSION", 13000) as i32,
            devices: number("MOCK_CUDA_DEVICES", 1) as i32,
            gpu: number("MOCK_CUDA_GPU", std::process::id().into()) as u32,
            sm: number("MOCK_CUDA_SM", 90) as u32,
            latency_ns: number("MOCK_CUDA_LATENCY_NS", 3000),
            kernel_ns,
            kernel_rules,
            queue_depth: number("MOCK_CUDA_QUEUE", 1024).max(1) as usize,
            holds: holds(&text("MOCK_CUDA_HOLDS")),
            init_reenters: number("MOCK_CUDA_INIT_REENTERS", 0) != 0,
            copies: number("MOCK_CUDA_COPIES", 0) != 0,
            absent: text("MOCK_CUDA_ABSENT")
                .split(',')
                .filter(|name| !name.is_empty())
                .map(str::to_owned)
                .collect(),
        }
    })
}

/// A variable's value; "" when unset. Uses libc: `std::env` would race with a program's `setenv`
/// no less, and this also works in a process that was entered without Rust's start-up.
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

/// A decimal value, the default when unset; nonsense stops the test rather than hiding in it.
pub fn number(name: &str, default: u64) -> u64 {
    let value = text(name);
    if value.is_empty() {
        return default;
    }
    match value.parse() {
        Ok(number) => number,
        Err(_) => {
            eprintln!("simulated driver: {name}={value} is not a number");
            std::process::abort()
        }
    }
}

fn holds(value: &str) -> Holds {
    match value {
        "launches" => Holds::Launches,
        "" | "calls" => Holds::Calls,
        "all" => Holds::All,
        _ => {
            eprintln!("simulated driver: cannot use MOCK_CUDA_HOLDS={value}");
            std::process::abort()
        }
    }
}

fn kernel_rules(value: &str) -> (u64, Vec<(String, u64)>) {
    let mut default = 2000;
    let mut rules = Vec::new();
    for item in value.split(',').filter(|item| !item.is_empty()) {
        match item.split_once('=') {
            Some((part, ns)) => rules.push((part.to_owned(), ns.parse().unwrap_or(default))),
            None => default = item.parse().unwrap_or(default),
        }
    }
    (default, rules)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rules_and_default_mix() {
        let (default, rules) = kernel_rules("500,gemm=9000,x=1");
        assert_eq!(default, 500);
        assert_eq!(rules, [("gemm".to_owned(), 9000), ("x".to_owned(), 1)]);
        assert_eq!(kernel_rules("").0, 2000);
    }
}
