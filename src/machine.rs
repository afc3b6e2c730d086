//! The state machine of a process that uses CUDA: dormant, active, yielded.
//!
//! Used by one thread at a time: the one that starts the session; ours ([`crate::watch`]), which calls
//! [`Machine::tick`] ten times a second; and one of the program's that wants CUPTI for itself, which
//! calls [`Machine::step_aside`].

use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use parcagpu_abi::status::{Counter, State};

use crate::config::Config;
use crate::cubin::registry;
use crate::cupti::api::{Api, CuptiError};
use crate::cupti::driver::Driver;
use crate::cupti::sys::{
    ACTIVITY_ATTR_DEVICE_BUFFER_POOL_LIMIT, ACTIVITY_ATTR_PER_THREAD_ACTIVITY_BUFFER,
    ACTIVITY_FLUSH_COMPLETED, ACTIVITY_FLUSH_FORCED, API_VERSION_12_3,
    CUPTI_ERROR_MULTIPLE_SUBSCRIBERS_NOT_SUPPORTED, DOMAIN_RESOURCE, Domain, SubscriberHandle,
};
use crate::cupti::{activity, callbacks, locate};
use crate::hooks::{self, holder, installed, launch};
use crate::metadata::Metadata;
use crate::policy::KeepOn;
use crate::session::Session;
use crate::silence::Silence;
use crate::{clock, errors, lifecycle, probes, status, watch};

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
    modules: bool,
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
    /// of them come as code that is not the program's).
    fn prepare_for_pcs(&mut self) {
        let Some(pc) = &self.session.pc else { return };
        let Some(api) = self.load().filter(|_| !holder::is_held()) else {
            return;
        };
        if pc.functions(self.session, api).is_none() {
            return;
        }
        // A tool that no hook has seen may have kernel activity on already, which would be off afterwards.
        let handle = match api.subscribe(callbacks::CALLBACK) {
            Ok(handle) => handle,
            Err(error) if error.code == CUPTI_ERROR_MULTIPLE_SUBSCRIBERS_NOT_SUPPORTED => return,
            Err(error) => return report("pc sampling", error),
        };
        let toggled = api.enable_kernels().and_then(|()| api.disable_kernels());
        for outcome in [toggled, api.unsubscribe(handle)] {
            if let Err(error) = outcome {
                report("pc sampling", error);
            }
        }
    }

    /// One look at consumers, and what is due.
    pub fn tick(&mut self) {
        status::publish_counts();
        let now = clock::monotonic_ns();
        let wanted = probes::session_wanted();
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
                if !(wanted || subscription.modules && probes::cubin_loaded::enabled()) =>
            {
                self.deactivate(subscription, now)
            }
            Phase::Active(subscription) => self.keep_house(subscription, now),
            Phase::Closing(subscription) => self.deactivate(subscription, now),
            Phase::Yielded | Phase::Refused { .. } | Phase::Failed if !wanted => {
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
        self.look_at_cubins();
        self.look_at_pcs(now);
        self.metadata.look(now);
    }

    /// A consumer of cubins gets them from CUPTI while we have it to ourselves, else from the images that
    /// hooks see.
    fn look_at_cubins(&mut self) {
        let wanted = probes::cubin_loaded::enabled() || probes::cubin_unloaded::enabled();
        if let (Phase::Active(subscription), Some(api), true) =
            (&mut self.phase, self.session.api(), wanted)
            && !subscription.shared
            && !subscription.modules
        {
            subscription.modules = true;
            for cbid in callbacks::MODULES {
                match api.enable_callback(subscription.handle, DOMAIN_RESOURCE, cbid, true) {
                    Ok(()) => subscription.callbacks.push((DOMAIN_RESOURCE, cbid)),
                    Err(error) => report("cubin", error),
                }
            }
        }
        let from_cupti = matches!(&self.phase, Phase::Active(subscription) if subscription.modules);
        let from_images = wanted && !from_cupti;
        hooks::want(hooks::IMAGES, from_images);
        hooks::want(hooks::UNLOADS, from_images || registry::has_handles());
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
        let deadline = Instant::now() + LAST_BUFFERS;
        while !self.session.sampler.switch.close(self.session) && Instant::now() < deadline {
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

    fn tell_yielded(&self) {
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
        if subscribed || self.session.pool.outstanding() > 0 {
            self.session.sampler.switch.close(self.session);
            self.flush(ACTIVITY_FLUSH_FORCED);
            self.await_buffers(LAST_BUFFERS);
        }
    }

    /// A tool that registered once and is quiet finds its callbacks as it left them.
    fn hand_buffers_back(&mut self) {
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
    fn take_buffers_over(&mut self) {
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
    fn recall_buffers(&self) {
        if holder::is_in_callback() {
            watch::flush_elsewhere(LAST_BUFFERS);
        } else {
            self.flush(ACTIVITY_FLUSH_FORCED);
        }
        self.await_buffers(LAST_BUFFERS);
    }

    /// A thread of CUPTI's may be inside our completion callback with a buffer of its own.
    fn await_buffers(&self, limit: Duration) {
        let deadline = Instant::now() + limit;
        while self.session.pool.outstanding() > 0 && Instant::now() < deadline {
            std::thread::sleep(Duration::from_millis(1));
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

    fn activate(&mut self, now: u64, pause: u64) -> Phase {
        let Some(api) = self.load() else {
            return Phase::Failed;
        };
        let theirs = holder::subscription();
        let shared = theirs.is_some();
        let handle = match theirs.map_or_else(|| api.subscribe(callbacks::CALLBACK), Ok) {
            Ok(handle) => handle,
            Err(error) if error.code == CUPTI_ERROR_MULTIPLE_SUBSCRIBERS_NOT_SUPPORTED => {
                report("cupti", error);
                if status::state() != State::Yielded {
                    status::set_state(State::Yielded, "another tool in this process holds CUPTI");
                    status::set_text(&status::block().cupti_holder, "unknown");
                }
                return Phase::Refused {
                    retry: now + pause,
                    pause,
                };
            }
            Err(error) => {
                report("cupti", error);
                status::set_state(State::Stopped, &error.to_string());
                return Phase::Failed;
            }
        };
        match self.set_up(api, handle, shared, now) {
            Ok(subscription) => {
                status::block().add(Counter::Activations, 1);
                status::set_state(State::Active, "a consumer is attached");
                status::set_text(&status::block().cupti_holder, "");
                Phase::Active(subscription)
            }
            Err(error) => {
                report("cupti", error);
                if !shared && let Err(error) = api.unsubscribe(handle) {
                    report("cupti", error);
                }
                status::set_state(State::Stopped, &error.to_string());
                Phase::Failed
            }
        }
    }

    /// Everything after the subscription. The session is active when this returns.
    fn set_up(
        &mut self,
        api: &Api,
        handle: SubscriberHandle,
        shared: bool,
        now: u64,
    ) -> Result<Subscription, CuptiError> {
        // By default from CUDA 13.0 each thread takes buffers of its own, and each flush beside a
        // long kernel leaves one more of them out. To be set before the first buffer of anybody: a
        // change loses buffers that are out (measured).
        let first = status::block().get(Counter::BuffersRequested) == 0;
        if first
            && holder::buffer_callbacks().is_none()
            && api.version >= API_VERSION_12_3
            && let Err(error) = api.set_attribute_u8(ACTIVITY_ATTR_PER_THREAD_ACTIVITY_BUFFER, 0)
        {
            report("cupti", error);
        }
        // CUPTI keeps the times of kernels in GPU memory until it fetches them, in buffers of 3.2 MB for
        // 100,000 kernels, by default up to 250 of them. Measured on an H200 with CUDA 13.0: with 30
        // million kernels of graphs, 50,000 in flight, GPU memory stays flat, and 8 buffers of 1 MiB
        // were enough for every time.
        if first
            && holder::buffer_callbacks().is_none()
            && let Err(error) =
                api.set_attribute_size(ACTIVITY_ATTR_DEVICE_BUFFER_POOL_LIMIT, DEVICE_BUFFERS)
        {
            report("cupti", error);
        }
        api.register_callbacks(activity::REQUEST, activity::COMPLETE)?;
        self.provides_buffers = true;
        self.session.set_subscriber(handle, !shared);
        if let Some(driver) = self.session.driver() {
            installed::verify(driver);
        }
        let mut on = Vec::new();
        let of_pcs = callbacks::CONTEXTS.map(|cbid| (DOMAIN_RESOURCE, cbid));
        let of_pcs = of_pcs
            .iter()
            .copied()
            .filter(|_| self.session.pc.is_some() && !shared);
        for (domain, cbid) in callbacks::wanted(self.session.config.api_callbacks)
            .filter(|launch| !callbacks::decided_in_hook(*launch))
            .filter(|(domain, cbid)| !holder::wants_callback(*domain, *cbid))
            .chain(of_pcs)
        {
            match api.enable_callback(handle, domain, cbid, true) {
                Ok(()) => on.push((domain, cbid)),
                Err(error) => errors::report(
                    error.code as i32,
                    "cupti",
                    &format!("events of callback id {cbid}, domain {domain} are not seen: {error}"),
                ),
            }
        }
        // Before the first sampled launch: switched on and off around such, kernel activity makes CUPTI lose
        // track of whose code is whose (measured).
        if let Some(pc) = &self.session.pc
            && !shared
            && pc.functions(self.session, api).is_some()
        {
            self.session.pin_kernels(api)?;
        }
        self.session.set_active(true);
        self.session.sampler.switch.open();
        self.next_flush = now + FLUSH_PERIOD;
        self.next_rotation = now + ROTATE_PERIOD;
        let mut keep_on = KeepOn::default();
        keep_on.start(self.session);
        Ok(Subscription {
            handle,
            shared,
            callbacks: on,
            modules: false,
            keep_on,
            silence: Silence::new(now),
        })
    }

    fn deactivate(&mut self, subscription: Subscription, now: u64) -> Phase {
        let session = self.session;
        if let Some(pc) = &session.pc {
            pc.leave(session);
        }
        session.set_active(false);
        if !session.sampler.switch.close(session) {
            return Phase::Closing(subscription);
        }
        if let Some(api) = session.api() {
            for (domain, cbid) in &subscription.callbacks {
                if let Err(error) = api.enable_callback(subscription.handle, *domain, *cbid, false)
                {
                    report("cupti", error);
                }
            }
            if !subscription.shared {
                session.unsubscribed();
                if let Err(error) = api.unsubscribe(subscription.handle) {
                    report("cupti", error);
                }
            }
        }
        if !session.kernels_are_pinned() {
            self.hand_buffers_back();
        }
        if let Some(pc) = &session.pc {
            pc.rest();
        }
        if subscription.modules && !probes::cubin_loaded::enabled() {
            // What is unloaded from now on nobody tells us; what stays is told anew to the next subscription.
            registry::forget_cupti();
        }
        status::set_state(State::Dormant, "the last consumer left");
        session.activity_failed.store(false, Ordering::Relaxed);
        self.next_flush = now;
        self.drain_until = now + DRAIN_MAX;
        Phase::Dormant
    }

    fn keep_house(&mut self, mut subscription: Subscription, now: u64) -> Phase {
        let session = self.session;
        launch::leave_abandoned(session);
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
        self.publish_devices();
        Phase::Active(subscription)
    }

    /// After the end of a subscription CUPTI may still hold buffers.
    fn drain(&mut self, now: u64) {
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

    fn flush(&self, flag: u32) {
        if let Some(Err(error)) = self.session.api().map(|api| api.flush_all(flag)) {
            report("cupti", error);
        }
    }

    fn publish_buffers(&self) {
        let oldest = self.session.pool.oldest().unwrap_or(0);
        status::block()
            .oldest_buffer_ns
            .store(oldest, Ordering::Relaxed);
    }

    /// Once kernels were seen the driver is initialised, and asking for its devices does nothing
    /// else.
    fn publish_devices(&mut self) {
        let block = status::block();
        if self.devices_known || block.get(Counter::RecordsReceived) == 0 {
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

    /// libcupti, loaded when it is needed for the first time.
    fn load(&self) -> Option<&'static Api> {
        let session = self.session;
        if let Some(api) = session.api() {
            return Some(api);
        }
        match load(session, &session.config) {
            Ok(api) => {
                let block = status::block();
                block.cupti_version.store(api.version, Ordering::Relaxed);
                status::set_text(&block.cupti_path, &api.path.to_string_lossy());
                // CUPTI has just registered its own exit handlers; ours has to run before them.
                lifecycle::register_exit();
                Some(session.set_api(api))
            }
            Err(why) => {
                errors::report(0, "cupti", &why);
                status::set_state(State::Stopped, &why);
                None
            }
        }
    }
}

fn load(session: &Session, config: &Config) -> Result<Api, String> {
    let driver = match session.driver() {
        Some(driver) => driver,
        None => session.set_driver(Driver::find().ok_or("libcuda is not mapped")?),
    };
    let version = driver.version();
    status::block()
        .driver_version
        .store(version.unwrap_or(0), Ordering::Relaxed);
    let found = locate::locate(version, config.cupti_path.as_deref())?;
    let path = found.path.clone();
    if let Some(complaint) = &found.complaint {
        errors::report(
            0,
            "configuration",
            &format!("{complaint}; using {}", path.display()),
        );
    }
    // SAFETY: a libcupti by its name, never closed; libcuda is mapped.
    unsafe { Api::new(found.handle, found.path) }
        .map_err(|why| format!("{} cannot be used: {why}", path.display()))
}

fn report(component: &str, error: CuptiError) {
    errors::report(error.code as i32, component, &error.to_string());
}
