//! The table of PC samples, as text and as JSON.

use std::collections::BTreeMap;

use serde_json::{Map, Value, json};

use crate::accounts::Accounts;
use crate::brief::brief;
use crate::code::{Code, Knowledge};
use crate::demangle::clean;
use crate::ledger::Ledger;
use crate::pc::reasons::Tally;
use crate::pc::rows::{KernelRow, LineRow, Rows, Spot};
use crate::pc::samples::{ProcessSamples, Samples};
use crate::session::{ProcessId, Session};
use crate::table::{Layout, SILENT_SHOWN, cut, head, more_silent, tail};
use crate::text::{count, duration, percent, plural};

/// Lines of one kernel in a table that has no other limit.
const LINES_SHOWN: usize = 20;
/// Lines of one kernel where the rows are few.
const LINES_SHOWN_LIVE: usize = 5;
/// Mnemonics named in a row.
const MNEMONICS_SHOWN: usize = 2;

/// The table for people; ends with a newline.
pub fn text(
    samples: &Samples,
    code: &mut Code,
    accounts: &Accounts,
    ledger: &Ledger,
    session: &Session,
    layout: Layout,
) -> String {
    let mut out = String::new();
    let mut all: Vec<(ProcessId, &ProcessSamples, Rows)> = samples
        .processes
        .iter()
        .filter(|(_, process)| process.records > 0)
        .map(|(id, process)| (*id, process, Rows::new(process, code, layout.raw_names)))
        .collect();
    all.sort_by_key(|(id, _, rows)| (std::cmp::Reverse(rows.tally.samples), *id));
    for (id, process, rows) in &all {
        out += &process_text(*id, process, rows, code, ledger, layout);
        out.push('\n');
    }
    let silent = ledger
        .entries()
        .filter(|(pid, _)| all.iter().all(|(id, ..)| id.pid != *pid));
    let mut without = 0;
    for (pid, entry) in silent {
        without += 1;
        if without <= SILENT_SHOWN {
            let head = head(ProcessId { pid, start_ns: 0 }, ledger);
            out += &format!("{head}: no PC samples: {}\n\n", entry.why_no_pc_samples());
        }
    }
    if without > SILENT_SHOWN {
        out += &more_silent(without);
    }
    for trouble in code.troubles() {
        out += &format!("warning: {}\n", clean(trouble));
    }
    out + &tail(accounts, session)
}

fn process_text(
    id: ProcessId,
    process: &ProcessSamples,
    rows: &Rows,
    code: &Code,
    ledger: &Ledger,
    layout: Layout,
) -> String {
    let tally = &rows.tally;
    let mut out = format!(
        "{}: {}, {} of SM time; {} issued, {}\n",
        head(id, ledger),
        plural(tally.samples, "PC sample"),
        time(rows, tally.samples),
        issued(rows, tally),
        tally.words(),
    );
    for note in notes(id, process, rows, code, ledger) {
        out += &format!("  {note}\n");
    }
    out += &format!(
        "  {:>7} {:>12} {:>10} {:>7}  KERNEL, LINES, WHAT THEY WAIT FOR\n",
        "SHARE", "SAMPLES", "SM TIME", "ISSUED"
    );
    let most = if layout.rows == usize::MAX {
        LINES_SHOWN
    } else {
        LINES_SHOWN_LIVE
    };
    let mut left = layout.rows;
    for (shown, kernel) in rows.kernels.iter().enumerate() {
        if left == 0 {
            let hidden = (rows.kernels.len() - shown) as u64;
            out += &format!("  ... and {}\n", plural(hidden, "further kernel"));
            break;
        }
        let lines = kernel_lines(rows, kernel, most);
        for line in lines.iter().take(left) {
            out += &cut(line, layout.width);
            out.push('\n');
        }
        left = left.saturating_sub(lines.len());
    }
    out
}

fn kernel_lines(rows: &Rows, kernel: &KernelRow, most: usize) -> Vec<String> {
    let mut lines = vec![format!(
        "{}  {}",
        numbers(rows, &kernel.tally),
        brief(&kernel.name)
    )];
    for line in kernel.lines.iter().take(most) {
        let mnemonics: Vec<&str> = line
            .mnemonics
            .iter()
            .take(MNEMONICS_SHOWN)
            .map(|(m, _)| &**m)
            .collect();
        lines.push(format!(
            "{}    {}  {}{}{}",
            numbers(rows, &line.tally),
            spot(&line.spot),
            mnemonics.join(" "),
            if mnemonics.is_empty() { "" } else { "  " },
            line.tally.words(),
        ));
    }
    if kernel.lines.len() > most {
        let hidden = &kernel.lines[most..];
        let mut rest = Tally::default();
        hidden.iter().for_each(|line| rest.add(&line.tally));
        lines.push(format!(
            "{}    ... {}",
            numbers(rows, &rest),
            plural(hidden.len() as u64, "further line")
        ));
    }
    lines
}

fn numbers(rows: &Rows, tally: &Tally) -> String {
    format!(
        "  {:>7} {:>12} {:>10} {:>7}",
        percent(tally.samples.into(), rows.tally.samples.into()),
        count(tally.samples),
        time(rows, tally.samples),
        issued(rows, tally),
    )
}

fn issued(rows: &Rows, tally: &Tally) -> String {
    if rows.reasons_known {
        percent(tally.issued.into(), tally.samples.into())
    } else {
        "?".to_owned()
    }
}

