//! Variables of a program's environment: any names, any values.

use std::ffi::OsString;
use std::os::unix::ffi::OsStringExt;

use parcagpu::config::{Config, VARIABLES};

/// Variables as `NAME=VALUE`, each to its NUL. A byte below 16 as the name stands for one of ours.
pub fn environment(data: &[u8]) {
    let variables = data.split(|byte| *byte == 0).map(|line| {
        let at = line.iter().position(|byte| *byte == b'=');
        let (name, value) = match at {
            Some(at) => (&line[..at], &line[at + 1..]),
            None => (line, &b""[..]),
        };
        let name = match name {
            [index] if usize::from(*index) < VARIABLES.len() => {
                VARIABLES[usize::from(*index)].name.as_bytes()
            }
            other => other,
        };
        let os = |bytes: &[u8]| OsString::from_vec(bytes.to_vec());
        (os(name), os(value))
    });
    let (config, problems) = Config::parse(variables);
    assert!(config.debug <= 2);
    for rate in [config.rate_limit, config.graph_rate_limit] {
        assert!(rate.is_finite() && rate > 0.0);
    }
    if let Some(rate) = config.pc_sampling_rate {
        assert!(rate.is_finite() && rate >= 0.0);
    }
    assert!(config.sampling_factor == 0 || (5..=31).contains(&config.sampling_factor));
    for problem in &problems {
        assert!(problem.0.len() < 1024, "a message goes through a probe");
    }
}
