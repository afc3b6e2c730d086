//! PC sampling of the process: what our thread does ten times a second, and what contexts tell.

use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Mutex, MutexGuard, TryLockError};
use std::time::Duration;

use parcagpu_abi::pc_sample::STALL_REASON_SLOTS;
use parcagpu_abi::status::Counter;

use super::api::Functions;
use super::claim;
use super::contexts::{Contexts, Phase};
use super::serial::{Serial, Tools};
use super::setup::{self, Refusal};
use super::sys::{API_VERSION_12_4, DRIVER_12_8};
use super::turns::Turns;
use super::{crc, refusal};
use crate::config::{Config, PcSamplingMode};
use crate::cupti::api::Api;
use crate::cupti::sys::CUcontext;
use crate::entry::Inside;
use crate::hooks::installed;
use crate::patience::Patience;
use crate::session::Session;
use crate::{clock, errors, probes, status};

/// Longest time that a thread which destroys a context, or unloads a module, waits for our thread: without its turn
/// the last samples are lost, and ours is the last to get a processor on a busy machine.
pub(super) const TURN_LIMIT: Duration = Duration::from_millis(250);
/// How often the window is tried to be closed when the last consumer leaves or CUPTI is given up.
const LAST_TRIES: u32 = 4;

/// What the configuration asks for.
#[derive(Clone, Copy, Debug)]
pub struct Wanted {
    /// See [`PcSamplingMode`].
    pub mode: PcSamplingMode,
    /// log2 of cycles; 0: CUPTI's choice.
    pub factor: u32,
    /// Bytes; 0: CUPTI's choice.
    pub hardware_buffer: u64,
    /// Pairs per second; 0: fixed probability.
    pub target: f64,
}

/// See the module.
pub struct Sampling {
    pub(super) wanted: Wanted,
    pub(super) contexts: Contexts,
    pub(super) serial: Serial,
    /// Held across CUPTI calls, and therefore only ever tried.
    turns: Mutex<Turns>,
    /// Somebody wants samples, and this process can give them.
    pub(super) on: AtomicBool,
    /// It cannot; told.
    off: AtomicBool,
    /// Contexts are confirmed under a subscription that goes on.
    subscribed: AtomicBool,
    /// Serialized mode was asked for and cannot be had.
    continuous: AtomicBool,
    /// When a GPU that another process samples is asked for again, on [`clock::monotonic_ns`].
    pub(super) retry: AtomicU64,
    /// GPUs that the process sees; 0: not asked yet.
    pub(super) gpus: AtomicUsize,
    /// That a context waits for another's end was told.
    pub(super) left_out: AtomicBool,
    /// Stall reasons of a record, at most.
    pub(super) slots: AtomicUsize,
}

impl Sampling {
    /// As the configuration asks; `None` if it does not.
    pub fn new(config: &Config) -> Option<Self> {
        let target = config.pc_sampling_rate?;
        Some(Self {
            wanted: Wanted {
                mode: config.pc_sampling_mode,
                factor: config.sampling_factor,
                hardware_buffer: u64::from(config.pc_hw_buffer_mb) << 20,
                target,
            },
            contexts: Contexts::new(claim::release),
            serial: Serial::default(),
            turns: Mutex::new(Turns::new(target)),
            on: AtomicBool::new(false),
            off: AtomicBool::new(false),
            subscribed: AtomicBool::new(false),
            continuous: AtomicBool::new(false),
            retry: AtomicU64::new(0),
            gpus: AtomicUsize::new(0),
            left_out: AtomicBool::new(false),
            slots: AtomicUsize::new(STALL_REASON_SLOTS),
        })
    }

    pub(super) fn is_serialized(&self) -> bool {
        self.counts_launches() && !self.continuous.load(Ordering::Relaxed)
    }

    /// Whether launches and loads have to be counted, for which they have to pass their hooks.
    pub fn counts_launches(&self) -> bool {
        self.wanted.mode == PcSamplingMode::Serialized
    }

    /// CUPTI's own callbacks tell of launches while we are the subscriber, of loads when they are over, and of
    /// nothing else: somebody may be inside when sampling is started, and never come out.
    fn insist_on_hooks(&self) {
        if self.is_serialized() && !installed::decides_all() {
            self.continuous.store(true, Ordering::Relaxed);
            errors::report(
                0,
                refusal::COMPONENT,
                "PARCAGPU_PC_SAMPLING_MODE=serialized needs launches to be hooked, which they are not here; \
                 PCs are sampled in continuous mode",
            );
        }
    }

