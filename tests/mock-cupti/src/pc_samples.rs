//! Samples of kernels, by function, place in its code and reason.
//!
//! Kernels run on the virtual GPU in spans of time that are known when they are launched: a span is
//! turned into samples as far as it has passed, so many per ms. Samples go round a function's
//! places, the first ones more often, with always the same mix of reasons.

use std::collections::{BTreeMap, HashMap};
use std::ffi::{CStr, c_char};

use crate::link::KernelRun;
use crate::pc_script;
use crate::stall_reasons::{REASONS, Reason};

const INSTRUCTION_BYTES: u64 = 16;
/// Runs kept until they are turned into samples.
const MOST_RUNS: usize = 4096;
/// The reasons of ten samples at one place.
const MIX: [Reason; 10] = [
    Reason::LongScoreboard,
    Reason::Wait,
    Reason::LongScoreboardNotIssued,
    Reason::Selected,
    Reason::LongScoreboardNotIssued,
    Reason::Wait,
    Reason::Selected,
    Reason::LongScoreboardNotIssued,
    Reason::WaitNotIssued,
    Reason::LongScoreboard,
];

/// Samples by reason, in the order of [`REASONS`]. A part is counted in its whole as well.
pub type Counts = [u32; REASONS.len()];

/// A kernel's code.
pub struct Function {
    /// Its name, see [`own_name`].
    pub name: *const c_char,
    /// Checksum of the machine code.
    pub checksum: u64,
    /// Its symbol there.
    pub symbol: u32,
    instructions: u64,
    /// Time that has not made a sample yet, ps.
    rest: u64,
    turn: u64,
}

// SAFETY: the pointers are to what is never changed nor freed.
unsafe impl Send for Function {}

struct Run {
    function: usize,
    correlation: u32,
    /// Up to where it was sampled.
    from: u64,
    end: u64,
}

/// Function, offset in it, correlation id.
type Place = (usize, u64, u32);

/// What was sampled in a context since it was last fetched.
#[derive(Default)]
pub struct Samples {
    functions: Vec<Function>,
    known: HashMap<(usize, usize), usize>,
    runs: Vec<Run>,
    waiting: BTreeMap<Place, Counts>,
}

impl Samples {
    /// A kernel that will be, or is, running. Correlation id 0: samples of its launches are added up.
    pub fn add(&mut self, run: &KernelRun, correlation: u32, checksum: u64) {
        let key = (run.name.addr(), run.cubin.addr());
        let functions = &mut self.functions;
        let function = *self.known.entry(key).or_insert_with(|| {
            functions.push(Function {
                name: own_name(run.name),
                checksum,
                symbol: run.symbol,
                instructions: (run.code_size / INSTRUCTION_BYTES).max(1),
                rest: 0,
                turn: 0,
            });
            functions.len() - 1
        });
        self.runs.push(Run {
            function,
            correlation,
            from: run.start,
            end: run.end,
        });
    }

    /// Whether runs should be turned into samples soon.
    pub fn crowded(&self) -> bool {
        self.runs.len() >= MOST_RUNS
    }

    /// Turns what has passed into samples, with a hardware period of 2^period cycles; throws them
    /// away if they are not kept. From `room` places on, new ones are without correlation id.
    pub fn pass(&mut self, now: u64, period: u64, keep: bool, room: usize) {
        let each = (1_000_000_000 << period) / (pc_script::get().per_ms << 20);
        for run in &mut self.runs {
            let until = now.clamp(run.from, run.end);
            let function = &mut self.functions[run.function];
            function.rest += (until - run.from) * 1000;
            run.from = until;
            let count = function.rest / each.max(1);
            function.rest %= each.max(1);
            if keep && count > 0 {
                let at = (run.function, run.correlation);
                function.sample(count, |offset, reason| {
                    let mut place = (at.0, offset, at.1);
                    if self.waiting.len() >= room && !self.waiting.contains_key(&place) {
                        place.2 = 0;
                    }
                    self.waiting.entry(place).or_default()[reason.0] += reason.1;
                });
            }
        }
        self.runs.retain(|run| run.from < run.end);
    }

    /// How many places have samples.
    pub fn places(&self) -> usize {
        self.waiting.len()
    }

    /// The next place with its samples, and its function.
    pub fn next(&mut self) -> Option<(Place, Counts)> {
        self.waiting.pop_first()
    }

    /// The function of a place.
    pub fn function(&self, place: &Place) -> &Function {
        &self.functions[place.0]
    }
}

