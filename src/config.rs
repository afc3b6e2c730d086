//! The environment variables, read once when the session starts.
//!
//! A value that cannot be used never stops anything: the default is taken and a [`Problem`] says so,
//! which becomes one `error` event and a debug line.

use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::OsStrExt;
use std::path::PathBuf;

/// Where PC sampling lets kernels run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PcSamplingMode {
    /// Side by side; samples carry no correlation id.
    Continuous = 0,
    /// One at a time; each sample has its launch's id.
    Serialized = 1,
}

/// At which level launches are reported.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ApiCallbacks {
    /// Driver API only.
    Driver = 0,
    /// Runtime API; driver calls nested in them are dropped.
    Runtime = 1,
}

/// Which hook engine is wanted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum HookEngine {
    /// Gum where built in, else detour, else none.
    Auto = 0,
    /// frida-gum.
    Gum = 1,
    /// The crate detour.
    Detour = 2,
    /// No hooks.
    None = 3,
}

/// What to do when the program wants CUPTI.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum YieldMode {
    /// Step aside.
    Auto = 0,
    /// Keep it; the program's profiler gets error 39.
    Never = 1,
}

/// The configuration of this process.
#[derive(Clone, Debug, PartialEq)]
pub struct Config {
    /// 0 off, 1 notable things, 2 every event.
    pub debug: u8,
    /// Eager samples per second and thread.
    pub rate_limit: f64,
    /// Graph samples per second and thread.
    pub graph_rate_limit: f64,
    /// PC samples per second wanted; `None`: off; 0: fixed probability.
    pub pc_sampling_rate: Option<f64>,
    /// log2 of the hardware period in cycles, 5..=31; 0: CUPTI's choice.
    pub sampling_factor: u32,
    /// Hardware buffer, MiB; 0: CUPTI's choice.
    pub pc_hw_buffer_mb: u32,
    /// See [`PcSamplingMode`].
    pub pc_sampling_mode: PcSamplingMode,
    /// See [`ApiCallbacks`].
    pub api_callbacks: ApiCallbacks,
    /// See [`HookEngine`].
    pub hook_engine: HookEngine,
    /// File or folder of libcupti; `None`: found by us.
    pub cupti_path: Option<PathBuf>,
    /// See [`YieldMode`].
    pub yield_mode: YieldMode,
    /// Cap for kept copies of cubins, MiB.
    pub cubin_memory_mb: u32,
    /// Another NVTX injection library to chain to.
    pub nvtx_next: Option<PathBuf>,
    /// The library does nothing at all.
    pub disable: bool,
    /// The driver compiles PTX where it could take machine code (its variable `CUDA_FORCE_PTX_JIT`).
    pub only_ptx: bool,
}

impl Default for Config {
    fn default() -> Self {
        Self {
            debug: 0,
            rate_limit: 100.0,
            graph_rate_limit: 20.0,
            pc_sampling_rate: None,
            sampling_factor: 20,
            pc_hw_buffer_mb: 0,
            pc_sampling_mode: PcSamplingMode::Continuous,
            api_callbacks: ApiCallbacks::Driver,
            hook_engine: HookEngine::Auto,
            cupti_path: None,
            yield_mode: YieldMode::Auto,
            cubin_memory_mb: 512,
            nvtx_next: None,
            disable: false,
            only_ptx: false,
        }
    }
}

/// A variable that could not be used as it is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Problem(pub String);

type Apply = fn(&mut Config, &OsStr) -> Result<(), &'static str>;

/// One variable: its name, its default as the README prints it, and how it is taken.
pub struct Variable {
    /// Full name.
    pub name: &'static str,
    /// Default, as documented.
    pub default: &'static str,
    apply: Apply,
}

const fn variable(name: &'static str, default: &'static str, apply: Apply) -> Variable {
    Variable {
        name,
        default,
        apply,
    }
}

