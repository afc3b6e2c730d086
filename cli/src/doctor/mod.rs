//! `parcagpu doctor`: looks at all that has to be right, and says what to do where something is not.
//!
//! Nothing is changed and no process is disturbed: the trial of the BPF program is made on a copy of the
//! library that no process has. Files are looked at under a root folder, so that tests can make a host.

mod cupti;
mod driver;
mod host;
mod library;
mod loader;
mod processes;
mod sampling;
mod trial;

use std::path::Path;
use std::process::ExitCode;

use anyhow::Result;
use serde_json::{Value, json};

use crate::choice::Choice;
use crate::demangle::clean;
use crate::discover::Scanner;
use crate::options::DoctorOptions;
use crate::text::plural;
use crate::{colour, library as library_file, stdout};

/// Exit status when something fails: each has a cure, so it is as for every command that meets it.
const MISSING: u8 = 2;

/// How bad it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Level {
    /// As it should be.
    Ok,
    /// Works, with a limit that the text names.
    Warn,
    /// Something does not work.
    Fail,
}

impl Level {
    fn name(self) -> &'static str {
        match self {
            Self::Ok => "ok",
            Self::Warn => "warn",
            Self::Fail => "fail",
        }
    }
}

/// One thing that was looked at.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Finding {
    /// What was looked at; kept stable for programs.
    pub check: &'static str,
    /// How bad it is.
    pub level: Level,
    /// What was found.
    pub text: String,
    /// What to do about it, exactly; empty when there is nothing to do.
    pub cure: String,
}

fn ok(check: &'static str, text: impl Into<String>) -> Finding {
    Finding {
        check,
        level: Level::Ok,
        text: text.into(),
        cure: String::new(),
    }
}

fn warn(check: &'static str, text: impl Into<String>, cure: impl Into<String>) -> Finding {
    Finding {
        check,
        level: Level::Warn,
        text: text.into(),
        cure: cure.into(),
    }
}

fn fail(check: &'static str, text: impl Into<String>, cure: impl Into<String>) -> Finding {
    Finding {
        level: Level::Fail,
        ..warn(check, text, cure)
    }
}

/// `parcagpu doctor`
pub fn doctor(options: &DoctorOptions) -> Result<ExitCode> {
    let root = Path::new("/");
    let mut findings = host::findings(root);
    let file = match library_file::required(options.lib.as_deref()) {
        Ok(file) => {
            findings.extend(library::findings(&file));
            Some(file)
        }
        Err(e) => {
            findings.push(fail(
                "library",
                format!("{e:#}"),
                "build it with `make local`, or name it: parcagpu doctor --lib FILE",
            ));
            None
        }
    };
    findings.push(trial::finding(file.as_ref()));
    findings.extend(driver::findings(root));
    findings.push(cupti::finding(root, driver::version(root).as_deref()));
    findings.extend(sampling::finding(root));
    let mut scanner = Scanner::default();
    let found = scanner.scan(&Choice::default());
    findings.extend(processes::findings(&found, scanner.refused()));

    if options.json {
        stdout::print(&format!("{}\n", to_json(&findings)))?;
    } else {
        stdout::print(&to_text(&findings, colour::on_stdout()))?;
    }
    Ok(match count(&findings, Level::Fail) {
        0 => ExitCode::SUCCESS,
        _ => ExitCode::from(MISSING),
    })
}

fn count(findings: &[Finding], level: Level) -> usize {
    findings.iter().filter(|f| f.level == level).count()
}

fn to_text(findings: &[Finding], colours: bool) -> String {
    let mut out = String::new();
    for finding in findings {
        let word = format!("{:<4}", finding.level.name());
        let word = match finding.level {
            Level::Ok => colour::green(&word, colours),
            Level::Warn => colour::yellow(&word, colours),
            Level::Fail => colour::red(&word, colours),
        };
        out += &format!("{word}  {:<14} {}\n", finding.check, clean(&finding.text));
        for line in finding.cure.lines() {
            out += &format!("      {:<14} -> {}\n", "", clean(line));
        }
    }
    out + &sum_up(findings) + "\n"
}

/// The last line: how many of what, where, and what works all the same.
fn sum_up(findings: &[Finding]) -> String {
    let sum = |level: Level, noun: &str| {
        let mut checks: Vec<&str> = Vec::new();
        for finding in findings.iter().filter(|f| f.level == level) {
            if !checks.contains(&finding.check) {
                checks.push(finding.check);
            }
        }
        let n = plural(count(findings, level) as u64, noun);
        if checks.is_empty() {
            return n;
        }
        format!("{n} ({})", checks.join(", "))
    };
    let problems = sum(Level::Fail, "problem");
    let warnings = sum(Level::Warn, "warning");
    format!("{problems}, {warnings}; {}", what_works(findings))
}

