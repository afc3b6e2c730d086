//! One launch, from its entry into the driver to its announcement.
//!
//! The thread's bucket decides; a sampled launch joins the switch, is entered into [`Correlation`]
//! when CUPTI tells its id, and on exit, if the driver accepted it and its stream was not capturing,
//! is announced by `cuda_correlation` on the launching thread.
//!
//! Where the launch function is hooked ([`crate::hooks::launch`]) the decision is made before CUPTI
//! is involved. Elsewhere it is made in CUPTI's own callbacks, by [`Sampler::enter`] and
//! [`Sampler::exit`]; between the two, the only state is the 64-bit slot that CUPTI shares between
//! both callbacks of one call: the generation in which the launch joined, 0 for a launch that is not
//! sampled. An exit whose entry was not seen in the same on-period is never announced.

use std::cell::Cell;
use std::ffi::{CStr, c_char};

use parcagpu_abi::status::Counter;

use super::bucket::{Bucket, Monotonic};
use super::correlation::Correlation;
use super::counts::COUNTS;
use super::deliver::Batch;
use super::switch::{Activity, Generation, Refused, Switch};
use crate::probes::{self, touch};
use crate::{clock, nvtx, status};

/// The two kinds that are sampled apart.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// One kernel, or one per device.
    Eager,
    /// A graph.
    Graph,
}

/// What sampling works with; one per process.
pub struct Sampler {
    /// Samples per second and thread, eager launches.
    pub rate: f64,
    /// Samples per second and thread, graph launches.
    pub graph_rate: f64,
    /// On while a sampled launch is open.
    pub switch: Switch,
    /// Launches whose records are still to come.
    pub correlation: Correlation,
}

/// A launch as the callbacks describe it.
#[derive(Clone, Copy, Debug)]
pub struct Launch {
    /// Eager or graph.
    pub kind: Kind,
    /// Whether more than one kernel record may come.
    pub many: bool,
    /// CUPTI's correlation id.
    pub id: u32,
    /// Callback id as `cuda_correlation` carries it: > 0 runtime API, < 0 driver API.
    pub cbid: i32,
}

/// How a launch ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// A kernel record will come.
    Launched,
    /// The driver refused it.
    Failed,
    /// It went into a graph that is being captured: no record will come.
    Captured,
    /// The session went away, or came anew, while the launch was open.
    Stale,
}

thread_local! {
    // No destructors: usable while a thread ends.
    static EAGER: Cell<Bucket> = const { Cell::new(Bucket::new()) };
    static GRAPH: Cell<Bucket> = const { Cell::new(Bucket::new()) };
}

impl Kind {
    fn with_bucket<R>(self, act: impl FnOnce(&mut Bucket) -> R) -> R {
        let bucket = match self {
            Self::Eager => &EAGER,
            Self::Graph => &GRAPH,
        };
        bucket.with(|cell| {
            let mut bucket = cell.get();
            let result = act(&mut bucket);
            cell.set(bucket);
            result
        })
    }

    /// Takes a launch back that was counted as seen and turned out to be none.
    pub fn uncount(self) {
        COUNTS.void(self);
    }
}

impl Sampler {
    /// A sampler with the given rates and a closed switch.
    pub fn new(rate: f64, graph_rate: f64) -> Self {
        Self {
            rate,
            graph_rate,
            switch: Switch::new(),
            correlation: Correlation::new(),
        }
    }

    fn rate_of(&self, kind: Kind) -> f64 {
        match kind {
            Kind::Eager => self.rate,
            Kind::Graph => self.graph_rate,
        }
    }

    /// A launch is about to go to the driver: whether it is sampled, and in which on-period. The
    /// switch is joined then, until [`Switch::leave`]. `all`: it is sampled whatever the bucket says.
    pub fn take(&self, kind: Kind, all: bool, activity: &impl Activity) -> Option<Generation> {
        let rate = self.rate_of(kind);
        if !all && !kind.with_bucket(|bucket| bucket.take(&Monotonic, rate)) {
            COUNTS.refuse(kind);
            return None;
        }
        COUNTS.admit(kind);
        match self.switch.join(activity) {
            Ok(generation) => Some(generation),
            Err(refused) => {
                self.give_back(kind);
                if refused == Refused::Busy {
                    status::block().add(Counter::SwitchBusy, 1);
                }
                None
            }
        }
    }

    /// The token of a launch that was not sampled after all.
    pub fn give_back(&self, kind: Kind) {
        let rate = self.rate_of(kind);
        kind.with_bucket(|bucket| bucket.give_back(rate));
    }

    /// A sampled launch has its id.
    pub fn begin(&self, launch: Launch) {
        nvtx::launch::opened(launch.id);
        self.correlation.begin(launch.id, launch.many);
    }

    /// A sampled launch returned from the driver: it is announced if a record will come. Otherwise
    /// its token goes back.
    pub fn end(&self, launch: Launch, name: *const c_char, outcome: Outcome) {
        nvtx::launch::closed();
        match outcome {
            Outcome::Launched => return self.announce(launch, name),
            Outcome::Captured => {
                status::block().add(Counter::CapturedLaunches, 1);
                launch.kind.uncount();
            }
            Outcome::Failed | Outcome::Stale => {}
        }
        self.correlation.cancel(launch.id);
        self.give_back(launch.kind);
    }

