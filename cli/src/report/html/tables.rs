//! Rows of the page's tables. What is left out is named with its sum, so that columns still add up.

use serde_json::{Value, json};

use super::super::sums::{self, Sum};
use super::super::view::View;
use super::super::{stalls, summary};
use super::number;
use crate::pc::reasons::Tally;
use crate::text::{count, duration, percent, plural};

/// Rows kept of each table.
const ROWS_MAX: usize = 5_000;

/// `rows`: name, share's base is `total_ns` of the page, sums, launching places.
pub fn kernels(view: &View<'_>) -> Value {
    let all = sums::kernels(view);
    let rows: Vec<Value> = all
        .iter()
        .take(ROWS_MAX)
        .map(|row| {
            let callers: Vec<String> = summary::callers(view, row)
                .into_iter()
                .take(5)
                .map(|(place, ns)| {
                    let part = percent(ns, row.sum.total_ns);
                    format!("{place} ({part})")
                })
                .collect();
            let mut fields = sum(&row.sum);
            fields["name"] = view.kernel_name(row.name).into();
            fields["callers"] = callers.into();
            fields
        })
        .collect();
    let rest: u128 = all.iter().skip(ROWS_MAX).map(|r| r.sum.total_ns).sum();
    json!({"rows": rows, "cut": cut(all.len(), "further kernel", rest)})
}

/// Nodes of graphs.
pub fn graph_nodes(view: &View<'_>) -> Value {
    let all = sums::graph_nodes(view);
    let rows: Vec<Value> = all
        .iter()
        .take(ROWS_MAX)
        .map(|((process, graph, node, kernel), row)| {
            let mut fields = sum(row);
            fields["name"] = view.kernel_name(*kernel).into();
            fields["process"] = view.process_name(*process).into();
            fields["graph"] = (*graph).into();
            // Node ids have more bits than a JavaScript number.
            fields["node"] = node.to_string().into();
            fields
        })
        .collect();
    let rest: u128 = all.iter().skip(ROWS_MAX).map(|r| r.1.total_ns).sum();
    json!({"rows": rows, "cut": cut(all.len(), "further node", rest)})
}

fn sum(sum: &Sum) -> Value {
    json!({
        "total": number(sum.total_ns), "calls": sum.calls, "no_time": sum.no_time,
        "mean": sum.mean_ns().map(number), "min": sum.mean_ns().map(|_| sum.min_ns),
        "max": sum.mean_ns().map(|_| sum.max_ns),
    })
}

fn cut(rows: usize, noun: &str, ns: u128) -> Option<String> {
    let more = rows.checked_sub(ROWS_MAX + 1)? as u64 + 1;
    Some(format!(
        "{} with {} of GPU time not shown",
        plural(more, noun),
        duration(ns)
    ))
}

/// Where warps wait.
pub fn stalls(view: &View<'_>) -> Value {
    let all = stalls::stalls(view);
    let rows: Vec<Value> = all
        .places
        .iter()
        .take(ROWS_MAX)
        .map(|row| {
            json!({
                "place": row.place.text(view), "function": view.kernel_name(row.place.function),
                "samples": row.tally.samples, "waiting": row.tally.waiting(),
                "reasons": reasons(&row.tally), "words": row.tally.words(),
            })
        })
        .collect();
    let more = all.places.len().saturating_sub(ROWS_MAX) as u64;
    json!({
        "rows": rows, "samples": all.tally.samples, "reasons": reasons(&all.tally),
        "notes": all.notes(),
        "cut": (more > 0).then(|| format!("{} not shown", plural(more, "further place"))),
    })
}

/// Name and samples of each state, the most frequent first.
fn reasons(tally: &Tally) -> Value {
    stalls::states(tally)
        .into_iter()
        .map(|(state, n)| json!([state, n]))
        .collect()
}

/// NVTX ranges and marks.
pub fn ranges(view: &View<'_>) -> Value {
    let all = sums::ranges(view);
    let rows: Vec<Value> = all
        .iter()
        .take(ROWS_MAX)
        .map(|row| {
            json!({
                "name": view.name(row.name), "domain": view.name(row.domain),
                "gpu": number(row.kernels.total_ns), "kernels": row.kernels.calls,
                "cpu": number(row.total_ns), "count": row.count - row.marks,
                "open": row.open, "marks": row.marks,
            })
        })
        .collect();
    let more = all.len().saturating_sub(ROWS_MAX) as u64;
    json!({"rows": rows, "cut": (more > 0).then(|| format!("{} further names not shown", count(more)))})
}