/// Every variable the library accepts; the README's table is held against this one.
pub const VARIABLES: &[Variable] = &[
    variable("PARCAGPU_DEBUG", "off", |c, v| {
        c.debug = debug_level(v);
        Ok(())
    }),
    variable("PARCAGPU_RATE_LIMIT", "100", |c, v| {
        c.rate_limit = positive(v)?;
        Ok(())
    }),
    variable("PARCAGPU_GRAPH_RATE_LIMIT", "20", |c, v| {
        c.graph_rate_limit = positive(v)?;
        Ok(())
    }),
    variable("PARCAGPU_PC_SAMPLING_RATE", "unset", |c, v| {
        c.pc_sampling_rate = Some(decimal(v).filter(|x| *x >= 0.0).ok_or("a number >= 0")?);
        Ok(())
    }),
    variable("PARCAGPU_SAMPLING_FACTOR", "20", |c, v| {
        let factor = whole(v)
            .filter(|x| *x == 0 || (5..=31).contains(x))
            .ok_or("0 or a whole number from 5 to 31")?;
        c.sampling_factor = factor;
        Ok(())
    }),
    variable("PARCAGPU_PC_HW_BUFFER_MB", "unset", |c, v| {
        c.pc_hw_buffer_mb = whole(v).ok_or("a whole number of MiB")?;
        Ok(())
    }),
    variable("PARCAGPU_PC_SAMPLING_MODE", "continuous", |c, v| {
        c.pc_sampling_mode = match v.as_bytes() {
            b"continuous" => PcSamplingMode::Continuous,
            b"serialized" => PcSamplingMode::Serialized,
            _ => return Err("continuous or serialized"),
        };
        Ok(())
    }),
    variable("PARCAGPU_API_CALLBACKS", "driver", |c, v| {
        c.api_callbacks = match v.as_bytes() {
            b"driver" => ApiCallbacks::Driver,
            b"runtime" => ApiCallbacks::Runtime,
            _ => return Err("driver or runtime"),
        };
        Ok(())
    }),
    variable("PARCAGPU_HOOK_ENGINE", "auto", |c, v| {
        c.hook_engine = match v.as_bytes() {
            b"auto" => HookEngine::Auto,
            b"gum" => HookEngine::Gum,
            b"detour" => HookEngine::Detour,
            b"none" => HookEngine::None,
            _ => return Err("auto, gum, detour or none"),
        };
        Ok(())
    }),
    variable("PARCAGPU_CUPTI_PATH", "auto", |c, v| {
        c.cupti_path = (v.as_bytes() != b"auto").then(|| PathBuf::from(v));
        Ok(())
    }),
    variable("PARCAGPU_YIELD", "auto", |c, v| {
        c.yield_mode = match v.as_bytes() {
            b"auto" => YieldMode::Auto,
            b"never" => YieldMode::Never,
            _ => return Err("auto or never"),
        };
        Ok(())
    }),
    variable("PARCAGPU_CUBIN_MEMORY_MB", "512", |c, v| {
        c.cubin_memory_mb = whole(v).ok_or("a whole number of MiB")?;
        Ok(())
    }),
    variable("PARCAGPU_NVTX_NEXT", "unset", |c, v| {
        c.nvtx_next = Some(PathBuf::from(v));
        Ok(())
    }),
    variable("PARCAGPU_DISABLE", "unset", |c, v| {
        c.disable = is_yes(v);
        Ok(())
    }),
    // Read by the container wrapper only.
    variable("PARCAGPU_LIB", "unset", |_, _| Ok(())),
];

/// By this variable the driver is told to compile PTX though there is machine code.
const ONLY_PTX: &str = "CUDA_FORCE_PTX_JIT";

impl Config {
    /// The configuration that `environment` asks for, and what in it could not be used. Of variables
    /// whose name does not begin with `PARCAGPU_` only `CUDA_FORCE_PTX_JIT` is looked at; empty values count as unset.
    pub fn parse(
        environment: impl IntoIterator<Item = (OsString, OsString)>,
    ) -> (Self, Vec<Problem>) {
        let mut config = Self::default();
        let mut problems = Vec::new();
        for (name, value) in environment {
            if name == ONLY_PTX {
                config.only_ptx = !value.is_empty() && value != "0";
            }
            if !name.as_bytes().starts_with(b"PARCAGPU_") {
                continue;
            }
            let Some(variable) = VARIABLES.iter().find(|v| name == v.name) else {
                problems.push(Problem(format!(
                    "{} is not a variable of this library and is ignored",
                    excerpt(&name)
                )));
                continue;
            };
            if value.is_empty() {
                continue;
            }
            if let Err(wanted) = (variable.apply)(&mut config, &value) {
                problems.push(Problem(format!(
                    "{}={} is not {wanted}; using the default, {}",
                    variable.name,
                    excerpt(&value),
                    variable.default
                )));
            }
        }
        (config, problems)
    }

    /// The configuration of this process's environment.
    pub fn from_environment() -> (Self, Vec<Problem>) {
        Self::parse(std::env::vars_os())
    }
}

/// Whether `PARCAGPU_DISABLE=1` is set: asked before anything else is done.
pub fn disabled() -> bool {
    std::env::var_os("PARCAGPU_DISABLE").is_some_and(|value| is_yes(&value))
}

/// Whoever switches the library off in a hurry is not asked for the exact word.
fn is_yes(value: &OsStr) -> bool {
    debug_level(value) != 0
}

/// The debug level, for what happens before the configuration is read.
pub fn debug_level_of_environment() -> u8 {
    std::env::var_os("PARCAGPU_DEBUG").map_or(0, |value| debug_level(&value))
}

