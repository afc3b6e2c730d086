//! Numbers on the command line: what is possible, and what is said of others.

/// Numbers of processes: the kernel gives none above 2^22.
const PID_MAX: u32 = 1 << 22;
/// Size of a ring buffer, MiB.
const MIB_MAX: u32 = 1024;
/// Kernels as labels of metrics.
const KERNEL_NAMES_MAX: u32 = 10_000;
/// Seconds between two tables: more are not read.
const PAUSE_MIN: f64 = 0.1;
/// Of seconds and rates.
const NUMBER_MAX: f64 = 1e9;

/// The number of a process.
pub fn pid(text: &str) -> Result<u32, String> {
    match text.parse() {
        Ok(pid) if (1..=PID_MAX).contains(&pid) => Ok(pid),
        _ => Err(format!(
            "not the number of a process, 1 to {PID_MAX} (--comm takes names)"
        )),
    }
}

/// Size of a ring buffer.
pub fn mib(text: &str) -> Result<u32, String> {
    match text.parse() {
        Ok(mib) if (1..=MIB_MAX).contains(&mib) => Ok(mib),
        _ => Err(format!("not a whole number of MiB, 1 to {MIB_MAX}")),
    }
}

/// So many kernels as labels.
pub fn kernel_names(text: &str) -> Result<u32, String> {
    match text.parse() {
        Ok(n) if (1..=KERNEL_NAMES_MAX).contains(&n) => Ok(n),
        _ => Err(format!("not a number of names, 1 to {KERNEL_NAMES_MAX}")),
    }
}

/// How long.
pub fn seconds(text: &str) -> Result<f64, String> {
    match text.parse() {
        Ok(s) if (0.0..=NUMBER_MAX).contains(&s) => Ok(s),
        _ => Err(format!("not a number of seconds, 0 to {NUMBER_MAX}")),
    }
}

/// Seconds between two tables.
pub fn pause(text: &str) -> Result<f64, String> {
    match text.parse() {
        Ok(s) if (PAUSE_MIN..=NUMBER_MAX).contains(&s) => Ok(s),
        _ => Err(format!(
            "not a number of seconds, {PAUSE_MIN} to {NUMBER_MAX}"
        )),
    }
}

/// Launches per second.
pub fn rate(text: &str) -> Result<f64, String> {
    match text.parse() {
        Ok(r) if r > 0.0 && r <= NUMBER_MAX => Ok(r),
        _ => Err(format!(
            "not a number of launches per second, above 0 and up to {NUMBER_MAX}"
        )),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::options::Cli;
    use clap::Parser;

    #[test]
    fn numbers_are_checked_and_the_error_says_which_are_possible() {
        assert!(rate("0").is_err() && rate("NaN").is_err() && rate("-1").is_err());
        assert_eq!(rate("2.5"), Ok(2.5));
        assert!(seconds("inf").is_err() && seconds("-1").is_err());
        assert!(pid("0").is_err() && pid("-1").is_err() && pid("4194305").is_err());
        assert_eq!((pid("7"), mib("1024")), (Ok(7), Ok(1024)));
        assert!(mib("0").is_err() && mib("1.5").is_err());
        let said = |words: &[&str]| {
            let error = Cli::try_parse_from(["parcagpu"].iter().chain(words)).unwrap_err();
            assert_eq!(error.exit_code(), 2);
            error.to_string()
        };
        let cases: [(&[&str], &str); 12] = [
            (
                &["top", "--pid", "abc"],
                "'abc' for '--pid <PID>': not the number of a process, 1 to 4194304",
            ),
            (&["status", "--pid", "-1"], "'-1' for '--pid <PID>'"),
            (
                &["trace", "--seconds", "-1"],
                "'-1' for '--seconds <N>': not a number of seconds, 0 to 1000000000",
            ),
            (
                &["record", "--seconds", "soon"],
                "'soon' for '--seconds <N>'",
            ),
            (
                &["run", "--every", "-2", "--", "x"],
                "'-2' for '--every <SECONDS>': not a number of seconds, 0.1 to",
            ),
            (
                &["run", "--rate", "-2", "--", "x"],
                "'-2' for '--rate <N>': not a number of launches per second, above 0",
            ),
            (
                &["record", "--graph-rate", "0", "--", "x"],
                "'0' for '--graph-rate <N>'",
            ),
            (
                &["top", "--ring-mib", "-5"],
                "'-5' for '--ring-mib <MIB>': not a whole number of MiB, 1 to 1024",
            ),
            (
                &["run", "--ring-mib", "big", "--", "x"],
                "'big' for '--ring-mib <MIB>'",
            ),
            (
                &["report", "x", "--format", "pdf"],
                "[possible values: text, html,",
            ),
            (&["completions", "cmd"], "[possible values: bash,"),
            (&["tops"], "unrecognized subcommand 'tops'"),
        ];
        for (words, expected) in cases {
            let said = said(words);
            assert!(said.contains(expected), "{words:?}: {said}");
        }
    }
}
