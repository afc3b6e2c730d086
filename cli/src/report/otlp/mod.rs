//! A recording as OTLP profiles, over HTTP.
//!
//! One request has everything: a resource per process, and in it a profile per kind of value, as OTLP has one kind in
//! each. Types and encoding are those of the crate `opentelemetry-proto`. The signal is in development: a collector has
//! to be told to take it.

mod dictionary;
mod endpoint;
mod profiles;
mod send;

use std::sync::mpsc::{self, RecvTimeoutError};
use std::time::{Duration, Instant};

use anyhow::{Result, bail};
use opentelemetry_proto::tonic::collector::profiles::v1development::ExportProfilesServiceRequest;

use super::view::View;
use crate::recording::model::Recording;
use crate::signals;
use crate::text::{count, duration, plural};
use crate::watch::POLL;
use send::Sent;

pub use endpoint::{Endpoint, Word};

/// From then on it says what it waits for.
const SILENCE: Duration = Duration::from_secs(1);

/// The request that has a recording in it.
pub fn request(recording: &Recording) -> ExportProfilesServiceRequest {
    profiles::request(&View::new(recording)).0
}

/// Sends a recording and says on stderr what was sent.
pub fn send(recording: &Recording, endpoint: &Endpoint) -> Result<()> {
    let view = View::new(recording);
    let (request, totals) = profiles::request(&view);
    if totals.profiles == 0 {
        eprintln!("nothing is sent: there is no kernel and no PC sample");
        return Ok(());
    }
    let sent = unless_interrupted(endpoint, request)?;
    let profiles = plural(totals.profiles, "profile");
    if sent.rejected > 0 {
        bail!(
            "{endpoint} rejected {} of {profiles}: {}",
            sent.rejected,
            sent.said_or("it does not say why")
        );
    }
    eprintln!(
        "sent {profiles} to {endpoint}: {} of GPU time in {}, {}",
        duration(totals.gpu_ns),
        plural(totals.kernels, "kernel record"),
        plural(totals.pc_samples, "PC sample"),
    );
    let share = view.coverage.sentence();
    eprintln!("  {share}; {} bytes", count(sent.bytes));
    if !sent.said.is_empty() {
        eprintln!("  {endpoint} says: {}", sent.said);
    }
    Ok(())
}

/// Sends on a thread of its own, which is left behind where a signal ends the waiting.
fn unless_interrupted(endpoint: &Endpoint, request: ExportProfilesServiceRequest) -> Result<Sent> {
    let (tell, told) = mpsc::channel();
    let to = endpoint.clone();
    std::thread::Builder::new()
        .name("otlp".to_owned())
        .spawn(move || tell.send(send::send(&to, &request, send::TIMEOUT)))?;
    let (began, signals) = (Instant::now(), signals::count());
    let mut said = false;
    loop {
        match told.recv_timeout(POLL) {
            Ok(sent) => return sent,
            Err(RecvTimeoutError::Disconnected) => bail!("sending to {endpoint} failed"),
            Err(RecvTimeoutError::Timeout) => {}
        }
        if signals::count() > signals {
            bail!("interrupted before {endpoint} answered");
        }
        if began.elapsed() > SILENCE && !said {
            said = true;
            eprintln!("sending to {endpoint}; Ctrl-C ends the waiting");
        }
    }
}