impl Function {
    /// Hands out `count` samples: offset, place in [`REASONS`] and how many.
    fn sample(&mut self, count: u64, mut give: impl FnMut(u64, (usize, u32))) {
        let places = pc_script::get().pcs.min(self.instructions);
        // The first place comes as often as there are places, the last one once.
        let round = places * (places + 1) / 2 * MIX.len() as u64;
        let step = (round * 5 / 8..round)
            .find(|step| gcd(*step, round) == 1)
            .unwrap_or(1);
        let (whole, rest) = (count / round, count % round);
        let from = self.turn % round;
        self.turn = (from + rest) % round;
        for turn in 0..round {
            let extra = u64::from((turn + round - from) % round < rest);
            let samples = (whole + extra) as u32;
            if samples == 0 {
                continue;
            }
            let slot = turn * step % round;
            let reason = MIX[(slot % MIX.len() as u64) as usize];
            let place = place_of(slot / MIX.len() as u64, places);
            let place = (place + pc_script::get().hot) % places;
            let offset = place * self.instructions / places * INSTRUCTION_BYTES;
            let at = REASONS.iter().position(|other| *other == reason);
            let at = at.expect("the mix is of these reasons");
            give(offset, (at, samples));
            if reason.is_part() {
                give(offset, (at - 1, samples));
            }
        }
    }
}

/// The name that records of a function have. Measured: records of later calls have the same one, so a client
/// must not free it, though it is said to; this one's address is not the allocation's, which `free` refuses.
fn own_name(name: *const c_char) -> *const c_char {
    // SAFETY: a string of the driver's.
    let name = unsafe { CStr::from_ptr(name) };
    let mut bytes = vec![0; 8];
    bytes.extend(name.to_bytes_with_nul());
    bytes.leak()[8..].as_ptr().cast()
}

/// Which of `places` a turn falls to when the n-th from the end has n turns.
fn place_of(mut turn: u64, places: u64) -> u64 {
    let mut place = 0;
    while turn >= places - place {
        turn -= places - place;
        place += 1;
    }
    place
}

fn gcd(a: u64, b: u64) -> u64 {
    if b == 0 { a } else { gcd(b, a % b) }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn run(start: u64, end: u64) -> KernelRun {
        KernelRun {
            name: c"k".as_ptr(),
            start,
            end,
            device: 0,
            context_id: 1,
            stream_id: 7,
            grid: [1; 3],
            block: [32, 1, 1],
            shared: 0,
            launch_type: 0,
            graph_id: 0,
            graph_node_id: 0,
            grid_id: 1,
            cubin: std::ptr::null(),
            cubin_size: 0,
            code_size: 1024,
            symbol: 3,
        }
    }

    /// Samples that are no part of others, and those that are.
    fn sums(samples: &mut Samples) -> (u32, u32) {
        let mut sums = (0, 0);
        while let Some((place, counts)) = samples.next() {
            assert!(place.1 < 1024 && place.1.is_multiple_of(16), "{place:?}");
            for (reason, count) in REASONS.iter().zip(counts) {
                *(if reason.is_part() {
                    &mut sums.1
                } else {
                    &mut sums.0
                }) += count;
            }
        }
        sums
    }

    #[test]
    fn a_millisecond_gives_a_hundred_samples() {
        let mut samples = Samples::default();
        for at in 0..1000 {
            samples.add(&run(at * 10_000, at * 10_000 + 1000), 0, 1);
        }
        samples.pass(u64::MAX, 20, true, 16);
        assert_eq!((samples.places(), samples.runs.len()), (8, 0));
        assert_eq!(sums(&mut samples), (100, 40));
        samples.add(&run(0, 3_000_000), 0, 1);
        samples.pass(1_000_000, 21, true, 16);
        assert_eq!(sums(&mut samples).0, 50);
        samples.pass(3_000_000, 21, false, 16);
        assert_eq!(samples.places(), 0);
    }

    #[test]
    fn launches_are_told_apart_if_wanted() {
        let mut samples = Samples::default();
        samples.add(&run(0, 1_000_000), 5, 1);
        samples.add(&run(1_000_000, 2_000_000), 6, 1);
        samples.pass(u64::MAX, 20, true, 16);
        let of = |id| samples.waiting.keys().filter(|place| place.2 == id).count();
        assert_eq!((of(5), of(6)), (8, 8));
        samples.add(&run(2_000_000, 3_000_000), 7, 1);
        samples.pass(u64::MAX, 20, true, 16);
        let of = |id| samples.waiting.keys().filter(|place| place.2 == id).count();
        assert_eq!((of(5), of(6), of(7), of(0)), (8, 8, 0, 8));
    }

    #[test]
    fn the_first_places_come_most() {
        let turns: Vec<_> = (0..10).map(|turn| place_of(turn, 4)).collect();
        assert_eq!(turns, [0, 0, 0, 0, 1, 1, 1, 2, 2, 3]);
    }
}
