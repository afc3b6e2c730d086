//! Holds every number `parcagpu::cupti` and `parcagpu-abi` state against NVIDIA's headers.
//!
//! The table below is made of the Rust items themselves (`offset_of!`, the constants); for each
//! CUDA version it becomes one C file of static assertions that gcc checks against that version's
//! headers. An item of `sys` that the table does not mention fails a test of its own.

mod conformance_common;
mod conformance_table;
mod conformance_wheels;

use conformance_common::root;
use conformance_table::{Check, checks};
use conformance_wheels::wheels;
use parcagpu::cupti::result;
use std::fmt::Write;
use std::path::Path;
use std::process::Command;

const INCLUDES: &str = "#include <stddef.h>\n#include <cuda.h>\n#include <cuda_runtime_api.h>\n#include <cupti.h>\n#include <cupti_pcsampling.h>\n";

fn number(version: &str) -> (u32, u32) {
    let (major, minor) = version.split_once('.').expect("versions look like 12.4");
    (
        major.parse().expect("digits"),
        minor.parse().expect("digits"),
    )
}

/// What gcc says against the assertions, a line each; empty when all hold.
fn compile(include: &Path, checks: &[&Check]) -> Vec<String> {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let file = folder.path().join("layout.c");
    let mut source = INCLUDES.to_owned();
    for check in checks {
        writeln!(
            source,
            "_Static_assert(({}) == {}u, \"{}\");",
            check.c, check.value, check.item
        )
        .expect("a String grows");
    }
    std::fs::write(&file, source).expect("the temporary folder takes a file");
    let output = Command::new("gcc")
        .args([
            "-std=gnu11",
            "-fsyntax-only",
            "-w",
            "-fmax-errors=200",
            "-I",
        ])
        .arg(include)
        .arg(&file)
        .output()
        .expect("gcc runs");
    let complaints: Vec<String> = String::from_utf8_lossy(&output.stderr)
        .lines()
        .filter(|line| line.contains("error:"))
        .map(|line| {
            line.rsplit_once("error: ")
                .map_or(line, |(_, what)| what)
                .to_owned()
        })
        .collect();
    assert_eq!(
        output.status.success(),
        complaints.is_empty(),
        "gcc: {}",
        String::from_utf8_lossy(&output.stderr)
    );
    complaints
}

#[test]
fn layouts_and_numbers_equal_the_headers_of_every_version() {
    let Some(wheels) = wheels("layouts_and_numbers_equal_the_headers_of_every_version") else {
        return;
    };
    let table = checks();
    let mut wrong = Vec::new();
    for (version, folder) in &wheels {
        let asked: Vec<&Check> = table
            .iter()
            .filter(|check| check.versions.contains(&number(version)))
            .collect();
        assert!(
            asked.len() > 100,
            "CUDA {version}: only {} checks",
            asked.len()
        );
        wrong.extend(
            compile(&folder.join("include"), &asked)
                .into_iter()
                .map(|what| format!("CUDA {version}: {what}")),
        );
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
    for check in &table {
        assert!(
            wheels
                .iter()
                .any(|(version, _)| check.versions.contains(&number(version))),
            "{} was held against no version",
            check.item
        );
    }
}

/// The checks above prove nothing unless a wrong number is noticed and named.
#[test]
fn a_wrong_number_is_named() {
    let Some(wheels) = wheels("a_wrong_number_is_named") else {
        return;
    };
    let (version, folder) = wheels.last().expect("at least one version");
    let table = checks();
    for mut check in table
        .into_iter()
        .filter(|check| check.versions.contains(&number(version)))
    {
        if !check.item.ends_with("correlation_id") && !check.item.ends_with("GRAPH_LAUNCH") {
            continue;
        }
        check.value += 4;
        let complaints = compile(&folder.join("include"), &[&check]);
        assert_eq!(complaints.len(), 1, "{}: {complaints:?}", check.item);
        assert!(complaints[0].contains(&check.item), "{complaints:?}");
    }
}

/// Whatever is added to `sys` has to be added to the table.
#[test]
fn the_table_mentions_every_item_of_sys() {
    let source = std::fs::read_to_string(root().join("src/cupti/sys.rs")).expect("sys.rs is there");
    let table = checks();
    let mut missing = Vec::new();
    let mut module = String::new();
    let mut structure = None::<String>;
    for line in source.lines() {
        if line.starts_with('}') {
            module.clear();
            structure = None;
        }
        let Some(item) = line.trim_start().strip_prefix("pub ") else {
            continue;
        };
        let name = |rest: &str| {
            rest.split([':', ' ', ';', '<', '('])
                .next()
                .unwrap_or_default()
                .to_owned()
        };
        let path = if let Some(rest) = item.strip_prefix("mod ") {
            module = format!("{}::", name(rest));
            continue;
        } else if let Some(rest) = item.strip_prefix("struct ") {
            structure = Some(name(rest));
            format!("{module}{}", name(rest))
        } else if let Some(rest) = item.strip_prefix("const ") {
            if rest.starts_with("fn ") {
                continue;
            }
            format!("{module}{}", name(rest))
        } else if let (Some(structure), true) = (&structure, line.starts_with("    ")) {
            format!("{module}{structure}.{}", name(item))
        } else {
            continue;
        };
        if !table.iter().any(|check| {
            check.item == path
                || check
                    .item
                    .strip_prefix(&path)
                    .is_some_and(|rest| rest.starts_with(' '))
        }) {
            missing.push(path);
        }
    }
    assert!(
        missing.is_empty(),
        "add to tests/tests/conformance_table: {missing:#?}"
    );
}

/// The other direction for results: every code of the newest headers has a name here.
#[test]
fn every_result_code_has_a_name() {
    let Some(wheels) = wheels("every_result_code_has_a_name") else {
        return;
    };
    let (version, folder) = wheels.last().expect("at least one version");
    let header = std::fs::read_to_string(folder.join("include/cupti_result.h"))
        .expect("cupti_result.h is there");
    let mut seen = 0;
    for line in header.lines() {
        let Some((name, value)) = line
            .trim()
            .strip_suffix(',')
            .unwrap_or(line.trim())
            .split_once('=')
        else {
            continue;
        };
        let (name, Ok(value)) = (name.trim(), value.trim().parse::<u32>()) else {
            continue;
        };
        if !name.starts_with("CUPTI_") {
            continue;
        }
        seen += 1;
        assert_eq!(result::name(value), name, "CUDA {version}");
    }
    assert!(seen >= 48, "only {seen} codes found in the header");
}
