//! The report as plain text: the slowest kernels, who launched them, which lines wait, what is missing.

use std::fmt::Write as _;
use std::io::Write;
use std::path::Path;

use anyhow::Result;

use super::stalls::stalls;
use super::sums::{self, KernelRow, RangeRow, total_ns};
use super::view::View;
use crate::brief::brief;
use crate::demangle::clean;
use crate::pc::reasons::Tally;
use crate::table::cut;
use crate::text::{count, duration, percent, plural};

/// Rows of each table.
const ROWS: usize = 20;
/// Launching places named per kernel.
const CALLERS: usize = 2;
/// Devices named at the head.
const DEVICES: usize = 8;

/// Writes the summary; lines are cut at `width`, 0: never.
pub fn write(view: &View<'_>, width: usize, out: &mut dyn Write) -> Result<()> {
    for line in text(view).lines() {
        writeln!(out, "{}", cut(line, width))?;
    }
    Ok(())
}

fn text(view: &View<'_>) -> String {
    let mut out = head(view);
    kernels(view, &mut out);
    waits(view, &mut out);
    ranges(view, &mut out);
    errors(view, &mut out);
    out
}

fn head(view: &View<'_>) -> String {
    let mut out = view.title();
    let processes: Vec<String> = (0..)
        .zip(&view.rec.processes)
        .take(8)
        .map(|(i, _)| view.process_name(i))
        .collect();
    let more = view.rec.processes.len().saturating_sub(processes.len());
    let more = match more {
        0 => String::new(),
        n => format!(" and {n} more"),
    };
    let colon = if processes.is_empty() { "" } else { ": " };
    let _ = writeln!(out, "{colon}{}{more}", processes.join(", "));
    let _ = writeln!(out, "  {}", view.recorded());
    let devices = view.devices();
    for device in devices.iter().take(DEVICES) {
        let _ = writeln!(out, "  on {device}");
    }
    if devices.len() > DEVICES {
        let more = (devices.len() - DEVICES) as u64;
        let _ = writeln!(out, "  ... and {}", plural(more, "further device"));
    }
    let _ = writeln!(
        out,
        "GPU time {} in {}",
        duration(total_ns(view)),
        plural(view.coverage.kernels, "kernel record")
    );
    for note in view.notes() {
        let _ = writeln!(out, "  {note}");
    }
    out
}

fn kernels(view: &View<'_>, out: &mut String) {
    let rows = sums::kernels(view);
    if rows.is_empty() {
        return;
    }
    let total = total_ns(view);
    let _ = writeln!(
        out,
        "\nKernels by GPU time\n{:>9} {:>12} {:>10} {:>10} {:>10}  KERNEL",
        "SHARE", "TOTAL", "CALLS", "MEAN", "LONGEST"
    );
    for row in rows.iter().take(ROWS) {
        kernel(view, row, total, out);
    }
    more(rows.len(), "further kernel", out);
}

fn kernel(view: &View<'_>, row: &KernelRow, total: u128, out: &mut String) {
    let sum = &row.sum;
    let time = |ns: Option<u128>| ns.map_or("no time".to_owned(), duration);
    let timed = sum.mean_ns().is_some();
    let _ = writeln!(
        out,
        "{:>9} {:>12} {:>10} {:>10} {:>10}  {}",
        percent(sum.total_ns, total),
        time(timed.then_some(sum.total_ns)),
        count(sum.calls),
        time(sum.mean_ns()),
        time(timed.then_some(sum.max_ns.into())),
        brief(view.kernel_name(row.name))
    );
    let callers = callers(view, row);
    for (caller, ns) in callers.iter().take(CALLERS) {
        let part = if callers.len() > 1 {
            format!(" ({} of it)", percent(*ns, sum.total_ns))
        } else {
            String::new()
        };
        let _ = writeln!(out, "{:57}launched by {caller}{part}", "");
    }
}

/// Launching places of a kernel by falling GPU time, those that are known.
pub fn callers(view: &View<'_>, row: &KernelRow) -> Vec<(String, u128)> {
    let mut places: Vec<(String, u128)> = Vec::new();
    // Few stacks make up most of the time; a kernel launched from thousands has no one caller to name.
    for (stack, sum) in row.stacks.iter().take(1000) {
        let Some(place) = view.callers(*stack) else {
            continue;
        };
        match places.iter_mut().find(|(known, _)| *known == place) {
            Some((_, ns)) => *ns += sum.total_ns,
            None => places.push((place, sum.total_ns)),
        }
    }
    places.sort_by_key(|(_, ns)| std::cmp::Reverse(*ns));
    places
}

