//! Which context is sampled: one of one process.

use std::sync::atomic::Ordering;

use super::claim::{self, Claim};
use super::refusal;
use super::sampling::Sampling;
use crate::cupti::api::Api;
use crate::cupti::driver::Driver;
use crate::cupti::sys::{CUcontext, CUuuid};
use crate::session::Session;
use crate::{clock, errors};

/// How often a GPU is asked for that another process samples, ns.
const CLAIM_PERIOD: u64 = 5_000_000_000;

impl Sampling {
    /// Takes a context that is to be set up now, if there is one; what has to wait is told.
    pub(super) fn next_context(&self, session: &Session, now: u64) -> Option<CUcontext> {
        if self.contexts.is_any_left_out() && !self.left_out.swap(true, Ordering::Relaxed) {
            errors::report(
                0,
                refusal::COMPONENT,
                "PC samples are those of one context only: kernels of this process run in several, and CUPTI \
                 cannot sample two at a time; the next is sampled when the library sees the first one destroyed, \
                 which it does while somebody listens",
            );
        }
        if now < self.retry.load(Ordering::Relaxed) {
            return None;
        }
        self.contexts.to_set_up(self.is_sure_to_launch(session))
    }

    /// Whether any context may be taken for one that launches. Where there are several GPUs a process may make one on the
    /// first of them that it never uses, beside the one that it works on.
    pub(super) fn is_sure_to_launch(&self, session: &Session) -> bool {
        let mut gpus = self.gpus.load(Ordering::Relaxed);
        if gpus == 0 {
            gpus = session.driver().map_or(0, |driver| driver.uuids().len());
            self.gpus.store(gpus, Ordering::Relaxed);
        }
        gpus < 2
    }

    /// Whether this process may sample the context's GPU; if not it is told, and tried again after a while.
    pub(super) fn is_claimed(&self, session: &Session, api: &Api, context: CUcontext) -> bool {
        let uuids = session.driver().map(Driver::uuids).unwrap_or_default();
        let device = api.device_of(context);
        let uuid = device.and_then(|device| uuids.get(device as usize));
        // All whose UUID nobody knows count as one GPU.
        let uuid = uuid.copied().unwrap_or_default();
        let doubt = match uuid == CUuuid::default() {
            true => " (so all GPUs count whose UUID cannot be had)",
            false => "",
        };
        let why = match claim::claim(&uuid) {
            Claim::Ours => return true,
            Claim::Taken => format!(
                "another process samples {}{doubt}, and one at a time can: this one waits for its turn \
                 (parcagpu doctor says for whom)",
                claim::name(&uuid)
            ),
            Claim::Unknown(error) => format!(
                "whether another process samples {} cannot be found out: {error}",
                claim::name(&uuid)
            ),
        };
        refusal::tell_off(&why);
        self.retry
            .store(clock::monotonic_ns() + CLAIM_PERIOD, Ordering::Relaxed);
        false
    }
}