fn time(rows: &Rows, samples: u64) -> String {
    match rows.time_ns(samples) {
        Some(ns) => duration(ns.into()),
        None => "?".to_owned(),
    }
}

/// The last two parts of the path; JSON has all of it.
pub fn spot(spot: &Spot) -> String {
    match spot {
        Spot::Line(file, line) => {
            let parts: Vec<&str> = file.rsplitn(3, '/').take(2).collect();
            let short: Vec<&str> = parts.into_iter().rev().collect();
            format!("{}:{line}", clean(&short.join("/")))
        }
        Spot::Unknown(why) => format!("({})", why.words()),
    }
}

/// What is not known, and what would help.
fn notes(
    id: ProcessId,
    process: &ProcessSamples,
    rows: &Rows,
    code: &Code,
    ledger: &Ledger,
) -> Vec<String> {
    let mut notes = Vec::new();
    for (why, samples) in &rows.unknown {
        let samples = plural(*samples, "sample");
        notes.push(format!("{samples} without a line: {}", why.words()));
    }
    if rows.further > 0 {
        let samples = plural(rows.further, "sample");
        notes.push(format!("{samples} of further instructions are in no row"));
    }
    if process.reasons.is_empty() {
        notes.push(
            "the names of the stall reasons have not come yet (they may take 10 s): a sample may count more than once"
                .to_owned(),
        );
    }
    if rows.ns_per_sample.is_none() {
        notes.push(if process.devices.is_empty() {
            "what a sample stands for has not come yet (it may take 10 s): no times".to_owned()
        } else {
            "the devices differ, or do not tell, in what a sample stands for: no times".to_owned()
        });
    }
    if process.unreadable > 0 {
        let records = plural(process.unreadable, "record");
        notes.push(format!(
            "{records} without readable reasons are not counted"
        ));
    }
    if process.too_many_reasons > 0 {
        let records = plural(process.too_many_reasons, "record");
        notes.push(format!(
            "{records} with more than 64 reasons, of which 64 count"
        ));
    }
    if rows.tally.dropped > 0 {
        let samples = plural(rows.tally.dropped, "sample");
        notes.push(format!("{samples} dropped by the hardware"));
    }
    let lost = ledger.entry(id.pid).map(|e| e.library_losses());
    if let Some(lost) = lost.filter(|l| !l.is_empty()) {
        notes.push(format!("lost in the library: {lost}"));
    }
    if let Some(why) = code.why_no_mnemonics() {
        notes.push(format!("no instructions named: {why} (--nvdisasm FILE)"));
    }
    notes
}

/// The same for programs, as `parcagpu top --help` says.
pub fn json(samples: &Samples, code: &mut Code, raw_names: bool) -> Value {
    samples
        .processes
        .iter()
        .filter(|(_, process)| process.records > 0)
        .map(|(id, process)| {
            let rows = Rows::new(process, code, raw_names);
            let unknown: BTreeMap<&str, u64> = rows
                .unknown
                .iter()
                .map(|(why, samples)| (why.name(), *samples))
                .collect();
            let kernels = rows.kernels.iter().map(|kernel| {
                let lines = kernel.lines.iter().map(|line| line_json(&rows, line));
                let mut value = tally_json(&rows, &kernel.tally);
                value.insert("kernel".to_owned(), kernel.name.clone().into());
                value.insert("lines".to_owned(), lines.collect());
                Value::Object(value)
            });
            let mut value = tally_json(&rows, &rows.tally);
            value.insert("pid".to_owned(), id.pid.into());
            value.insert("ns_per_sample".to_owned(), json!(rows.ns_per_sample));
            value.insert(
                "reasons_known".to_owned(),
                (!process.reasons.is_empty()).into(),
            );
            value.insert("dropped".to_owned(), rows.tally.dropped.into());
            value.insert("records".to_owned(), process.records.into());
            value.insert("unreadable".to_owned(), process.unreadable.into());
            value.insert("in_no_row".to_owned(), rows.further.into());
            value.insert("unknown".to_owned(), json!(unknown));
            value.insert("kernels".to_owned(), kernels.collect());
            Value::Object(value)
        })
        .collect()
}

fn tally_json(rows: &Rows, tally: &Tally) -> Map<String, Value> {
    let states: BTreeMap<&str, u64> = tally.states.iter().map(|(s, n)| (&**s, *n)).collect();
    let value = json!({
        "samples": tally.samples, "issued": tally.issued, "not_issued": tally.not_issued,
        "sm_time_ns": rows.time_ns(tally.samples), "states": states,
    });
    match value {
        Value::Object(map) => map,
        _ => Map::new(),
    }
}

fn line_json(rows: &Rows, line: &LineRow) -> Value {
    let mut value = tally_json(rows, &line.tally);
    let (file, number, knowledge) = match &line.spot {
        Spot::Line(file, line) => (json!(**file), json!(line), Knowledge::Line),
        Spot::Unknown(why) => (Value::Null, Value::Null, *why),
    };
    let mnemonics: Map<String, Value> = line
        .mnemonics
        .iter()
        .map(|(mnemonic, samples)| (mnemonic.to_string(), (*samples).into()))
        .collect();
    value.insert("file".to_owned(), file);
    value.insert("line".to_owned(), number);
    value.insert("place".to_owned(), knowledge.name().into());
    value.insert("mnemonics".to_owned(), Value::Object(mnemonics));
    Value::Object(value)
}
