//! The table of kernels, as text and as JSON.

use serde_json::{Value, json};

use crate::accounts::{Accounts, ProcessAccount};
use crate::brief::brief;
use crate::demangle::clean;
use crate::ledger::{DOCTOR, Entry, Ledger, coverage};
use crate::session::{ProcessId, Session};
use crate::text::{count, duration, percent, plural};
use crate::trace::loss_line;

/// Processes without events that are named; a shell script may start thousands.
pub const SILENT_SHOWN: u64 = 5;

/// How to print.
#[derive(Clone, Copy, Debug)]
pub struct Layout {
    /// Rows per process.
    pub rows: usize,
    /// Columns of the terminal, 0: unlimited.
    pub width: usize,
    /// Names as the compiler made them.
    pub raw_names: bool,
}

/// Processes in order of their GPU time, those without events last.
fn processes<'a>(
    accounts: &'a Accounts,
    ledger: &Ledger,
    silent: &'a ProcessAccount,
) -> Vec<(ProcessId, &'a ProcessAccount)> {
    let mut all: Vec<_> = accounts.processes.iter().map(|(id, a)| (*id, a)).collect();
    for (pid, _) in ledger.entries() {
        if !all.iter().any(|(id, _)| id.pid == pid) {
            all.push((ProcessId { pid, start_ns: 0 }, silent));
        }
    }
    all.sort_by(|(ai, a), (bi, b)| b.total_ns().cmp(&a.total_ns()).then(ai.cmp(bi)));
    all
}

/// The table for people; ends with a newline.
pub fn text(accounts: &Accounts, ledger: &Ledger, session: &Session, layout: Layout) -> String {
    let silent = ProcessAccount::default();
    let mut out = String::new();
    let mut without_events = 0;
    let mut odd = false;
    for (id, account) in processes(accounts, ledger, &silent) {
        if std::ptr::eq(account, &raw const silent) {
            without_events += 1;
            odd |= ledger.entry(id.pid).is_some_and(Entry::is_odd);
            if without_events > SILENT_SHOWN {
                continue;
            }
        }
        out += &process_text(id, account, ledger, layout);
        out.push('\n');
    }
    if without_events > SILENT_SHOWN {
        out += &more_silent(without_events);
    }
    if odd {
        out += &format!("{DOCTOR}\n");
    }
    out + &tail(accounts, session)
}

/// Counts the processes without events that were not named.
pub fn more_silent(silent: u64) -> String {
    let n = count(silent - SILENT_SHOWN);
    format!("... and {n} more that have the library; nothing seen\n\n")
}

/// What stands under every table: what processes complained of, and what was lost on the way to us.
pub fn tail(accounts: &Accounts, session: &Session) -> String {
    let mut out = String::new();
    for error in &accounts.errors {
        out += &format!(
            "warning: process {}: {} (code {})\n",
            error.pid, error.text, error.code
        );
    }
    out += &loss_line(session);
    out.push('\n');
    out
}

/// What stands at the head of a process.
pub fn head(id: ProcessId, ledger: &Ledger) -> String {
    let comm = ledger.entry(id.pid).map_or("?", |e| e.comm.as_str());
    format!("PID {} ({})", id.pid, clean(comm))
}