    /// The functions, where this process can be sampled; otherwise says why not, once.
    pub fn functions<'a>(&self, session: &Session, api: &'a Api) -> Option<&'a Functions> {
        if self.off.load(Ordering::Relaxed) {
            return None;
        }
        let driver = session.driver().and_then(|driver| driver.version());
        let why = match (api.pc_sampling(), driver) {
            (Err(name), _) => format!("libcupti has no function {name}"),
            _ if api.version < API_VERSION_12_4 => format!(
                "libcupti's version {} is older than that of CUDA 12.4 ({API_VERSION_12_4})",
                api.version
            ),
            (_, Some(version)) if version < DRIVER_12_8 => format!(
                "the driver is for CUDA {}.{}, and 12.8 is needed",
                version / 1000,
                version % 1000 / 10
            ),
            (Ok(functions), _) => return Some(functions),
        };
        self.off.store(true, Ordering::Relaxed);
        refusal::tell_off(&why);
        None
    }

    /// One look, while we are CUPTI's only subscriber.
    pub fn look(&self, session: &Session, now: u64) {
        let Some(api) = session.api() else { return };
        self.subscribed.store(true, Ordering::Relaxed);
        let wanted = probes::pc_sample_batch::enabled();
        let functions = match wanted {
            true => self.functions(session, api),
            false => None,
        };
        let was_on = self.on.swap(functions.is_some(), Ordering::Relaxed);
        let Some(functions) = functions else {
            if was_on {
                self.close_window(session);
            }
            return;
        };
        if !was_on {
            self.contexts.all_stale();
        }
        self.insist_on_hooks();
        if let Some(context) = self.next_context(session, now) {
            self.set_up(session, api, functions, context);
        }
        if let Some(mut turns) = self.try_turns() {
            self.turn(&mut turns, session, functions, now);
        }
    }

    /// The program's own profiler has subscribed, which it may have done for good; what CUPTI would tell of
    /// contexts goes to it.
    pub fn beside(&self, tool: &str) {
        if probes::pc_sample_batch::enabled() {
            errors::report_latest(
                0,
                refusal::COMPONENT,
                &format!(
                    "no PC samples: {tool} has subscribed to CUPTI, which tells of contexts to it alone"
                ),
            );
        }
    }

    /// The subscription is about to end, and CUPTI still tells if a context goes: the last moment to close a
    /// window. One that cannot be closed for launches inside is so by a launch that returns once the window is old
    /// enough; until one comes there is no kernel that the open window could hold up.
    pub fn leave(&self, session: &Session) {
        if self.on.swap(false, Ordering::Relaxed) {
            self.close_window(session);
        }
    }

    /// The subscription ended, or CUPTI is not ours alone any more: contexts are left as they are.
    pub fn rest(&self) {
        if self.subscribed.swap(false, Ordering::Relaxed) {
            self.contexts.doubt_all();
        }
    }

    /// The program finalised CUPTI: nothing is on any more.
    pub fn finalized(&self) {
        self.contexts.forget_all();
        self.serial.reset();
        crc::forget();
    }

    fn close_window(&self, session: &Session) {
        if self.is_serialized()
            && let Some(tools) = Tools::of(session)
        {
            self.serial.cancel();
            let closes = || self.serial.close_if_older(0, tools);
            let _closed = (0..LAST_TRIES).any(|_| closes());
        }
    }

    fn try_turns(&self) -> Option<MutexGuard<'_, Turns>> {
        match self.turns.try_lock() {
            Ok(turns) => Some(turns),
            Err(TryLockError::Poisoned(e)) => Some(e.into_inner()),
            Err(TryLockError::WouldBlock) => None,
        }
    }

    pub(super) fn turns_within(&self, limit: Duration) -> Option<MutexGuard<'_, Turns>> {
        let mut patience = Patience::new(limit);
        loop {
            if let Some(turns) = self.try_turns() {
                return Some(turns);
            }
            if patience.is_over() {
                return None;
            }
            std::thread::sleep(Duration::from_micros(100));
        }
    }

    /// Begins to sample a context that was taken. What CUPTI has begun with and then refuses stays so; gives
    /// whether that is the case.
    pub(super) fn set_up(
        &self,
        session: &Session,
        api: &Api,
        functions: &Functions,
        context: CUcontext,
    ) -> bool {
        let _ours = Inside::nested();
        if !self.is_claimed(session, api, context) {
            self.contexts.settle(context, Phase::Found, false);
            return false;
        }
        let set_up = || {
            let begun = false;
            session
                .pin_kernels(api)
                .map_err(|error| Refusal { error, begun })?;
            let mode = match self.is_serialized() {
                true => PcSamplingMode::Serialized,
                false => PcSamplingMode::Continuous,
            };
            let wanted = Wanted {
                mode,
                ..self.wanted
            };
            setup::set_up(api, functions, session.driver(), context, &wanted)
        };
        let outcome = match session.driver() {
            Some(driver) => driver.beside_captures(set_up),
            None => set_up(),
        };
        let (phase, begun) = match outcome {
            Ok(slots) => {
                self.slots.fetch_max(slots, Ordering::Relaxed);
                (Phase::On, true)
            }
            Err(Refusal { error, begun }) => {
                refusal::tell(error);
                (Phase::Refused, begun)
            }
        };
        if !self.contexts.settle(context, phase, begun) && begun {
            refusal::tell_off(
                "a context was destroyed while CUPTI began to sample it; that has no end, and beside it no other \
                 one can be sampled",
            );
        }
        begun && phase == Phase::Refused
    }

    /// The process ends: what the present window has brought is delivered.
    pub fn finish(&self, session: &Session) {
        if !self.on.swap(false, Ordering::Relaxed) {
            return;
        }
        if let (Some(Ok(functions)), Some(mut turns)) = (
            session.api().map(Api::pc_sampling),
            self.turns_within(TURN_LIMIT),
        ) && (turns.window || self.is_serialized())
        {
            self.fetch(&mut turns, functions, true, clock::monotonic_ns());
        }
    }

    /// Whether samples that somebody waits for may be with CUPTI still.
    pub fn owes(&self) -> bool {
        let launches = [Counter::EagerSeen, Counter::GraphSeen];
        probes::pc_sample_batch::enabled() && launches.iter().any(|n| status::block().get(*n) > 0)
    }
}