fn waits(view: &View<'_>, out: &mut String) {
    if view.rec.pc_samples.is_empty() {
        return;
    }
    let all = stalls(view);
    let _ = writeln!(
        out,
        "\nWhere warps wait, of {} (shares of samples, not of time; most waiting first): {}",
        plural(all.tally.samples, "PC sample"),
        all.tally.words()
    );
    let numbers = |tally: &Tally| {
        format!(
            "{:>9} {:>10} {:>10}",
            percent(tally.samples.into(), all.tally.samples.into()),
            count(tally.samples),
            count(tally.waiting())
        )
    };
    let here = std::env::current_dir().unwrap_or_default();
    let titles = format!("{:>9} {:>10} {:>10}", "SHARE", "SAMPLES", "WAITING");
    let mut lines: Vec<_> = all.places.iter().filter(|r| r.place.line != 0).collect();
    lines.retain(|r| r.tally.waiting() > 0);
    lines.sort_by_key(|r| std::cmp::Reverse(r.tally.waiting()));
    if !lines.is_empty() {
        let _ = writeln!(out, "{titles}  LINE, WHAT IT WAITS FOR, KERNEL");
    }
    for row in lines.iter().take(ROWS) {
        let _ = writeln!(
            out,
            "{}  {}: {}\n{:33}in {}",
            numbers(&row.tally),
            from_here(&row.place.text(view), &here),
            row.tally.words(),
            "",
            brief(view.kernel_name(row.place.function))
        );
    }
    more(lines.len(), "further line", out);
    let mut kernels = all.unplaced();
    kernels.retain(|k| k.tally.waiting() > 0);
    if !kernels.is_empty() {
        let _ = writeln!(
            out,
            "{titles}  KERNEL, WHAT IT WAITS FOR WHERE NO LINE IS KNOWN"
        );
    }
    for row in kernels.iter().take(ROWS) {
        let _ = writeln!(
            out,
            "{}  {}: {}\n{:33}in {}, most at {}",
            numbers(&row.tally),
            brief(view.kernel_name(row.function)),
            row.tally.words(),
            "",
            plural(row.instructions, "instruction"),
            row.most.0.text(view)
        );
    }
    more(kernels.len(), "further kernel", out);
    for note in all.notes() {
        let _ = writeln!(out, "  {note}");
    }
}

/// A place as it is called in this folder: the compiler's name of a source is whole.
fn from_here<'a>(place: &'a str, here: &Path) -> &'a str {
    let here = here.to_str().filter(|here| !here.is_empty());
    let below = here.and_then(|here| place.strip_prefix(here));
    let below = below.and_then(|rest| rest.strip_prefix('/'));
    below.filter(|rest| !rest.is_empty()).unwrap_or(place)
}

fn ranges(view: &View<'_>, out: &mut String) {
    let rows: Vec<RangeRow> = sums::ranges(view)
        .into_iter()
        .filter(|r| r.count > r.marks)
        .collect();
    if rows.is_empty() {
        return;
    }
    let _ = writeln!(
        out,
        "\nNVTX ranges by GPU time launched inside\n{:>12} {:>10} {:>12} {:>10}  RANGE",
        "GPU TIME", "KERNELS", "CPU TIME", "COUNT"
    );
    for row in rows.iter().take(ROWS) {
        let domain = match view.name(row.domain) {
            "" => String::new(),
            domain => format!(" ({domain})"),
        };
        let open = match row.open {
            0 => String::new(),
            n => format!(", {} open at the end", count(n)),
        };
        let _ = writeln!(
            out,
            "{:>12} {:>10} {:>12} {:>10}  {}{domain}{open}",
            duration(row.kernels.total_ns),
            count(row.kernels.calls),
            duration(row.total_ns),
            count(row.count - row.marks),
            view.name(row.name)
        );
    }
    more(rows.len(), "further range", out);
}

fn errors(view: &View<'_>, out: &mut String) {
    let errors = &view.rec.errors;
    if !errors.is_empty() {
        out.push('\n');
    }
    for error in errors.iter().take(ROWS) {
        let _ = writeln!(
            out,
            "warning: {}: {} (code {})",
            view.process_name(error.process),
            clean(&format!("{}: {}", error.component, error.message)),
            error.code
        );
    }
    more(errors.len(), "further warning", out);
}

fn more(rows: usize, noun: &str, out: &mut String) {
    if rows > ROWS {
        let _ = writeln!(out, "  ... and {}", plural((rows - ROWS) as u64, noun));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sources_below_this_folder_have_short_names() {
        let of = |place, here: &str| from_here(place, Path::new(here)).to_owned();
        assert_eq!(of("/a/b/src/x.cu:7", "/a/b"), "src/x.cu:7");
        for (place, here) in [
            ("/a/bc/x.cu:7", "/a/b"),
            ("x.cu:7", "/a"),
            ("/x.cu:7", ""),
            ("/a/", "/a"),
        ] {
            assert_eq!(of(place, here), place);
        }
    }
}
