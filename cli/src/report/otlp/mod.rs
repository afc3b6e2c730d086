//! A recording as OTLP profiles, over HTTP.
//!
//! One request has everything: a resource per process, and in it a profile per kind of value, as OTLP has one kind in
//! each. Types and encoding are those of the crate `opentelemetry-proto`. The signal is in development: a collector has
//! to be told to take it.

mod dictionary;
mod endpoint;
mod profiles;
mod send;

use anyhow::Result;

use super::view::View;
use crate::recording::model::Recording;
use crate::text::{count, duration, plural};

pub use endpoint::Endpoint;
pub use profiles::request;

/// Sends a recording and says on stderr what was sent.
pub fn send(recording: &Recording, endpoint: &Endpoint) -> Result<()> {
    let view = View::new(recording);
    let (request, totals) = request(recording);
    if totals.profiles == 0 {
        eprintln!("nothing is sent: there is no kernel and no PC sample");
        return Ok(());
    }
    let sent = send::send(endpoint, &request, send::TIMEOUT)?;
    if sent.rejected > 0 {
        anyhow::bail!(
            "{endpoint} rejected {} of {}: {}",
            sent.rejected,
            plural(totals.profiles, "profile"),
            sent.said_or("it does not say why")
        );
    }
    eprintln!(
        "sent {} to {endpoint}: {} of GPU time in {}, {}",
        plural(totals.profiles, "profile"),
        duration(totals.gpu_ns),
        plural(totals.kernels, "kernel record"),
        plural(totals.pc_samples, "PC sample"),
    );
    eprintln!(
        "  {}; {} bytes",
        view.coverage.sentence(),
        count(sent.bytes)
    );
    if !sent.said.is_empty() {
        eprintln!("  {endpoint} says: {}", sent.said);
    }
    Ok(())
}