fn process_text(
    id: ProcessId,
    account: &ProcessAccount,
    ledger: &Ledger,
    layout: Layout,
) -> String {
    let entry = ledger.entry(id.pid);
    let head = head(id, ledger);
    if account.launches == 0 && account.records == 0 {
        let why = entry.map_or_else(String::new, |e| format!(": {}", e.why_nothing()));
        return format!("{head}: nothing seen{why}\n");
    }
    let seen = entry.and_then(|e| e.launches_seen());
    let mut out = format!("{head}: {}\n", coverage(account.launches, seen));
    let mut notes = vec![plural(account.records, "kernel record")];
    if !account.outstanding.is_empty() {
        let more = if account.outstanding_overflow {
            "at least "
        } else {
            ""
        };
        let n = account.outstanding.len() as u64;
        notes.push(format!(
            "{more}{} launched without a record so far",
            count(n)
        ));
    }
    if account.no_time > 0 {
        notes.push(format!("{} without time", count(account.no_time)));
    }
    if let Some(losses) = entry.map(|e| e.library_losses()).filter(|l| !l.is_empty()) {
        notes.push(format!("lost in the library: {losses}"));
    }
    out += &format!("  {}\n", notes.join("; "));
    out += &format!(
        "  {:>7} {:>14} {:>12} {:>12}  KERNEL\n",
        "SHARE", "CALLS", "TOTAL", "MEAN"
    );
    let total = account.total_ns();
    let kernels = account.kernels(layout.raw_names);
    for (name, row) in kernels.iter().take(layout.rows) {
        let mean = row.mean_ns().map_or("no time".to_owned(), duration);
        let time = if row.mean_ns().is_some() {
            duration(row.total_ns)
        } else {
            "no time".to_owned()
        };
        let line = format!(
            "  {:>7} {:>14} {time:>12} {mean:>12}  {}",
            percent(row.total_ns, total),
            count(row.calls),
            if layout.raw_names {
                name.into()
            } else {
                brief(name)
            }
        );
        out += &cut(&line, layout.width);
        out.push('\n');
    }
    if kernels.len() > layout.rows {
        let hidden = (kernels.len() - layout.rows) as u64;
        out += &format!("  ... and {}\n", plural(hidden, "further kernel"));
    }
    out
}

/// At most `width` columns of a line, with an ellipsis where something is missing.
pub fn cut(line: &str, width: usize) -> String {
    if width == 0 || line.chars().count() <= width {
        return line.to_owned();
    }
    line.chars()
        .take(width.saturating_sub(1))
        .chain(['…'])
        .collect()
}

/// The same for programs: `processes` (pid, comm, launches_told, launches_seen or null, sample,
/// outstanding, records, no_time, why_nothing, kernels), `errors`, `events_dropped`.
pub fn json(accounts: &Accounts, ledger: &Ledger, session: &Session, raw_names: bool) -> Value {
    let silent = ProcessAccount::default();
    let list: Vec<Value> = processes(accounts, ledger, &silent)
        .into_iter()
        .map(|(id, account)| process_json(id, account, ledger, raw_names))
        .collect();
    let errors: Vec<Value> = accounts
        .errors
        .iter()
        .map(|e| json!({"pid": e.pid, "code": e.code, "text": e.text}))
        .collect();
    let losses = session.losses().unwrap_or_default();
    json!({
        "processes": list,
        "errors": errors,
        "events_dropped": losses.iter().map(|l| l.dropped).sum::<u64>(),
        "records_unreadable": losses.iter().map(|l| l.unreadable).sum::<u64>(),
    })
}

fn process_json(
    id: ProcessId,
    account: &ProcessAccount,
    ledger: &Ledger,
    raw_names: bool,
) -> Value {
    let entry = ledger.entry(id.pid);
    let seen = entry.and_then(|e| e.launches_seen());
    let nothing = account.launches == 0 && account.records == 0;
    let kernels: Vec<Value> = account
        .kernels(raw_names)
        .into_iter()
        .map(|(name, row)| {
            json!({
                "kernel": name, "calls": row.calls, "no_time": row.no_time,
                "total_ns": nanos(row.total_ns),
                "mean_ns": row.mean_ns().map(nanos),
            })
        })
        .collect();
    json!({
        "pid": id.pid,
        "comm": entry.map(|e| e.comm.clone()),
        "launches_told": account.launches,
        "launches_seen": seen.map(|n| n.max(account.launches)),
        "sample": seen.is_none_or(|n| n > account.launches),
        "outstanding": account.outstanding.len(),
        "records": account.records,
        "no_time": account.no_time,
        "library_losses": entry.map(|e| e.library_losses()),
        "why_nothing": nothing.then(|| entry.map(|e| e.why_nothing())),
        "kernels": kernels,
    })
}

fn nanos(n: u128) -> u64 {
    u64::try_from(n).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_are_cut() {
        assert_eq!(cut("abcdef", 4), "abc…");
        assert_eq!(cut("abcd", 4), "abcd");
        assert_eq!(cut("abcdef", 0), "abcdef");
    }
}
