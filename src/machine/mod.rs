//! The state machine of a process that uses CUDA: dormant, active, yielded.
//!
//! Used by one thread at a time: the one that starts the session; ours ([`crate::watch`]), which calls
//! [`Machine::tick`] ten times a second; and one of the program's that wants CUPTI for itself, which
//! calls [`Machine::step_aside`].
//!
//! Here is what it is and one look at it; `activation` has the way into and out of a subscription,
//! `yielding` making room for another user of CUPTI, `house` what is due from time to time, `cubins` where
//! machine code comes from.

mod activation;
mod cubins;
mod house;
mod yielding;

use std::sync::atomic::Ordering;
use std::time::Duration;

use parcagpu_abi::status::{Counter, State};

use crate::cupti::call::CuptiError;
use crate::cupti::callbacks;
use crate::cupti::driver::Driver;
use crate::cupti::sys::{
    ACTIVITY_FLUSH_FORCED, CUPTI_ERROR_MULTIPLE_SUBSCRIBERS_NOT_SUPPORTED, Domain, SubscriberHandle,
};
use crate::hooks::holder;
use crate::metadata::Metadata;
use crate::policy::KeepOn;
use crate::sampling::deliver;
use crate::session::Session;
use crate::silence::Silence;
use crate::{clock, errors, pc, probes, status};

const SECOND: u64 = 1_000_000_000;
/// A semaphore rises some time before the consumer's program is in place, and a consumer attaches to one probe
/// after the other; launches announced earlier would reach nobody.
const SETTLE: Duration = Duration::from_millis(30);
/// Longest time between two flushes while active.
const FLUSH_PERIOD: u64 = SECOND / 2;
/// Between two flushes for buffers that are still out after the end of a subscription.
const DRAIN_PERIOD: u64 = SECOND;
/// How long such buffers are asked for.
const DRAIN_MAX: u64 = 60 * SECOND;
/// How long the end of the process waits for buffers that CUPTI is delivering.
const LAST_BUFFERS: Duration = Duration::from_millis(250);
/// Age at which a generation of sampled ids is dropped.
const ROTATE_PERIOD: u64 = 300 * SECOND;
/// CUPTI's buffers in GPU memory, per context: 102 MB for the times of 3.2 million kernels in flight.
const DEVICE_BUFFERS: usize = 32;
/// First and longest pause before CUPTI is asked for again after somebody else had it.
const PAUSE: (u64, u64) = (SECOND, 60 * SECOND);

/// What is so only while we are the subscriber.
struct Subscription {
    handle: SubscriberHandle,
    /// It is the program's, quiet at present, and not ours to end.
    shared: bool,
    callbacks: Vec<(Domain, u32)>,
    /// CUPTI's module events are on.
    modules: Option<cubins::Earlier>,
    /// Looks at which CUPTI refused one of them.
    modules_refused: u32,
    keep_on: KeepOn,
    silence: Silence,
}

// SAFETY: the handle is an opaque word that CUPTI accepts from any thread.
unsafe impl Send for Subscription {}

enum Phase {
    /// Nobody listens.
    Dormant,
    /// We are the subscriber.
    Active(Subscription),
    /// Nobody listens any more, but a launch was inside the switch when it was to be closed.
    Closing(Subscription),
    /// Somebody else is the subscriber; ask again at `retry`, then after twice `pause`.
    Refused { retry: u64, pause: u64 },
    /// The program took CUPTI through our hooks, which also tell when it lets go.
    Yielded,
    /// Starting failed; tried again when consumers have left and come back.
    Failed,
}

/// Why CUPTI is given up.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Turn {
    /// Somebody else begins to use it.
    Begins,
    /// Somebody who had it ends his use.
    Ends,
}

/// See the module. Times are `CLOCK_MONOTONIC` ns.
pub struct Machine {
    session: &'static Session,
    phase: Phase,
    metadata: Metadata,
    next_flush: u64,
    next_rotation: u64,
    drain_until: u64,
    devices_known: bool,
    begun: bool,
    /// Buffers are asked of us.
    provides_buffers: bool,
}

impl Machine {
    /// A dormant machine.
    pub fn new(session: &'static Session) -> Self {
        status::set_state(State::Dormant, "no consumer is attached");
        Self {
            session,
            phase: Phase::Dormant,
            metadata: Metadata::default(),
            next_flush: 0,
            next_rotation: 0,
            drain_until: 0,
            devices_known: false,
            begun: false,
            provides_buffers: false,
        }
    }

    /// The first look. Asks the loader for libcuda.
    pub fn begin(&mut self) {
        if let Some(driver) = Driver::find() {
            let version = self.session.set_driver(driver).version();
            status::block()
                .driver_version
                .store(version.unwrap_or(0), Ordering::Relaxed);
        }
        self.prepare_for_pcs();
        self.tick();
        self.begun = true;
    }

