//! What is due from time to time: flushes, tidying, and what the status block says.

use std::sync::atomic::Ordering;

use parcagpu_abi::status::{Counter, State};

use super::{DRAIN_PERIOD, FLUSH_PERIOD, Machine, Phase, ROTATE_PERIOD, Subscription, report};
use crate::cupti::sys::ACTIVITY_FLUSH_COMPLETED;
use crate::hooks::{holder, launch};
use crate::status;

impl Machine {
    pub(super) fn keep_house(&mut self, mut subscription: Subscription, now: u64) -> Phase {
        let session = self.session;
        launch::leave_abandoned(session);
        // Before records are delivered, with which consumers read it.
        self.publish_devices();
        subscription.keep_on.look(session, now);
        subscription.silence.look(session, now);
        if session.activity_failed.load(Ordering::Relaxed) {
            let phase = self.deactivate(subscription, now);
            if matches!(phase, Phase::Dormant) {
                status::set_state(State::Stopped, "kernel activity could not be switched on");
                session.activity_failed.store(true, Ordering::Relaxed);
                return Phase::Failed;
            }
            return phase;
        }
        if now >= self.next_flush {
            if session.pool.outstanding() > 0 {
                self.flush(ACTIVITY_FLUSH_COMPLETED);
            }
            self.next_flush = now + FLUSH_PERIOD;
        }
        session.sampler.correlation.tidy();
        if now >= self.next_rotation {
            session.sampler.correlation.rotate();
            self.next_rotation = now + ROTATE_PERIOD;
        }
        self.publish_buffers();
        Phase::Active(subscription)
    }

    /// After the end of a subscription CUPTI may still hold buffers.
    pub(super) fn drain(&mut self, now: u64) {
        if !matches!(self.phase, Phase::Dormant) || self.drain_until == 0 || now < self.next_flush {
            return;
        }
        if holder::is_held() {
            self.drain_until = 0;
            return;
        }
        self.flush(ACTIVITY_FLUSH_COMPLETED);
        self.publish_buffers();
        self.next_flush = now + DRAIN_PERIOD;
        if self.session.pool.outstanding() == 0 || now >= self.drain_until {
            self.drain_until = 0;
            self.session.pool.trim();
        }
    }

    pub(super) fn flush(&self, flag: u32) {
        if let Some(Err(error)) = self.session.api().map(|api| api.flush_all(flag)) {
            report("cupti", error);
        }
    }

    pub(super) fn publish_buffers(&self) {
        let oldest = self.session.pool.oldest().unwrap_or(0);
        status::block()
            .oldest_buffer_ns
            .store(oldest, Ordering::Relaxed);
    }

    /// Once launches were seen the driver is initialised, and asking for its devices does nothing
    /// else.
    pub(super) fn publish_devices(&mut self) {
        let block = status::block();
        let seen = [
            Counter::EagerSampled,
            Counter::GraphSampled,
            Counter::RecordsReceived,
        ];
        if self.devices_known || seen.iter().all(|counter| block.get(*counter) == 0) {
            return;
        }
        self.devices_known = true;
        let Some(driver) = self.session.driver() else {
            return;
        };
        for (ordinal, (uuid, slot)) in driver.uuids().iter().zip(&block.devices).enumerate() {
            for (byte, place) in uuid.bytes.iter().zip(&slot.uuid) {
                place.store(*byte, Ordering::Relaxed);
            }
            slot.ordinal.store(ordinal as u32, Ordering::Relaxed);
            slot.known.store(1, Ordering::Release);
        }
    }
}
