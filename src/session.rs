//! What a process that uses CUDA has one of: configuration, sampler, CUPTI, buffers.
//!
//! Made once, when CUDA is initialised, and never taken down. Whether it is *active* is one flag that
//! every callback looks at first; [`crate::machine`] switches it.

use std::ffi::c_void;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, AtomicPtr, AtomicU32, AtomicU64, Ordering};
use std::time::Duration;

use parcagpu_interpose::Uncancelled;

use crate::config::Config;
use crate::cupti::api::Api;
use crate::cupti::call::CuptiError;
use crate::cupti::callbacks;
use crate::cupti::driver::Driver;
use crate::cupti::pool::Pool;
use crate::cupti::sys::{ACTIVITY_FLUSH_FORCED, SubscriberHandle};
use crate::entry::Inside;
use crate::hooks::{self, holder};
use crate::patience::Patience;
use crate::sampling::launch::Sampler;
use crate::sampling::switch::Activity;
use crate::{clock, pc};

/// Longest time that a launch takes to switch kernel activity.
const SWITCHING: Duration = Duration::from_millis(50);
/// Times in a row that activity cannot be switched on until that is final: CUPTI refuses a call at times while
/// contexts come and go (seen once on an H200).
const FAILURES_MAX: u32 = 3;
/// Pause after each, in ns: the next launch may be some microseconds away, and contexts take longer than that.
const FAILURES_PAUSE: u64 = 50_000_000;

/// See the module.
pub struct Session {
    /// The configuration in force.
    pub config: Config,
    /// Which launches are sampled.
    pub sampler: Sampler,
    /// Activity buffers.
    pub pool: Pool,
    /// PC sampling, where it is asked for.
    pub pc: Option<pc::Sampling>,
    /// Kernel activity could not be switched on; nothing more is tried until consumers change.
    pub activity_failed: AtomicBool,
    /// Times in a row that it could not, and that it could not be switched off.
    failures: [AtomicU32; 2],
    /// `CLOCK_MONOTONIC` ns; it is not switched on before. 0: the last time it could.
    retry: AtomicU64,
    active: AtomicBool,
    /// CUPTI has ended itself in this process.
    lost: AtomicBool,
    kernels_pinned: AtomicBool,
    /// They are, or are about to be: nobody may switch them off any more.
    kernels_kept: AtomicBool,
    subscriber: AtomicPtr<c_void>,
    /// That subscription is our own, and not given up.
    subscribed: AtomicBool,
    api: OnceLock<Api>,
    driver: OnceLock<Driver>,
}

static SESSION: OnceLock<Session> = OnceLock::new();

/// The session, once there is one.
#[inline]
pub fn get() -> Option<&'static Session> {
    SESSION.get()
}

/// The session while it is active.
#[inline]
pub fn active() -> Option<&'static Session> {
    SESSION
        .get()
        .filter(|session| session.active.load(Ordering::Relaxed))
}

/// Has CUPTI deliver everything it holds.
pub fn flush_forced() {
    let Some(api) = get().and_then(Session::api) else {
        return;
    };
    if let Err(error) = api.flush_all(ACTIVITY_FLUSH_FORCED) {
        error.tell("cupti");
    }
}

/// Makes the session; the first call decides.
pub fn make(config: Config) -> &'static Session {
    SESSION.get_or_init(|| Session {
        sampler: Sampler::new(config.rate_limit, config.graph_rate_limit),
        pc: pc::Sampling::new(&config),
        config,
        pool: Pool::new(),
        activity_failed: AtomicBool::new(false),
        failures: [const { AtomicU32::new(0) }; 2],
        retry: AtomicU64::new(0),
        active: AtomicBool::new(false),
        lost: AtomicBool::new(false),
        kernels_pinned: AtomicBool::new(false),
        kernels_kept: AtomicBool::new(false),
        subscriber: AtomicPtr::new(std::ptr::null_mut()),
        subscribed: AtomicBool::new(false),
        api: OnceLock::new(),
        driver: OnceLock::new(),
    })
}

impl Session {
    /// libcupti, once it was loaded.
    #[inline]
    pub fn api(&self) -> Option<&Api> {
        self.api.get().filter(|_| !self.is_lost())
    }

    /// From now on no call goes to CUPTI: one more, and it would finalise itself beside launches of the program.
    pub fn lose_cupti(&self) {
        self.lost.store(true, Ordering::SeqCst);
        self.set_active(false);
    }

    /// See [`Self::lose_cupti`].
    #[inline]
    pub fn is_lost(&self) -> bool {
        self.lost.load(Ordering::Acquire)
    }

    /// Takes libcupti over; the first one stays.
    pub fn set_api(&self, api: Api) -> &Api {
        self.api.get_or_init(|| api)
    }

    /// libcuda, once it was found.
    #[inline]
    pub fn driver(&self) -> Option<&Driver> {
        self.driver.get()
    }

    /// Takes libcuda over; the first one stays.
    pub fn set_driver(&self, driver: Driver) -> &Driver {
        self.driver.get_or_init(|| driver)
    }

    /// Whether callbacks are served.
    pub fn is_active(&self) -> bool {
        self.active.load(Ordering::Relaxed)
    }

    /// Lets callbacks and launch hooks be served, or not.
    pub fn set_active(&self, active: bool) {
        self.active.store(active, Ordering::SeqCst);
        hooks::want(hooks::SAMPLE, active);
        // Lost by another thread while this one was on its way: that one has said no already.
        if active && self.lost.load(Ordering::SeqCst) {
            self.set_active(false);
        }
    }