    /// [`Self::take`] and [`Self::begin`] where the launch is decided upon inside CUPTI's callback;
    /// gives the value for the slot.
    pub fn enter(&self, launch: Launch, all: bool, activity: &impl Activity) -> u64 {
        let Some(generation) = self.take(launch.kind, all, activity) else {
            return 0;
        };
        self.begin(launch);
        u64::from(generation)
    }

    /// The other end of [`Self::enter`]. `outcome` is asked for sampled launches only.
    pub fn exit(
        &self,
        launch: Launch,
        slot: u64,
        name: *const c_char,
        outcome: impl FnOnce() -> Outcome,
        activity: &impl Activity,
    ) {
        // What is not a generation was put there by somebody else.
        let Ok(generation) = Generation::try_from(slot) else {
            return;
        };
        if generation == 0 {
            return;
        }
        let outcome = match self.switch.leave(generation, activity) {
            true => outcome(),
            false => Outcome::Stale,
        };
        self.end(launch, name, outcome);
    }

    fn announce(&self, launch: Launch, name: *const c_char) {
        COUNTS.announced(launch.kind, clock::coarse_ns(), status::block());
        if probes::cuda_correlation::enabled() {
            // SAFETY: CUPTI's names are terminated strings.
            unsafe { touch::string(name) };
            probes::cuda_correlation::fire(launch.id, launch.cbid, name);
        }
        let held = self.correlation.announce(launch.id);
        if !held.is_empty() {
            let mut batch = Batch::new();
            for record in &held {
                // SAFETY: `held` outlives the batch; the names are CUPTI's.
                unsafe { batch.push(&raw const record.0) };
            }
            batch.fire();
        }
    }
}

/// The name to announce: the kernel's where CUPTI gives one, else the function's, else empty.
pub fn announced_name(symbol: *const c_char, function: *const c_char) -> *const c_char {
    let empty: &'static CStr = c"";
    [symbol, function]
        .into_iter()
        .find(|name| !name.is_null())
        .unwrap_or(empty.as_ptr())
}

#[cfg(test)]
mod tests {
    use super::{Activity, Kind, Launch, Outcome, Sampler, announced_name};
    use std::ffi::CStr;

    struct Free;
    impl Activity for Free {
        fn on(&self) -> bool {
            true
        }
        fn off(&self) {}
    }

    fn launch(id: u32, kind: Kind) -> Launch {
        Launch {
            kind,
            many: kind == Kind::Graph,
            id,
            cbid: -307,
        }
    }

    /// Buckets are per thread, so each test takes a thread of its own.
    fn in_thread(test: impl FnOnce() + Send) {
        std::thread::scope(|scope| scope.spawn(test).join().unwrap());
    }

    #[test]
    fn the_buckets_of_both_kinds_are_apart() {
        in_thread(|| {
            let sampler = Sampler::new(1e-3, 1e-3);
            sampler.switch.open();
            assert_ne!(sampler.enter(launch(1, Kind::Eager), false, &Free), 0);
            assert_eq!(sampler.enter(launch(2, Kind::Eager), false, &Free), 0);
            assert_ne!(sampler.enter(launch(3, Kind::Graph), false, &Free), 0);
            assert_eq!(sampler.enter(launch(4, Kind::Graph), false, &Free), 0);
        });
    }

    #[test]
    fn captured_and_failed_launches_give_their_token_back() {
        in_thread(|| {
            let sampler = Sampler::new(1e-3, 1e-3);
            sampler.switch.open();
            for outcome in [Outcome::Captured, Outcome::Failed] {
                let slot = sampler.enter(launch(1, Kind::Eager), false, &Free);
                assert_ne!(slot, 0, "{outcome:?}");
                sampler.exit(
                    launch(1, Kind::Eager),
                    slot,
                    c"k".as_ptr(),
                    || outcome,
                    &Free,
                );
            }
            assert_ne!(sampler.enter(launch(2, Kind::Eager), false, &Free), 0);
        });
    }

    #[test]
    fn a_closed_switch_takes_nothing_and_keeps_the_token() {
        in_thread(|| {
            let sampler = Sampler::new(1e-3, 1e-3);
            assert_eq!(sampler.enter(launch(1, Kind::Eager), false, &Free), 0);
            sampler.switch.open();
            assert_ne!(sampler.enter(launch(2, Kind::Eager), false, &Free), 0);
        });
    }

    #[test]
    fn a_slot_of_another_period_is_not_announced() {
        in_thread(|| {
            let sampler = Sampler::new(1e9, 1e9);
            sampler.switch.open();
            let slot = sampler.enter(launch(1, Kind::Eager), false, &Free);
            assert!(sampler.switch.close(&Free));
            sampler.switch.open();
            let exit = |slot| {
                let launch = launch(1, Kind::Eager);
                sampler.exit(launch, slot, c"k".as_ptr(), || Outcome::Launched, &Free);
            };
            exit(slot);
            exit(u64::MAX);
            exit(0);
            assert!(sampler.correlation.announce(1).is_empty());
        });
    }

    #[test]
    fn names_fall_back() {
        // SAFETY: all are terminated literals.
        let text = |p| unsafe { CStr::from_ptr(p) };
        let (kernel, function, null) =
            (c"k".as_ptr(), c"cuLaunchKernel".as_ptr(), std::ptr::null());
        assert_eq!(text(announced_name(kernel, function)), c"k");
        assert_eq!(text(announced_name(null, function)), c"cuLaunchKernel");
        assert_eq!(text(announced_name(null, null)), c"");
    }
}
