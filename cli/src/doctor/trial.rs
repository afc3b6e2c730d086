//! Loads the BPF program and attaches it, as every view does, to a copy of the library that nobody has.

use std::cell::RefCell;
use std::rc::Rc;

use super::{Finding, fail, ok, warn};
use crate::choice::Choice;
use crate::discover::Library;
use crate::events::Event;
use crate::library;
use crate::preflight;
use crate::private_copy::PrivateCopy;
use crate::session::{Session, Sink, Wanted};

struct Nothing;

impl Sink for Nothing {
    fn event(&mut self, _: &Event<'_>) {}
}

pub fn finding(library: Option<&Library>) -> Finding {
    if !preflight::missing_for_bpf(preflight::held()).is_empty() {
        return warn(
            "bpf_program",
            "not tried: the capabilities are missing",
            "see capabilities",
        );
    }
    match attempt(library) {
        Ok(text) => ok("bpf_program", text),
        Err(e) => fail(
            "bpf_program",
            format!("{e:#}"),
            "in a container: docker run --privileged, or a seccomp profile that allows bpf() and perf_event_open()\n\
             elsewhere: see the lines above; an AppArmor or SELinux policy may forbid it too",
        ),
    }
}

fn attempt(file: Option<&Library>) -> anyhow::Result<&'static str> {
    let wanted = Wanted {
        probes: parcagpu_abi::probe::ALL.iter().map(|p| p.name).collect(),
        kernel_executed_too: true,
        choice: Choice::default(),
        discover: false,
        only: None,
        ring_bytes: 1 << 16,
        stacks: true,
    };
    let mut session = Session::load(wanted, Rc::new(RefCell::new(Nothing)))?;
    let Some(file) = file else {
        return Ok("loaded; there is no library to attach to");
    };
    let copy = PrivateCopy::of(file.path.as_ref())?;
    session.attach_library(&library::open(copy.file())?)?;
    Ok("loaded, and attached to every probe")
}
