//! GPU time under the CPU stack that launched it: folded stacks, and the flame graph drawn of them.

use std::collections::BTreeMap;
use std::io::Write;

use anyhow::{Context, Result};
use inferno::flamegraph::{self, Options, TextTruncateDirection};

use super::sums::launched;
use super::view::{NO_STACK, View};
use crate::demangle::plays_tricks;
use crate::text::duration;

/// Sums up to here are drawn as they are, those beyond (100 days, or nonsense in the file) in other units: the
/// drawing adds up machine words.
const DRAWN_MAX: u128 = 1 << 53;

/// `process;outermost;...;innermost;kernel` and GPU time, ns, for all that has some.
pub fn stacks(view: &View<'_>) -> BTreeMap<String, u128> {
    let mut lines = BTreeMap::new();
    for ((process, stack, kernel), sum) in launched(view) {
        if sum.total_ns == 0 {
            continue;
        }
        let mut line = word(&view.process_name(process));
        let mut frames = view.stack(stack).rev().peekable();
        if frames.peek().is_none() {
            line = line + ";" + NO_STACK;
        }
        for frame in frames {
            line = line + ";" + &word(view.kernel_name(frame.function));
        }
        line = line + ";" + &word(view.kernel_name(kernel));
        *lines.entry(line).or_default() += sum.total_ns;
    }
    lines
}

/// A frame in a folded line: `;` separates frames there, and a line ends at a newline.
fn word(name: &str) -> String {
    name.replace(';', ":")
}

/// Writes folded stacks, what the recording is of in comment lines above them.
pub fn write_folded(view: &View<'_>, out: &mut dyn Write) -> Result<()> {
    for note in view.notes() {
        // Readers skip what does not end in a number.
        let end = if note.ends_with(|c: char| c.is_ascii_digit()) {
            "."
        } else {
            ""
        };
        writeln!(out, "# {note}{end}")?;
    }
    for (stack, ns) in stacks(view) {
        writeln!(out, "{stack} {ns}")?;
    }
    Ok(())
}

/// Writes the flame graph as SVG.
pub fn write_svg(view: &View<'_>, out: &mut dyn Write) -> Result<()> {
    let stacks = stacks(view);
    let total: u128 = stacks.values().sum();
    if total == 0 {
        let text = escape(&format!(
            "No GPU time in this recording. {}",
            view.notes().join("; ")
        ));
        writeln!(
            out,
            r#"<svg xmlns="http://www.w3.org/2000/svg" width="1200" height="60"><text x="10" y="35" font-family="sans-serif">{text}</text></svg>"#
        )?;
        return Ok(());
    }
    let scale = total / DRAWN_MAX + 1;
    let lines: Vec<String> = stacks
        .iter()
        .map(|(stack, ns)| (stack, ns / scale))
        .filter(|(_, width)| *width > 0)
        .map(|(stack, width)| format!("{stack} {width}"))
        .collect();
    let mut options = Options::default();
    options.title = format!("GPU time by CPU stack and kernel: {}", duration(total));
    // One line is all the room there is.
    options.subtitle = Some(view.coverage.sentence());
    options.text_truncate_direction = TextTruncateDirection::Right;
    options.count_name = match scale {
        1 => "ns of GPU time".to_owned(),
        scale => format!("times {scale} ns of GPU time"),
    };
    "Frame:".clone_into(&mut options.name_type);
    options.hash = true;
    flamegraph::from_lines(&mut options, lines.iter().map(String::as_str), out)
        .context("failed to draw the flame graph")
}

/// Text for XML and HTML, also inside quotes.
pub fn escape(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for c in text.chars() {
        match c {
            '&' => out.push_str("&amp;"),
            '<' => out.push_str("&lt;"),
            '>' => out.push_str("&gt;"),
            '"' => out.push_str("&quot;"),
            '\'' => out.push_str("&#39;"),
            c if plays_tricks(c) => out.push('\u{fffd}'),
            c => out.push(c),
        }
    }
    out
}
