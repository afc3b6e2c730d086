//! Taking events: as they come, and the last of them.

use std::cell::RefCell;
use std::rc::Rc;
use std::time::Duration;

use anyhow::{Context, Result};
use libbpf_rs::ErrorKind;
use parcagpu_abi::probe::{self, Probe};

use super::last_call::LastCall;
use super::{Session, TURN};
use crate::discover;
use crate::text::clock_ns;

impl Session {
    /// Hands what is there to the sink, waiting for at most `timeout` for something to come. Where events
    /// come faster than they are taken this ends all the same, after [`TURN`] of them.
    pub fn poll(&self, timeout: Duration) -> Result<()> {
        self.turn.set(0);
        let quiet = |result: libbpf_rs::Result<()>| match result {
            Err(e) if e.kind() != ErrorKind::Interrupted => {
                Err(e).context("failed to read the ring buffer")
            }
            _ => Ok(()),
        };
        quiet(self.ring.poll(timeout))?;
        if self.is_behind() {
            return Ok(());
        }
        // A batch whose last record could not be read wakes nobody.
        quiet(self.ring.consume())
    }

    /// Whether the last [`Self::poll`] left something.
    pub fn is_behind(&self) -> bool {
        self.turn.get() >= TURN
    }

    /// Hands all that is there to the sink, once nothing more comes.
    pub fn drain(&self) -> Result<()> {
        loop {
            self.poll(Duration::ZERO)?;
            if !self.is_behind() {
                return Ok(());
            }
        }
    }

    /// Launches of these processes were sampled before we came; kernels of such are left out.
    pub fn were_sampled(&self, pids: impl IntoIterator<Item = u32>) {
        let launches = self.wanted.probes.contains(&probe::CUDA_CORRELATION.name);
        if let Some(last_call) = self.last_call.as_ref().filter(|_| launches) {
            last_call.borrow_mut().were_sampled(pids);
        }
    }

    /// From now on no launch is taken that is announced later, and no kernel of such.
    pub fn last_call(&self) {
        if let Some(last_call) = &self.last_call {
            last_call
                .borrow_mut()
                .begin(clock_ns(libc::CLOCK_MONOTONIC));
        }
    }

    /// Whether records of the launches that were taken may still come.
    pub fn waits_for_records(&self) -> bool {
        let told = |probe: Probe| self.wanted.probes.contains(&probe.name);
        let comes = told(probe::ACTIVITY_BATCH) || told(probe::KERNEL_EXECUTED);
        let waits = |call: &Rc<RefCell<LastCall>>| call.borrow_mut().waits(discover::is_alive);
        comes && self.last_call.as_ref().is_some_and(waits)
    }
}
