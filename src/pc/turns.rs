//! One turn of our thread: an interval ends, samples are fetched, and the next one begins.

use std::sync::atomic::Ordering;

use parcagpu_abi::status::Counter;

use super::api::Functions;
use super::drain::{Brought, Drain};
use super::refusal;
use super::sampling::Sampling;
use super::serial::Tools;
use super::window::{INTERVAL, Windows};
use crate::cupti::call::CuptiError;
use crate::cupti::sys::CUcontext;
use crate::session::Session;
use crate::{clock, errors, status};

const SECOND: u64 = 1_000_000_000;
/// Samples that nobody wants are dropped this often, ns.
const DROP_PERIOD: u64 = SECOND;
/// Launches without a sample for so long are told, ns.
const SILENCE: u64 = 10 * SECOND;
/// Turns in a row that lose samples until it is told.
const FULL_TOLD: u32 = 30;

/// What one thread at a time works with.
pub struct Turns {
    pub(super) drain: Drain,
    pub(super) windows: Windows,
    /// The present interval is a window.
    pub(super) window: bool,
    /// Pairs it has brought.
    pub(super) pairs: u64,
    pub(super) contexts: Vec<(CUcontext, bool)>,
    pub(super) last: u64,
    /// Turns in a row that found the hardware's buffer full.
    pub(super) full: u32,
    /// Samples of code that CUPTI does not know, since then.
    pub(super) foreign: u64,
    /// When the last sample came, and the launches sampled by then.
    pub(super) heard: (u64, u64),
}

impl Turns {
    /// For a target in pairs per second; nothing is on.
    pub fn new(target: f64) -> Self {
        Self {
            drain: Drain::default(),
            windows: Windows::new(target, clock::monotonic_ns()),
            window: false,
            pairs: 0,
            contexts: Vec::new(),
            last: 0,
            full: 0,
            foreign: 0,
            heard: (0, 0),
        }
    }
}

impl Sampling {
    /// The end of an interval and the beginning of the next.
    pub(super) fn turn(
        &self,
        turns: &mut Turns,
        session: &Session,
        functions: &Functions,
        now: u64,
    ) {
        if self.is_serialized() {
            return self.serialized_turn(turns, session, functions, now);
        }
        let ended = turns.window;
        let begins = turns.windows.begins(now);
        // What lies between two windows goes before the next one begins.
        if ended || begins || now.saturating_sub(turns.last) >= DROP_PERIOD {
            self.fetch(turns, functions, ended, now);
        }
        if ended {
            self.window_ended(turns, now);
        }
        turns.window = begins;
    }

    pub(super) fn serialized_turn(
        &self,
        turns: &mut Turns,
        session: &Session,
        functions: &Functions,
        now: u64,
    ) {
        let Some(tools) = Tools::of(session) else {
            return;
        };
        // A program that launches no more does not close it.
        self.serial.close_if_older(2 * INTERVAL, tools);
        if turns.window && !self.serial.cancel() {
            return;
        }
        if turns.window || now.saturating_sub(turns.last) >= DROP_PERIOD {
            self.fetch(turns, functions, true, now);
        }
        if turns.window {
            self.window_ended(turns, now);
        }
        turns.window = turns.windows.begins(now);
        if turns.window {
            self.serial.request();
        }
    }

    pub(super) fn window_ended(&self, turns: &mut Turns, now: u64) {
        let pairs = std::mem::take(&mut turns.pairs);
        turns.windows.ended(now, pairs);
        if !turns.contexts.is_empty() {
            status::block().add(Counter::PcWindows, 1);
        }
    }

    /// Fetches what every context has.
    pub(super) fn fetch(&self, turns: &mut Turns, functions: &Functions, deliver: bool, now: u64) {
        turns.last = now;
        let mut contexts = std::mem::take(&mut turns.contexts);
        self.contexts.on(&mut contexts);
        status::block().counters[Counter::PcContexts as usize]
            .store(contexts.len() as u64, Ordering::Relaxed);
        let mut brought = Brought::default();
        for (context, stale) in &contexts {
            // Its thread may have forgotten it meanwhile.
            if self.contexts.use_it(*context) {
                let deliver = deliver && !stale;
                brought += self.fetch_one(turns, functions, *context, deliver);
                self.contexts.unused();
            }
        }
        self.listen(turns, brought, contexts.is_empty(), now);
        turns.contexts = contexts;
    }

    pub(super) fn fetch_one(
        &self,
        turns: &mut Turns,
        functions: &Functions,
        context: CUcontext,
        deliver: bool,
    ) -> Brought {
        let slots = self.slots.load(Ordering::Relaxed);
        let known = self.serial.known(self.is_serialized());
        match turns.drain.turn(functions, context, slots, known, deliver) {
            Ok(brought) => {
                turns.full = 0;
                turns.pairs += brought.pairs;
                brought
            }
            Err(error) => {
                self.failed(turns, context, error);
                Brought::default()
            }
        }
    }

    pub(super) fn failed(&self, turns: &mut Turns, context: CUcontext, error: CuptiError) {
        match error.code {
            // The hardware was faster than CUPTI's own thread; the next turn may find samples again.
            8 => {
                status::block().add(Counter::PcBufferFull, 1);
                turns.full += 1;
                if turns.full == FULL_TOLD {
                    errors::report(
                        8,
                        refusal::COMPONENT,
                        &format!(
                            "PC samples are lost: the hardware's buffer is full all the time; raise \
                             PARCAGPU_SAMPLING_FACTOR (it is {}) or PARCAGPU_PC_HW_BUFFER_MB",
                            match self.wanted.factor {
                                0 => "CUPTI's choice".to_owned(),
                                factor => factor.to_string(),
                            }
                        ),
                    );
                }
            }
            _ => {
                refusal::tell(error);
                self.contexts.refuse(context);
            }
        }
    }

    /// Launches, but no samples: some GPUs fall silent when the period is set.
    pub(super) fn listen(&self, turns: &mut Turns, brought: Brought, idle: bool, now: u64) {
        let block = status::block();
        let launches = block
            .get(Counter::EagerSampled)
            .wrapping_add(block.get(Counter::GraphSampled));
        let (since, before) = turns.heard;
        turns.foreign += brought.total - brought.samples;
        let explained = idle || turns.full > 0;
        if brought.samples > 0 || explained || since == 0 {
            turns.heard = (now, launches);
            turns.foreign = 0;
        } else if now.saturating_sub(since) >= SILENCE && launches.wrapping_sub(before) >= 10 {
            turns.heard = (now, launches);
            if std::mem::take(&mut turns.foreign) > 0 {
                errors::report(
                    0,
                    refusal::COMPONENT,
                    "CUPTI cannot tell which kernels the PC samples are of: it came when the program had \
                     made its context already; preload the library, so that it is there before",
                );
                return;
            }
            let period = match self.wanted.factor {
                0 => "CUPTI's own period".to_owned(),
                factor => format!(
                    "a period of 2^{factor} cycles; if kernels run longer than that, try \
                     PARCAGPU_SAMPLING_FACTOR=0, since some GPUs sample at CUPTI's own period only"
                ),
            };
            errors::report(
                0,
                refusal::COMPONENT,
                &format!("the GPU runs kernels and gives no PC samples at {period}"),
            );
        }
    }
}