fn excerpt(text: &OsStr) -> String {
    const MAX: usize = 64;
    let text = text.to_string_lossy();
    match text.char_indices().nth(MAX) {
        Some((end, _)) => format!("{}...", &text[..end]),
        None => text.into_owned(),
    }
}

fn decimal(value: &OsStr) -> Option<f64> {
    value
        .to_str()?
        .trim()
        .parse()
        .ok()
        .filter(|x: &f64| x.is_finite())
}

fn positive(value: &OsStr) -> Result<f64, &'static str> {
    decimal(value).filter(|x| *x > 0.0).ok_or("a number > 0")
}

fn whole(value: &OsStr) -> Option<u32> {
    value.to_str()?.trim().parse().ok()
}

fn debug_level(value: &OsStr) -> u8 {
    match value.as_bytes().to_ascii_lowercase().as_slice() {
        b"" | b"0" | b"off" | b"false" | b"no" => 0,
        b"2" => 2,
        _ => 1,
    }
}

#[cfg(test)]
mod tests {
    use super::{Config, HookEngine, VARIABLES};
    use std::ffi::OsString;
    use std::os::unix::ffi::OsStringExt;

    fn parse(pairs: &[(&str, &str)]) -> (Config, Vec<String>) {
        let pairs = pairs.iter().map(|(n, v)| (n.into(), v.into()));
        let (config, problems) = Config::parse(pairs);
        (config, problems.into_iter().map(|p| p.0).collect())
    }

    #[test]
    fn nothing_set_gives_the_defaults() {
        assert_eq!(parse(&[("HOME", "/")]), (Config::default(), vec![]));
    }

    #[test]
    fn values_are_taken() {
        let (config, problems) = parse(&[
            ("PARCAGPU_RATE_LIMIT", "0.5"),
            ("PARCAGPU_PC_SAMPLING_RATE", "0"),
            ("PARCAGPU_SAMPLING_FACTOR", "0"),
            ("PARCAGPU_HOOK_ENGINE", "none"),
            ("PARCAGPU_CUPTI_PATH", "/opt/libcupti.so.13"),
            ("PARCAGPU_LIB", "anything"),
            ("PARCAGPU_DEBUG", "2"),
        ]);
        assert_eq!(problems, Vec::<String>::new());
        assert_eq!(config.rate_limit, 0.5);
        assert_eq!(config.pc_sampling_rate, Some(0.0));
        assert_eq!(config.sampling_factor, 0);
        assert_eq!(config.hook_engine, HookEngine::None);
        assert_eq!(config.cupti_path, Some("/opt/libcupti.so.13".into()));
        assert_eq!(config.debug, 2);
    }

    #[test]
    fn debug_words() {
        for (value, level) in [
            ("", 0),
            ("OFF", 0),
            ("no", 0),
            ("false", 0),
            ("0", 0),
            ("1", 1),
            ("yes", 1),
            ("2", 2),
        ] {
            assert_eq!(
                parse(&[("PARCAGPU_DEBUG", value)]).0.debug,
                level,
                "{value}"
            );
        }
    }

    #[test]
    fn bad_values_give_the_default_and_one_problem_each() {
        let long = "9".repeat(10_240);
        for variable in VARIABLES {
            for value in ["abc", "-1", "1e309", "NaN", long.as_str()] {
                let (config, problems) = parse(&[(variable.name, value)]);
                assert!(problems.len() <= 1);
                for problem in &problems {
                    assert!(
                        problem.contains(variable.name) && problem.len() < 300,
                        "{problem}"
                    );
                    assert_eq!(config, Config::default(), "{}={value}", variable.name);
                }
            }
        }
        for name in [
            "PARCAGPU_RATE_LIMIT",
            "PARCAGPU_GRAPH_RATE_LIMIT",
            "PARCAGPU_SAMPLING_FACTOR",
            "PARCAGPU_YIELD",
        ] {
            for value in ["abc", "-1", "1e309", "NaN", "0x10"] {
                assert_eq!(parse(&[(name, value)]).1.len(), 1, "{name}={value}");
            }
        }
        assert_eq!(parse(&[("PARCAGPU_RATE_LIMIT", "0")]).1.len(), 1);
        assert_eq!(parse(&[("PARCAGPU_SAMPLING_FACTOR", "4")]).1.len(), 1);
    }

    #[test]
    fn unknown_names_and_bytes_that_are_not_utf8_are_reported() {
        let (_, problems) = parse(&[("PARCAGPU_RATELIMIT", "5")]);
        assert_eq!(problems.len(), 1);
        assert!(problems[0].contains("PARCAGPU_RATELIMIT"));
        let odd = OsString::from_vec(vec![0xff, 0xfe]);
        let (config, problems) = Config::parse([("PARCAGPU_RATE_LIMIT".into(), odd)]);
        assert_eq!((config, problems.len()), (Config::default(), 1));
    }
}
