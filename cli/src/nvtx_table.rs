//! The table of NVTX ranges, as text and as JSON.

use serde_json::{Value, json};

use crate::accounts::Accounts;
use crate::ledger::{Ledger, coverage};
use crate::nvtx::{Key, Process, Ranges, Row};
use crate::session::{ProcessId, Session};
use crate::table::{Layout, cut, head, tail};
use crate::text::{count, duration, plural};

/// Name of a range's domain; `None`: the default one.
pub fn domain(process: &Process, key: &Key) -> Option<String> {
    (key.domain != 0).then(|| match process.domains.get(&key.domain) {
        Some(name) => name.clone(),
        None => format!("(domain {})", key.domain),
    })
}

/// The table for people; ends with a newline.
pub fn text(
    ranges: &Ranges,
    accounts: &Accounts,
    ledger: &Ledger,
    session: &Session,
    layout: Layout,
) -> String {
    let mut out = String::new();
    for (id, process) in &ranges.processes {
        out += &process_text(*id, process, accounts, ledger, layout);
        out.push('\n');
    }
    if ranges.processes.is_empty() {
        out += "no NVTX ranges seen: does the program make any, and is NVTX_INJECTION64_PATH set to the library?\n\n";
    }
    out + &tail(accounts, session)
}

fn process_text(
    id: ProcessId,
    process: &Process,
    accounts: &Accounts,
    ledger: &Ledger,
    layout: Layout,
) -> String {
    let entry = ledger.entry(id.pid);
    let launches = accounts.processes.get(&id).map_or(0, |a| a.launches);
    let seen = entry.and_then(|e| e.launches_seen());
    let mut out = format!("{}: {}\n", head(id, ledger), coverage(launches, seen));
    let rows = process.rows();
    if rows.is_empty() {
        return out + "  no NVTX ranges\n";
    }
    if let Some(losses) = entry.map(|e| e.library_losses()).filter(|l| !l.is_empty()) {
        out += &format!("  lost in the library: {losses}\n");
    }
    if process.unmatched_ends > 0 {
        let ends = plural(process.unmatched_ends, "range");
        out += &format!("  {ends} ended whose beginning was not seen\n");
    }
    out += &format!(
        "  {:>12} {:>12} {:>12} {:>12} {:>10}  RANGE\n",
        "GPU", "COUNT", "TOTAL", "MEAN", "KERNELS"
    );
    for (key, row) in rows.iter().take(layout.rows) {
        out += &cut(&line(process, key, row), layout.width);
        out.push('\n');
    }
    if rows.len() > layout.rows {
        let hidden = (rows.len() - layout.rows) as u64;
        out += &format!("  ... and {}\n", plural(hidden, "further range"));
    }
    out
}

fn line(process: &Process, key: &Key, row: &Row) -> String {
    let gpu = match row.kernels - row.no_time {
        0 if row.kernels > 0 => "no time".to_owned(),
        0 => "-".to_owned(),
        _ => duration(row.gpu_ns),
    };
    let (total, mean) = match mean(row) {
        Some(mean) => (duration(row.total_ns), duration(mean)),
        None => ("-".to_owned(), "-".to_owned()),
    };
    let name = match domain(process, key) {
        Some(domain) => format!("{domain}: {}", key.name),
        None => key.name.clone(),
    };
    let open = match row.open {
        0 => String::new(),
        open => format!(" ({} open)", count(open)),
    };
    format!(
        "  {gpu:>12} {:>12} {total:>12} {mean:>12} {:>10}  {name}{open}",
        count(row.count),
        count(row.kernels)
    )
}

fn mean(row: &Row) -> Option<u128> {
    row.total_ns.checked_div(u128::from(row.count))
}

/// The same for programs, as `parcagpu top --help` says.
pub fn json(ranges: &Ranges) -> Value {
    let nanos = |n: u128| u64::try_from(n).unwrap_or(u64::MAX);
    ranges
        .processes
        .iter()
        .map(|(id, process)| {
            let rows: Vec<Value> = process
                .rows()
                .into_iter()
                .map(|(key, row)| {
                    json!({
                        "domain": domain(process, key), "range": key.name,
                        "count": row.count, "open": row.open,
                        "total_ns": nanos(row.total_ns), "mean_ns": mean(&row).map(nanos),
                        "kernels": row.kernels, "no_time": row.no_time,
                        "gpu_ns": nanos(row.gpu_ns),
                    })
                })
                .collect();
            json!({"pid": id.pid, "unmatched_ends": process.unmatched_ends, "ranges": rows})
        })
        .collect()
}
