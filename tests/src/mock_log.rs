//! The call log of the simulated libraries: `NAME tid=T ARGUMENTS = RESULT` a line.

use std::fs;
use std::path::Path;

/// One call.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Call {
    /// The function.
    pub name: String,
    /// The calling thread.
    pub tid: u32,
    /// Everything else, as logged.
    pub arguments: String,
    /// What it returned.
    pub result: i64,
}

impl Call {
    /// Whether it is one of CUPTI's functions.
    pub fn is_cupti(&self) -> bool {
        self.name.starts_with("cupti")
    }

    fn parse(line: &str) -> Option<Self> {
        let (call, result) = line.rsplit_once(" = ")?;
        let (name, rest) = call.split_once(" tid=")?;
        let (tid, arguments) = rest.split_once(' ').unwrap_or((rest, ""));
        Some(Self {
            name: name.to_owned(),
            tid: tid.parse().ok()?,
            arguments: arguments.to_owned(),
            result: result.trim().parse().ok()?,
        })
    }
}

/// All calls in a log; a missing file is a log without calls.
pub fn read(path: &Path) -> Vec<Call> {
    let text = String::from_utf8_lossy(&fs::read(path).unwrap_or_default()).into_owned();
    text.lines()
        .filter(|line| line.contains(" tid="))
        .filter_map(Call::parse)
        .collect()
}

/// How often a function was called.
pub fn count(calls: &[Call], name: &str) -> usize {
    calls.iter().filter(|call| call.name == name).count()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A line comes apart into its fields.
    #[test]
    fn a_line() {
        let call = Call::parse("cuLaunchKernel tid=12 ptr 1 1 null = 0").unwrap();
        assert_eq!(
            (call.name.as_str(), call.tid, call.result),
            ("cuLaunchKernel", 12, 0)
        );
        assert_eq!(call.arguments, "ptr 1 1 null");
        assert!(Call::parse("").is_none());
        assert_eq!(
            Call::parse("cuCtxSynchronize tid=1 = 0").map(|c| c.result),
            Some(0)
        );
    }
}