    /// Switches kernel activity on for good: once PCs of a context are sampled, CUPTI goes on with kernel
    /// activity that is on, and refuses (14) to switch it on.
    pub fn pin_kernels(&self, api: &Api) -> Result<(), CuptiError> {
        if self.kernels_pinned.load(Ordering::Relaxed) {
            return Ok(());
        }
        self.kernels_kept.store(true, Ordering::SeqCst);
        // A launch may be about to switch them off; those that come later know better.
        let mut patience = Patience::new(SWITCHING);
        while self.sampler.switch.is_busy() && !patience.is_over() {
            std::thread::yield_now();
        }
        match api.enable_kernels() {
            Ok(()) => self.kernels_pinned.store(true, Ordering::Release),
            Err(error) => {
                self.kernels_kept.store(false, Ordering::SeqCst);
                return Err(error);
            }
        }
        Ok(())
    }

    /// The program finalised CUPTI: nothing is on any more.
    pub fn finalized(&self) {
        self.kernels_pinned.store(false, Ordering::Release);
        self.kernels_kept.store(false, Ordering::SeqCst);
        if let Some(pc) = &self.pc {
            pc.finalized();
        }
    }

    /// Whether kernel activity has to stay on, see [`Self::pin_kernels`].
    pub fn kernels_are_pinned(&self) -> bool {
        self.kernels_pinned.load(Ordering::Acquire)
    }

    /// Says under which subscription callbacks are switched around a sampled launch; `own`: it is ours.
    pub fn set_subscriber(&self, subscriber: SubscriberHandle, own: bool) {
        self.subscriber.store(subscriber.0, Ordering::Release);
        self.subscribed.store(own, Ordering::Release);
    }

    /// Our own subscription ended.
    pub fn unsubscribed(&self) {
        self.subscribed.store(false, Ordering::Release);
    }

    /// In a forked child: ends the subscription that its parent had, in the child's copy of CUPTI.
    pub fn leave_inherited(&self) {
        let Some(api) = self
            .api()
            .filter(|_| self.subscribed.swap(false, Ordering::AcqRel))
        else {
            return;
        };
        // Nothing is told in a forked child; what CUPTI refuses, the program's own call will meet.
        if self.sampler.switch.is_on() {
            let _ = api.disable_kernels();
        }
        let _ = api.unsubscribe(SubscriberHandle(self.subscriber.load(Ordering::Acquire)));
    }

    /// Switches the callbacks of the launches that hooks decide upon: all of them, whatever one gives.
    fn switch_callbacks(&self, api: &Api, on: bool) -> Result<(), CuptiError> {
        let subscriber = SubscriberHandle(self.subscriber.load(Ordering::Acquire));
        callbacks::wanted(self.config.api_callbacks)
            .filter(|launch| callbacks::decided_in_hook(*launch))
            // On a shared subscription the other's callbacks stay as they are.
            .filter(|(domain, cbid)| !holder::wants_callback(*domain, *cbid))
            .map(|(domain, cbid)| api.enable_callback(subscriber, domain, cbid, on))
            .fold(Ok(()), Result::and)
    }

    /// Calls CUPTI on behalf of one who switches, which excludes all others. An error is told, and final (`Err`),
    /// when it comes for the [`FAILURES_MAX`]th time in a row; `Ok(false)` before.
    fn activity(
        &self,
        failures: &AtomicU32,
        act: impl FnOnce(&Api) -> Result<(), CuptiError>,
    ) -> Result<bool, CuptiError> {
        let Some(api) = self.api() else {
            return Ok(false);
        };
        // So that the hooks on CUPTI do not take this for the program's.
        let _ours = Inside::nested();
        // CUPTI may come to a cancellation point, in the middle of the switch.
        let _whole = Uncancelled::begin();
        let Err(error) = act(api) else {
            failures.store(0, Ordering::Relaxed);
            return Ok(true);
        };
        if failures.fetch_add(1, Ordering::Relaxed) + 1 < FAILURES_MAX {
            return Ok(false);
        }
        failures.store(0, Ordering::Relaxed);
        error.tell("cupti");
        Err(error)
    }
}

impl Activity for Session {
    fn on(&self) -> bool {
        let retry = self.retry.load(Ordering::Relaxed);
        if self.activity_failed.load(Ordering::Relaxed)
            || retry != 0 && clock::monotonic_ns() < retry
        {
            return false;
        }
        let on = |api: &Api| {
            let callbacks = self.switch_callbacks(api, true);
            let on = callbacks.and_then(|()| match self.kernels_are_pinned() {
                true => Ok(()),
                false => api.enable_kernels(),
            });
            if on.is_err() {
                let _ = self.switch_callbacks(api, false);
            }
            on
        };
        let on = self.activity(&self.failures[0], on);
        let retry = match on {
            Ok(true) => 0,
            Ok(false) => clock::monotonic_ns() + FAILURES_PAUSE,
            Err(_) => {
                self.activity_failed.store(true, Ordering::Relaxed);
                0
            }
        };
        self.retry.store(retry, Ordering::Relaxed);
        on.unwrap_or(false)
    }

    fn off(&self) {
        let off = |api: &Api| {
            let kernels = match self.kernels_kept.load(Ordering::SeqCst) {
                true => Ok(()),
                // Left on it would stay so until the next sampled launch, which may never come.
                false => api.disable_kernels().or_else(|_| api.disable_kernels()),
            };
            kernels.and(self.switch_callbacks(api, false))
        };
        // Told, and tried again after the next launch that is sampled.
        let _ = self.activity(&self.failures[1], off);
    }
}
