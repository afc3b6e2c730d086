//! One HTML page that needs nothing else: timeline, kernels, flame graph, waiting lines, ranges, graph nodes.
//!
//! The page is fixed text, the recording is data beside it: JSON and packed numbers in `<script>` elements that
//! are not run, put into the page by its scripts as text only. A policy in the page lets nothing else run and
//! nothing be fetched, so that a name cannot do harm even if an escape were forgotten.

mod flame;
mod tables;
mod timeline;

use std::hash::{BuildHasher, Hasher, RandomState};
use std::io::Write;

use anyhow::Result;
use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use base64::write::EncoderWriter;
use serde_json::{Value, json};

use super::coverage::share;
use super::folded::escape;
use super::sums::total_ns;
use super::view::View;
use crate::demangle::clean;
use crate::text::{count, duration, plural};

const STYLE: &str = include_str!("html/style.css");
const BODY: &str = include_str!("html/body.html");
const SCRIPTS: [&str; 5] = [
    include_str!("html/common.js"),
    include_str!("html/timeline.js"),
    include_str!("html/flame.js"),
    include_str!("html/tables.js"),
    include_str!("html/main.js"),
];

/// Writes the page.
pub fn write(view: &View<'_>, out: &mut dyn Write) -> Result<()> {
    let timeline = timeline::timeline(view);
    let data = data(view, &timeline);
    let nonce = nonce();
    write!(
        out,
        "<!doctype html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n\
         <meta http-equiv=\"Content-Security-Policy\" content=\"default-src 'none'; \
         script-src 'nonce-{nonce}'; style-src 'nonce-{nonce}'\">\n\
         <meta name=\"viewport\" content=\"width=device-width\">\n\
         <title>{}</title>\n<style nonce=\"{nonce}\">\n{STYLE}</style>\n</head>\n<body>\n",
        escape(&title(view))
    )?;
    head(view, out)?;
    out.write_all(BODY.as_bytes())?;
    // `<` occurs in JSON only inside texts; escaped, no text can end the element.
    let json = data.to_string().replace('<', "\\u003c");
    write!(
        out,
        "<script type=\"application/json\" id=\"data\">{json}</script>\n\
         <script type=\"application/octet-stream\" id=\"items\">"
    )?;
    let mut base64 = EncoderWriter::new(&mut *out, &STANDARD);
    base64.write_all(&timeline.packed)?;
    base64.finish()?;
    drop(base64);
    writeln!(out, "</script>")?;
    for script in SCRIPTS {
        write!(out, "<script nonce=\"{nonce}\">\n{script}</script>\n")?;
    }
    out.write_all(b"</body>\n</html>\n")?;
    Ok(())
}

/// Devices named at the head.
const DEVICES: usize = 8;

/// Only has to be what a recorded name cannot know.
fn nonce() -> String {
    let random = || RandomState::new().build_hasher().finish().to_ne_bytes();
    STANDARD.encode([random(), random()].concat())
}

fn title(view: &View<'_>) -> String {
    match view.rec.about.command.as_str() {
        "" => "parcagpu report".to_owned(),
        command => format!("parcagpu: {command}"),
    }
}

/// What must be readable without scripts: what this is of, and what is missing.
fn head(view: &View<'_>, out: &mut dyn Write) -> Result<()> {
    let class = if view.coverage.whole {
        "whole"
    } else {
        "sample"
    };
    let mut about = vec![duration(view.length_ns().into()), view.recorded()];
    about.extend(view.devices().into_iter().take(DEVICES));
    write!(
        out,
        "<header>\n<h1>{}</h1>\n<p class=\"about\">{}</p>\n\
         <p class=\"total\"><b>{}</b> of GPU time in {}</p>\n<ul class=\"notes {class}\">\n",
        escape(&title(view)),
        escape(&about.join("; ")),
        escape(&duration(total_ns(view))),
        plural(view.coverage.kernels, "kernel record"),
    )?;
    for note in view.notes() {
        writeln!(out, "<li>{}</li>", escape(&note))?;
    }
    let clocks = &view.rec.clocks;
    if !view.rec.launches.is_empty() || !view.rec.ranges.is_empty() {
        writeln!(
            out,
            "<li class=\"small\">launches and ranges stand beside kernels to within {}{}</li>",
            escape(&duration(clocks.uncertainty_ns.into())),
            match clocks.drift_ns {
                0 => String::new(),
                drift => format!(
                    "; the clocks moved apart by {} meanwhile",
                    duration(drift.unsigned_abs().into())
                ),
            }
        )?;
    }
    out.write_all(
        b"</ul>\n<noscript>The rest of this page needs scripts.</noscript>\n</header>\n",
    )?;
    Ok(())
}

fn data(view: &View<'_>, timeline: &timeline::Timeline) -> Value {
    let processes: Vec<Value> = (0..)
        .zip(&view.rec.processes)
        .map(|(i, p)| {
            json!({
                "name": view.process_name(i),
                "share": share(p.launches_sampled, p.launches_seen),
                "devices": p.devices.keys().map(|d| view.device(i, *d)).collect::<Vec<_>>(),
            })
        })
        .collect();
    let errors: Vec<String> = view
        .rec
        .errors
        .iter()
        .take(200)
        .map(|e| {
            let who = view.process_name(e.process);
            clean(&format!(
                "{who}: {}: {} (code {})",
                e.component, e.message, e.code
            ))
        })
        .collect();
    json!({
        "total_ns": number(total_ns(view)),
        "sentence": view.coverage.sentence(),
        "processes": processes,
        "timeline": timeline.json(),
        "flame": flame::flame(view),
        "kernels": tables::kernels(view),
        "stalls": tables::stalls(view),
        "ranges": tables::ranges(view),
        "nodes": tables::graph_nodes(view),
        "errors": errors,
    })
}

/// JavaScript counts exactly up to 2^53, which is 104 days of ns.
fn number(ns: u128) -> u64 {
    u64::try_from(ns).unwrap_or(u64::MAX)
}

/// `the N longest of M THINGS`, when some were left out.
fn left_out(shown: usize, all: usize, what: &str, things: &str) -> Option<String> {
    (shown < all).then(|| {
        format!(
            "{} of {} {things}: {what}",
            count(shown as u64),
            count(all as u64)
        )
    })
}
