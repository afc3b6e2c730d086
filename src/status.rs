//! The status block this process publishes.
//!
//! Counters and numbers are written by whoever knows them; texts by one writer at a time, under a
//! lock that is held for the copy only.

use std::sync::atomic::Ordering;

use parcagpu_abi::status::{Counter, State, Status, Text};

use crate::clock;
use crate::config::Config;
use crate::sampling::counts::COUNTS;
use crate::sheltered::Sheltered;

/// Read by consumers through `/proc/PID/mem`; found by its name in the dynamic symbol table.
#[unsafe(no_mangle)]
#[allow(non_upper_case_globals, reason = "the name is part of the contract")]
pub static parcagpu_status: Status = Status::new();

static TEXTS: Sheltered<()> = Sheltered::new();

/// The block.
#[inline]
pub fn block() -> &'static Status {
    &parcagpu_status
}

/// Replaces a text of the block.
pub fn set_text<const N: usize>(field: &Text<N>, text: &str) {
    if let Some(_one_writer) = TEXTS.lock() {
        block().set_text(field, text);
    }
}

/// The state as published.
pub fn state() -> State {
    State::from_u32(block().state.load(Ordering::Relaxed)).unwrap_or(State::Stopped)
}

/// Publishes a state and why it is so.
pub fn set_state(state: State, reason: &str) {
    let block = block();
    if let Some(_one_writer) = TEXTS.lock() {
        // Whoever reads the state finds its reason, and the look, with it.
        block.set_together(|| {
            block.counters[Counter::LookOfState as usize]
                .store(block.get(Counter::Looks), Ordering::Relaxed);
            block.state.store(state as u32, Ordering::Release);
            block
                .state_since_ns
                .store(clock::realtime_ns(), Ordering::Relaxed);
            block.reason.store(reason);
        });
    }
    crate::debug_log!(1, "state {}: {reason}", state.name());
}

/// Says why a state is as it is, if it is (still) the one that is meant.
pub fn explain(state: State, reason: &str) {
    let block = block();
    let Some(_one_writer) = TEXTS.lock() else {
        return;
    };
    // A state that is set meanwhile brings a text of its own after this one.
    if block.state.load(Ordering::Relaxed) == state as u32 {
        block.set_text(&block.reason, reason);
    }
}

/// Brings the counters of launches up to date.
pub fn publish_counts() {
    COUNTS.publish(block());
}

/// Whether kernel records of launches that were announced may still have to come. Of a graph launch nobody knows the
/// last.
pub fn is_owing() -> bool {
    block().ids_outstanding() > 0 || block().get(Counter::GraphSampled) > 0
}

/// Publishes the configuration in force.
pub fn set_config(config: &Config) {
    let c = &block().config;
    let relaxed = Ordering::Relaxed;
    c.rate_limit.store(config.rate_limit.to_bits(), relaxed);
    c.graph_rate_limit
        .store(config.graph_rate_limit.to_bits(), relaxed);
    c.pc_sampling_rate.store(
        config.pc_sampling_rate.unwrap_or(f64::NAN).to_bits(),
        relaxed,
    );
    c.sampling_factor.store(config.sampling_factor, relaxed);
    c.pc_hw_buffer_mb.store(config.pc_hw_buffer_mb, relaxed);
    c.pc_sampling_mode
        .store(config.pc_sampling_mode as u32, relaxed);
    c.api_callbacks.store(config.api_callbacks as u32, relaxed);
    c.hook_engine.store(config.hook_engine as u32, relaxed);
    c.yield_mode.store(config.yield_mode as u32, relaxed);
    c.cubin_memory_mb.store(config.cubin_memory_mb, relaxed);
    c.debug.store(u32::from(config.debug), relaxed);
}

/// In a forked child: the parent's story is not the child's. Async-signal-safe.
pub fn reset_in_child() {
    let block = block();
    // SAFETY: getpid has no preconditions.
    let pid = unsafe { libc::getpid() };
    block.pid.store(pid as u32, Ordering::Relaxed);
    for counter in &block.counters {
        counter.store(0, Ordering::Relaxed);
    }
    COUNTS.reset();
    block.oldest_buffer_ns.store(0, Ordering::Relaxed);
    block.state.store(State::Stopped as u32, Ordering::Relaxed);
    // There is no other thread, so the text is written without the lock.
    block.set_text(&block.reason, "forked from a process that uses CUDA");
}

/// In a forked child: a text that another thread of the parent was writing stays as it is, and can be read. Async-signal-safe.
pub fn end_text_in_child() {
    let sequence = &block().text_seq;
    if sequence.load(Ordering::Relaxed) % 2 == 1 {
        sequence.fetch_add(1, Ordering::Relaxed);
    }
}