    /// Where PC sampling is asked for, CUPTI has to have seen kernel activity on before the first context is
    /// made: of kernels in others it could not tell later whose samples are whose (measured: all or most
    /// of them come as code that is not the program's). And it takes the checksum of a module when that is
    /// loaded, with the function it has then.
    fn prepare_for_pcs(&mut self) {
        let Some(pc) = &self.session.pc else { return };
        let Some(api) = self.load().filter(|_| !holder::is_held()) else {
            return;
        };
        let Some(functions) = pc.functions(self.session, api) else {
            return;
        };
        // A tool that no hook has seen may have kernel activity on already, which would be off afterwards.
        let handle = match api.subscribe(callbacks::CALLBACK) {
            Ok(handle) => handle,
            Err(error) if error.code == CUPTI_ERROR_MULTIPLE_SUBSCRIBERS_NOT_SUPPORTED => return,
            Err(error) => return report("pc sampling", error),
        };
        pc::crc::register(functions);
        let toggled = api.enable_kernels().and_then(|()| api.disable_kernels());
        for outcome in [toggled, api.unsubscribe(handle)] {
            if let Err(error) = outcome {
                report("pc sampling", error);
            }
        }
    }

    /// One look at consumers, and what is due.
    pub fn tick(&mut self) {
        status::block().add(Counter::Looks, 1);
        status::publish_counts();
        let now = clock::monotonic_ns();
        let wanted = probes::session_wanted();
        let lost = self.session.is_lost();
        if lost && status::state() != State::Stopped {
            self.phase = Self::lost();
        }
        self.phase = match std::mem::replace(&mut self.phase, Phase::Failed) {
            phase @ (Phase::Dormant | Phase::Yielded) if wanted && !holder::is_held() => {
                if self.begun && matches!(phase, Phase::Dormant) {
                    // The consumer has only just raised its first semaphore.
                    std::thread::sleep(SETTLE);
                }
                self.activate(now, PAUSE.0)
            }
            Phase::Dormant if wanted => {
                self.tell_yielded();
                Phase::Yielded
            }
            // A consumer of cubins keeps module events coming.
            Phase::Active(subscription)
                if !(wanted
                    || subscription.modules.is_some() && probes::cubin_loaded::enabled()) =>
            {
                self.deactivate(subscription, now)
            }
            Phase::Active(subscription) => self.keep_house(subscription, now),
            Phase::Closing(subscription) => self.deactivate(subscription, now),
            Phase::Yielded | Phase::Refused { .. } | Phase::Failed if !wanted && !lost => {
                status::set_state(State::Dormant, "no consumer is attached");
                self.session.activity_failed.store(false, Ordering::Relaxed);
                Phase::Dormant
            }
            Phase::Refused { .. } if holder::is_held() => Phase::Yielded,
            Phase::Refused { retry, pause } if now >= retry => {
                self.activate(now, (pause * 2).min(PAUSE.1))
            }
            same => same,
        };
        self.drain(now);
        self.take_buffers_over();
        self.look_at_cubins(now);
        self.look_at_pcs(now);
        self.metadata.look(now);
    }

    /// PCs are sampled while CUPTI is ours alone.
    fn look_at_pcs(&self, now: u64) {
        let (Some(pc), Phase::Active(subscription)) = (&self.session.pc, &self.phase) else {
            return;
        };
        match subscription.shared {
            true => pc.beside(&holder::name()),
            false => pc.look(self.session, now),
        }
    }

    /// The end of the process: what CUPTI still holds is delivered. Records of kernels that have not
    /// finished get no times.
    pub fn finish(&mut self) {
        let subscribed = matches!(self.phase, Phase::Active(_) | Phase::Closing(_));
        if let Some(pc) = &self.session.pc {
            pc.finish(self.session);
        }
        self.session.set_active(false);
        // Consumers read the last figures at the events of the last flush.
        status::publish_counts();
        self.publish_devices();
        let delivered = status::block().get(Counter::RecordsMatched);
        let holds = subscribed || self.session.pool.outstanding() > 0;
        if holds && !self.session.is_lost() {
            self.session.sampler.switch.close(self.session);
            self.flush(ACTIVITY_FLUSH_FORCED);
            self.await_buffers(LAST_BUFFERS);
            let left = self.session.pool.outstanding();
            if left > 0 && status::is_owing() {
                errors::report_last(
                    "exit",
                    &format!(
                        "the process ends while CUPTI keeps {left} buffers: the kernel times in them are missing"
                    ),
                );
            }
        }
        if status::block().get(Counter::RecordsMatched) == delivered {
            deliver::last_word();
        }
    }

    /// Nobody will look any more: what was switched on goes off.
    pub fn abandon(&mut self) {
        if let Phase::Active(subscription) | Phase::Closing(subscription) =
            std::mem::replace(&mut self.phase, Phase::Failed)
        {
            self.deactivate(subscription, clock::monotonic_ns());
            self.flush(ACTIVITY_FLUSH_FORCED);
        }
        self.session.set_active(false);
    }
}

fn report(component: &str, error: CuptiError) {
    error.tell(component);
}
