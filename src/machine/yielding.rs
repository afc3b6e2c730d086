//! Giving CUPTI up for another part of the program, and whose buffers are asked for.

use std::time::Duration;

use parcagpu_abi::status::State;

use super::{LAST_BUFFERS, Machine, Phase, Turn, report};
use crate::cupti::activity;
use crate::cupti::sys::{ACTIVITY_FLUSH_FORCED, CUPTI_ERROR_MULTIPLE_SUBSCRIBERS_NOT_SUPPORTED};
use crate::hooks::holder;
use crate::patience::Patience;
use crate::{clock, errors, status, watch};

impl Machine {
    /// Another part of the program is about to take CUPTI: gives it up, with no buffer of ours left
    /// inside. Runs on the thread that wants it.
    pub fn step_aside(&mut self, turn: Turn) {
        let now = clock::monotonic_ns();
        let subscription = match std::mem::replace(&mut self.phase, Phase::Dormant) {
            Phase::Active(subscription) | Phase::Closing(subscription) => Some(subscription),
            Phase::Dormant => None,
            other => {
                self.phase = other;
                None
            }
        };
        self.drain_until = 0;
        let Some(subscription) = subscription else {
            if self.session.pool.outstanding() > 0 {
                self.recall_buffers();
            }
            self.hand_buffers_back();
            // Whoever wants CUPTI may be about to name his own.
            self.provides_buffers = false;
            return;
        };
        if let Some(pc) = &self.session.pc {
            pc.leave(self.session);
        }
        self.session.set_active(false);
        let mut patience = Patience::new(LAST_BUFFERS);
        while !self.session.sampler.switch.close(self.session) && !patience.is_over() {
            std::thread::yield_now();
        }
        self.recall_buffers();
        if let Phase::Closing(_) = self.deactivate(subscription, now) {
            errors::report(0, "yield", "a launch was inside CUPTI for too long");
        }
        self.hand_buffers_back();
        self.provides_buffers = false;
        self.drain_until = 0;
        self.publish_buffers();
        self.phase = Phase::Yielded;
        match turn {
            Turn::Begins => self.tell_yielded(),
            Turn::Ends => status::set_state(State::Yielded, "the program is leaving CUPTI"),
        }
    }

    pub(super) fn tell_yielded(&self) {
        let name = holder::name();
        status::set_text(&status::block().cupti_holder, &name);
        let why = format!("CUPTI is held by {name} (turn {})", holder::turns());
        errors::report_latest(
            CUPTI_ERROR_MULTIPLE_SUBSCRIBERS_NOT_SUPPORTED as i32,
            "yield",
            &format!("{why}; there are no launches and kernel times until it lets go"),
        );
        status::set_state(State::Yielded, &why);
    }

    /// A tool that registered once and is quiet finds its callbacks as it left them.
    pub(super) fn hand_buffers_back(&mut self) {
        let (Some(api), Some((request, _)), true) = (
            self.session.api(),
            holder::buffer_callbacks(),
            self.provides_buffers,
        ) else {
            return;
        };
        self.recall_buffers();
        self.provides_buffers = false;
        if let Err(error) = api.register_callbacks(request, activity::COMPLETE) {
            report("cupti", error);
        }
    }

    /// Kernel records come although nobody wants them: not into the buffers of a tool that is quiet.
    pub(super) fn take_buffers_over(&mut self) {
        if !self.session.kernels_are_pinned() || self.provides_buffers || holder::is_held() {
            return;
        }
        if let Some(api) = self.session.api() {
            match api.register_callbacks(activity::REQUEST, activity::COMPLETE) {
                Ok(()) => self.provides_buffers = true,
                Err(error) => report("cupti", error),
            }
        }
    }

    /// Has CUPTI deliver every buffer of ours. Inside a callback it may not be asked to: our thread does it
    /// then, unless a lock that CUPTI holds meanwhile keeps it; what is out comes back to
    /// [`activity::COMPLETE`] all the same.
    pub(super) fn recall_buffers(&self) {
        if holder::is_in_callback() {
            watch::flush_elsewhere(LAST_BUFFERS);
        } else {
            self.flush(ACTIVITY_FLUSH_FORCED);
        }
        self.await_buffers(LAST_BUFFERS);
    }

    /// A thread of CUPTI's may be inside our completion callback with a buffer of its own. One that ended itself
    /// gives none back.
    pub(super) fn await_buffers(&self, limit: Duration) {
        let mut patience = Patience::new(limit);
        while self.session.pool.outstanding() > 0 && !self.session.is_lost() && !patience.is_over()
        {
            std::thread::sleep(Duration::from_millis(1));
        }
    }
}