/// The commands that can do their work, by the checks that each needs.
fn what_works(findings: &[Finding]) -> String {
    let worst = |level: Level, checks: &[&str]| {
        let mut these = findings.iter().filter(|f| checks.contains(&f.check));
        these.any(|f| f.level == level)
    };
    let fails = |checks: &[&str]| worst(Level::Fail, checks);
    let mut text = if fails(&WATCHING) {
        "status works; run, record, top and trace do not".to_owned()
    } else if fails(&PRELOADING) {
        "status, and top, trace and record of processes that run, work; run and record of a command do not"
            .to_owned()
    } else {
        "run, record, top, trace and status work".to_owned()
    };
    let unsure: Vec<&str> = LAUNCHING
        .into_iter()
        .filter(|check| fails(&[check]) || worst(Level::Warn, &[check]))
        .collect();
    if !unsure.is_empty() {
        text += &format!(
            "; programs started here may give no kernels (see {})",
            unsure.join(", ")
        );
    }
    text
}

/// What taking events needs.
const WATCHING: [&str; 6] = [
    "kernel",
    "btf",
    "capabilities",
    "lockdown",
    "uprobes",
    "bpf_program",
];
/// What starting a command with the library needs besides.
const PRELOADING: [&str; 3] = ["library", "probes", "pages"];
/// What a program needs on the way to the GPU.
const LAUNCHING: [&str; 5] = ["driver", "gpus", "devices", "libcuda", "libcupti"];

fn to_json(findings: &[Finding]) -> Value {
    let list: Vec<Value> = findings
        .iter()
        .map(|f| {
            let cure = (!f.cure.is_empty()).then_some(&f.cure);
            json!({"check": f.check, "level": f.level.name(), "text": f.text, "cure": cure})
        })
        .collect();
    json!({
        "findings": list,
        "ok": count(findings, Level::Ok),
        "warn": count(findings, Level::Warn),
        "fail": count(findings, Level::Fail),
    })
}

/// A text file under a root, trimmed; `None` when it cannot be read.
fn read(root: &Path, path: &str) -> Option<String> {
    let text = std::fs::read(root.join(path.trim_start_matches('/'))).ok()?;
    Some(String::from_utf8_lossy(&text).trim().to_owned())
}

/// Names in a folder under a root, sorted.
fn entries(root: &Path, path: &str) -> Vec<std::path::PathBuf> {
    let mut entries: Vec<_> = std::fs::read_dir(root.join(path.trim_start_matches('/')))
        .map(|dir| dir.flatten().map(|entry| entry.path()).collect())
        .unwrap_or_default();
    entries.sort();
    entries
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn texts_cures_and_sums() {
        let findings = [
            ok("kernel", "6.1"),
            warn("a", "b", "first\nsecond"),
            fail("c", "d\u{1b}[31m", "e"),
        ];
        let text = to_text(&findings, false);
        assert_eq!(text.lines().next().unwrap(), "ok    kernel         6.1");
        assert!(
            text.contains("-> first\n") && text.contains("-> second\n"),
            "{text}"
        );
        assert!(!text.contains('\u{1b}'), "{text}");
        let last = text.lines().last().unwrap();
        assert_eq!(
            last,
            "1 problem (c), 1 warning (a); run, record, top, trace and status work"
        );
        assert!(to_text(&findings[..1], true).starts_with("\u{1b}[32mok  \u{1b}[0m  kernel"));
        let json = to_json(&findings);
        assert_eq!(
            (&json["ok"], &json["warn"], &json["fail"]),
            (&1.into(), &1.into(), &1.into())
        );
        assert_eq!(json["findings"][0]["cure"], Value::Null);
        assert_eq!(json["findings"][2]["level"], "fail");
    }

    #[test]
    fn the_last_line_says_what_works() {
        let one = |finding: Finding| sum_up(&[ok("kernel", "6.1"), finding]);
        assert_eq!(
            one(ok("btf", "")),
            "0 problems, 0 warnings; run, record, top, trace and status work"
        );
        assert_eq!(
            one(fail("capabilities", "", "x")),
            "1 problem (capabilities), 0 warnings; status works; run, record, top and trace do not"
        );
        assert!(
            one(fail("library", "", "x")).ends_with("work; run and record of a command do not")
        );
        let gpu = one(warn("driver", "", "x"));
        assert!(
            gpu.starts_with(
                "0 problems, 1 warning (driver); run, record, top, trace and status work; programs started here may give no kernels (see driver)"
            ),
            "{gpu}"
        );
        let twice = sum_up(&[warn("process", "", "x"), warn("process", "", "y")]);
        assert!(
            twice.starts_with("0 problems, 2 warnings (process); "),
            "{twice}"
        );
    }
}
