//! Becoming CUPTI's subscriber, and ceasing to be it.

use std::sync::atomic::Ordering;

use parcagpu_abi::status::{Counter, State};

use super::{
    DEVICE_BUFFERS, DRAIN_MAX, FLUSH_PERIOD, Machine, Phase, ROTATE_PERIOD, Subscription, report,
};
use crate::config::Config;
use crate::cubin::modules;
use crate::cupti::api::Api;
use crate::cupti::call::CuptiError;
use crate::cupti::driver::Driver;
use crate::cupti::sys::{
    ACTIVITY_ATTR_DEVICE_BUFFER_POOL_LIMIT, ACTIVITY_ATTR_PER_THREAD_ACTIVITY_BUFFER,
    API_VERSION_12_3, CUPTI_ERROR_MULTIPLE_SUBSCRIBERS_NOT_SUPPORTED, DOMAIN_RESOURCE,
    SubscriberHandle,
};
use crate::cupti::{activity, callbacks, locate};
use crate::hooks::{holder, installed};
use crate::policy::KeepOn;
use crate::session::Session;
use crate::silence::Silence;
use crate::{errors, lifecycle, probes, status};

impl Machine {
    pub(super) fn activate(&mut self, now: u64, pause: u64) -> Phase {
        if self.session.is_lost() {
            return Self::lost();
        }
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
                    status::set_text(&status::block().cupti_holder, "unknown");
                    status::set_state(State::Yielded, "another tool in this process holds CUPTI");
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
                status::set_text(&status::block().cupti_holder, "");
                status::set_state(State::Active, "a consumer is attached");
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

    /// CUPTI has ended itself, which was told.
    pub(super) fn lost() -> Phase {
        status::set_state(State::Stopped, "CUPTI has ended itself in this process");
        Phase::Failed
    }

    /// Everything after the subscription. The session is active when this returns.
    pub(super) fn set_up(
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
            match api.insist_on_callback(handle, domain, cbid, true) {
                Ok(()) => on.push((domain, cbid)),
                Err(error) => error.tell_as(
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
        self.next_flush = now + FLUSH_PERIOD;
        self.next_rotation = now + ROTATE_PERIOD;
        let mut keep_on = KeepOn::default();
        keep_on.start(self.session);
        // Last: a launch that finds the session active finds the switch at rest.
        self.session.set_active(true);
        Ok(Subscription {
            handle,
            shared,
            callbacks: on,
            modules: None,
            modules_refused: 0,
            keep_on,
            silence: Silence::new(now),
        })
    }

    pub(super) fn deactivate(&mut self, subscription: Subscription, now: u64) -> Phase {
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
                if let Err(error) =
                    api.insist_on_callback(subscription.handle, *domain, *cbid, false)
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
        if !probes::cubin_loaded::enabled() {
            // What is unloaded from now on nobody tells us; what stays is told anew to the next subscription.
            modules::forget_cupti();
        }
        status::set_state(State::Dormant, "the last consumer left");
        session.activity_failed.store(false, Ordering::Relaxed);
        self.next_flush = now;
        self.drain_until = now + DRAIN_MAX;
        Phase::Dormant
    }

    /// libcupti, loaded when it is needed for the first time.
    pub(super) fn load(&self) -> Option<&'static Api> {
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
