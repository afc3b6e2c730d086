//! What all outputs ask of a recording: names to show, the one rule for GPU time, and how much was seen.
//!
//! Indices are not trusted: a recording that names what is not there gets `(unknown)`, never a panic.

use std::borrow::Cow;
use std::collections::{HashMap, HashSet};

use crate::demangle::{clean, demangle, plays_tricks};
use crate::recording::model::{Frame, Kernel, Launch, NameId, Process, Recording};
use crate::text::{count, plural};

/// Shown for what a recording does not say.
pub const UNKNOWN: &str = "(unknown)";
/// Frame above kernels whose launch or stack is not known.
pub const NO_STACK: &str = "(stack not known)";

/// Frames named by [`View::callers`].
const CALLERS_MAX: usize = 3;

/// A recording and its names, ready to be shown.
#[derive(Debug)]
pub struct View<'a> {
    /// What it shows.
    pub rec: &'a Recording,
    shown: Vec<Cow<'a, str>>,
    /// Devices that a process used in more than one context.
    contexts: HashSet<(u32, u32)>,
    /// How much was seen and lost.
    pub coverage: Coverage,
}

/// GPU time of a kernel, ns; `None` if its record has no usable times.
///
/// The only rule for time: every output adds up what this gives.
pub fn gpu_ns(kernel: &Kernel) -> Option<u64> {
    (kernel.start_ns != 0)
        .then(|| kernel.end_ns.checked_sub(kernel.start_ns))
        .flatten()
}

impl<'a> View<'a> {
    /// Demangles every name once.
    pub fn new(rec: &'a Recording) -> Self {
        let shown = rec.names.iter().map(|name| shown(name)).collect();
        let mut first = HashMap::new();
        let mut contexts = HashSet::new();
        for kernel in &rec.kernels {
            let device = (kernel.process, kernel.device);
            if *first.entry(device).or_insert(kernel.context) != kernel.context {
                contexts.insert(device);
            }
        }
        Self {
            rec,
            shown,
            contexts,
            coverage: Coverage::of(rec),
        }
    }

    /// A name, demangled, without control characters; empty if it is empty.
    pub fn name(&self, id: NameId) -> &str {
        self.shown.get(id as usize).map_or(UNKNOWN, |name| name)
    }

    /// The same for a kernel or function: never empty.
    pub fn kernel_name(&self, id: NameId) -> &str {
        match self.name(id) {
            "" => "(no name)",
            name => name,
        }
    }

    /// Kernels that have times, with their GPU time.
    pub fn timed(&self) -> impl Iterator<Item = (&'a Kernel, u64)> + use<'a> {
        self.rec
            .kernels
            .iter()
            .filter_map(|k| gpu_ns(k).map(|ns| (k, ns)))
    }

    /// The launch of a kernel, where its announcement came through.
    pub fn launch(&self, kernel: &Kernel) -> Option<&'a Launch> {
        self.rec.launches.get(kernel.launch? as usize)
    }

    /// Frames of a stack, leaf first; empty if unknown.
    pub fn stack(&self, stack: u32) -> impl DoubleEndedIterator<Item = &'a Frame> + use<'a> {
        let rec = self.rec;
        let frames = rec.stacks.get(stack as usize).map_or(&[][..], |s| s);
        frames.iter().filter_map(|f| rec.frames.get(*f as usize))
    }

    /// `comm (pid)`
    pub fn process_name(&self, index: u32) -> String {
        match self.rec.processes.get(index as usize) {
            Some(p) if p.comm.is_empty() => format!("process {}", p.pid),
            Some(p) => format!("{} ({})", clean(&p.comm), p.pid),
            None => UNKNOWN.to_owned(),
        }
    }

    /// `GPU 0`, its name and UUID as far as known.
    pub fn device(&self, process: u32, ordinal: u32) -> String {
        let process = self.rec.processes.get(process as usize);
        let known = process.and_then(|p| p.devices.get(&ordinal));
        let words = known.map_or([""; 2], |d| [&d.name, &d.uuid]);
        let mut text = format!("GPU {ordinal}");
        for word in words.iter().filter(|w| !w.is_empty()) {
            text = text + " " + &clean(word);
        }
        text
    }

    /// `GPU 0 stream 7`, its name if it has one, its context where the process has more than one on the device.
    pub fn stream(&self, process: u32, device: u32, context: u32, stream: u32) -> String {
        let known = self.rec.processes.get(process as usize);
        let context = if self.contexts.contains(&(process, device)) {
            format!(" context {context}")
        } else {
            String::new()
        };
        let name = match known.and_then(|p| p.streams.get(&stream)) {
            Some(name) => format!(" {}", clean(name)),
            None => String::new(),
        };
        format!("GPU {device}{context} stream {stream}{name}")
    }

    /// Process number; 0 if unknown.
    pub fn pid(&self, index: u32) -> u32 {
        self.rec.processes.get(index as usize).map_or(0, |p| p.pid)
    }

    /// `function (file:line)`, as much of it as is known.
    pub fn frame(&self, frame: &Frame) -> String {
        let function = self.kernel_name(frame.function);
        match (self.name(frame.file), frame.line) {
            ("", _) => function.to_owned(),
            (file, 0) => format!("{function} ({})", base(file)),
            (file, line) => format!("{function} ({}:{line})", base(file)),
        }
    }

    /// The frame that a person would call the launching one: the innermost Python frame outside installed
    /// packages, else the innermost Python frame, else the innermost frame outside CUDA's libraries and ours.
    pub fn caller(&self, stack: u32) -> Option<&'a Frame> {
        self.stack(stack).nth(self.caller_depth(stack))
    }

    /// [`View::caller`] in words, and up to two frames that called it, of its own kind: `f (a.py:3) < main (a.py:9)`.
    pub fn callers(&self, stack: u32) -> Option<String> {
        let caller = self.caller(stack)?;
        let python = self.is_python(caller);
        let start = |f: &Frame| {
            let name = self.name(f.function);
            matches!(name, "_start" | "start_thread" | "clone" | "clone3")
                || name.starts_with("__libc_start")
        };
        let words: Vec<String> = self
            .stack(stack)
            .skip(self.caller_depth(stack))
            .filter(|f| self.is_python(f) == python && !start(f))
            .take(CALLERS_MAX)
            .map(|f| self.frame(f))
            .collect();
        Some(words.join(" < "))
    }

    fn caller_depth(&self, stack: u32) -> usize {
        let at = |wanted: &dyn Fn(&Frame) -> bool| self.stack(stack).position(wanted);
        at(&|f| self.is_python(f) && !self.is_installed(f))
            .or_else(|| at(&|f| self.is_python(f)))
            .or_else(|| at(&|f| !self.is_cuda(f)))
            .unwrap_or(0)
    }

    fn is_python(&self, frame: &Frame) -> bool {
        frame.module == 0 && self.name(frame.file).ends_with(".py")
    }

    fn is_installed(&self, frame: &Frame) -> bool {
        let file = self.name(frame.file);
        ["/site-packages/", "/dist-packages/", "/lib/python3"]
            .iter()
            .any(|folder| file.contains(folder))
    }

    fn is_cuda(&self, frame: &Frame) -> bool {
        let module = base(self.name(frame.module));
        let function = self.name(frame.function);
        ["libcuda", "libcupti", "libparcagpu", "libnvrtc"]
            .iter()
            .any(|lib| module.starts_with(lib))
            // The runtime linked statically, whose internal functions have names without meaning.
            || ["__device_stub__", "cudaLaunch", "cudaGraphLaunch", "libcudart_static_"]
                .iter()
                .any(|start| function.starts_with(start))
    }

    /// Sentences that belong on top of every picture; the first says what share was sampled.
    pub fn notes(&self) -> Vec<String> {
        self.coverage.notes(self)
    }
}

/// Demangled and without control characters; borrowed where that changes nothing.
fn shown(name: &str) -> Cow<'_, str> {
    if name.starts_with("_Z") || name.starts_with("_R") {
        Cow::Owned(demangle(name.as_bytes(), false))
    } else if name.chars().any(plays_tricks) {
        Cow::Owned(clean(name))
    } else {
        Cow::Borrowed(name)
    }
}

/// Last part of a path.
pub fn base(path: &str) -> &str {
    path.rsplit('/').next().unwrap_or(path)
}

/// What share of the launches, kernels and events a recording has.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Coverage {
    /// Launches sampled.
    pub sampled: u64,
    /// Launches that the processes made; `None`: at least one process did not say.
    pub seen: Option<u64>,
    /// Nothing is missing: sums are totals.
    pub whole: bool,
    /// Kernel records, with and without times.
    pub kernels: u64,
    /// Kernel records without usable times: counted, never time.
    pub no_time: u64,
    /// Kernel records whose launch was not announced.
    pub no_launch: u64,
    /// Sampled launches without a kernel record.
    pub no_kernel: u64,
    /// (what, how many), over all processes.
    pub losses: Vec<(String, u64)>,
}

impl Coverage {
    fn of(rec: &Recording) -> Self {
        // Each process repeats what was lost on the way to us and belongs to none alone.
        let own = rec
            .processes
            .iter()
            .flat_map(|p| &p.losses)
            .filter(|loss| !rec.losses.contains(loss));
        let mut losses: Vec<(String, u64)> = Vec::new();
        for (what, n) in rec.losses.iter().chain(own) {
            match losses.iter_mut().find(|(known, _)| known == what) {
                Some((_, sum)) => *sum = sum.saturating_add(*n),
                None => losses.push((what.clone(), *n)),
            }
        }
        let seen = |p: &Process| p.launches_seen.map(|n| n.max(p.launches_sampled));
        let with_kernel: HashSet<u32> = rec.kernels.iter().filter_map(|k| k.launch).collect();
        let add = |sum: u64, n: u64| sum.saturating_add(n);
        let no_time = rec.kernels.iter().filter(|k| gpu_ns(k).is_none()).count() as u64;
        let no_launch = rec.kernels.iter().filter(|k| k.launch.is_none()).count() as u64;
        Self {
            sampled: rec
                .processes
                .iter()
                .map(|p| p.launches_sampled)
                .fold(0, add),
            seen: rec
                .processes
                .iter()
                .try_fold(0, |sum, p| seen(p).map(|n| add(sum, n))),
            whole: !rec.truncated
                && rec.damage.is_none()
                && losses.is_empty()
                && no_time == 0
                && rec.processes.iter().all(Process::is_whole),
            kernels: rec.kernels.len() as u64,
            no_time,
            no_launch,
            no_kernel: rec.launches.len().saturating_sub(with_kernel.len()) as u64,
            losses,
        }
    }

    /// `all 1,000 launches`, `400 of 8,000 launches (5.0 %)`, `400 launches, of how many is not known`
    pub fn share(&self) -> String {
        share(self.sampled, self.seen)
    }

    /// What sums over the recording are, in one sentence.
    pub fn sentence(&self) -> String {
        let share = self.share();
        if self.seen != Some(self.sampled) {
            let lost = if self.losses.is_empty() {
                ""
            } else {
                ", of which some was lost"
            };
            format!("sampled: {share}; sums are of the sample{lost}")
        } else if self.whole {
            format!("sampled: {share}")
        } else {
            format!("sampled: {share}, but some is missing; sums are lower bounds")
        }
    }

    fn notes(&self, view: &View<'_>) -> Vec<String> {
        let rec = view.rec;
        let mut notes = vec![self.sentence()];
        if rec.processes.len() > 1 {
            for (i, p) in (0..).zip(&rec.processes) {
                if !p.is_whole() && notes.len() <= 20 {
                    let share = share(p.launches_sampled, p.launches_seen);
                    notes.push(format!("{}: {share}", view.process_name(i)));
                }
            }
        }
        match &rec.damage {
            Some(damage) => notes.push(format!(
                "the file is damaged, what followed was lost: {}",
                clean(damage)
            )),
            None if rec.truncated => {
                notes.push("the file ends in the middle: what followed was lost".to_owned());
            }
            None => {}
        }
        for (what, n) in &self.losses {
            notes.push(format!("lost: {} {}", count(*n), clean(what)));
        }
        if self.no_time > 0 {
            notes.push(format!(
                "{} without times: counted, but no GPU time",
                plural(self.no_time, "kernel record")
            ));
        }
        if self.no_launch > 0 {
            notes.push(format!(
                "{} without an announced launch: no stack, no thread",
                plural(self.no_launch, "kernel record")
            ));
        }
        if self.no_kernel > 0 {
            notes.push(format!(
                "{} without a kernel record",
                plural(self.no_kernel, "sampled launch")
            ));
        }
        notes
    }
}

/// See [`Coverage::share`].
pub fn share(sampled: u64, seen: Option<u64>) -> String {
    let launches = |n: u64| plural(n, "launch");
    match seen {
        None => format!("{}, of how many is not known", launches(sampled)),
        Some(seen) if seen > sampled => format!(
            "{} of {} ({})",
            count(sampled),
            launches(seen),
            percent(u128::from(sampled), u128::from(seen))
        ),
        Some(_) => format!("all {}", launches(sampled)),
    }
}

/// `12.3 %`, `< 0.1 %` for what is more than nothing, `-` of nothing.
pub fn percent(part: u128, whole: u128) -> String {
    match (part.saturating_mul(1000).saturating_add(whole / 2)).checked_div(whole) {
        None => "-".to_owned(),
        Some(0) if part > 0 => "< 0.1 %".to_owned(),
        Some(n) => format!("{}.{} %", n / 10, n % 10),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_usable_times_are_time() {
        let kernel = |start_ns, end_ns| Kernel {
            start_ns,
            end_ns,
            ..Kernel::default()
        };
        assert_eq!(gpu_ns(&kernel(10, 25)), Some(15));
        assert_eq!(gpu_ns(&kernel(10, 10)), Some(0));
        assert_eq!(gpu_ns(&kernel(0, 0)), None);
        assert_eq!(gpu_ns(&kernel(0, 9)), None);
        assert_eq!(gpu_ns(&kernel(9, 8)), None);
    }

    #[test]
    fn a_sample_is_never_called_all() {
        assert_eq!(share(1, Some(1)), "all 1 launch");
        assert_eq!(share(400, Some(8000)), "400 of 8,000 launches (5.0 %)");
        assert_eq!(share(2, None), "2 launches, of how many is not known");
        assert_eq!(percent(1, 100_000), "< 0.1 %");
        assert_eq!(percent(0, 0), "-");
    }

    #[test]
    fn what_is_missing_is_said() {
        let process = |launches_seen, losses: &[(&str, u64)]| Process {
            launches_seen,
            launches_sampled: 5,
            losses: losses.iter().map(|(w, n)| ((*w).to_owned(), *n)).collect(),
            ..Process::default()
        };
        let coverage = |processes: Vec<Process>| {
            Coverage::of(&Recording {
                processes,
                ..Recording::default()
            })
        };
        assert!(coverage(vec![process(Some(5), &[])]).whole);
        let lossy = coverage(vec![
            process(Some(5), &[("x", 1)]),
            process(Some(5), &[("x", 2)]),
        ]);
        assert!(lossy.sentence().contains("lower bounds"));
        assert_eq!(lossy.losses, [("x".to_owned(), 3)]);
        let unknown = coverage(vec![process(None, &[]), process(Some(5), &[])]);
        assert!(unknown.sentence().contains("not known"));
        assert_eq!(coverage(vec![process(Some(9), &[])]).seen, Some(9));
    }

    #[test]
    fn who_launched_is_the_programs_own_code() {
        let names = [
            "",
            "cudaLaunchKernel",
            "/x/libcudart.so.13",
            "wrap",
            "main",
            "/x/app",
            "app.c",
            "_start",
            "forward",
            "/lib/python3/site-packages/t.py",
            "step",
            "/home/me/train.py",
            "<module>",
        ];
        let frame = |function, module, file, line| Frame {
            function,
            module,
            file,
            line,
        };
        let rec = Recording {
            names: names.map(str::to_owned).to_vec(),
            frames: vec![
                frame(1, 2, 0, 0),
                frame(3, 5, 6, 7),
                frame(4, 5, 6, 30),
                frame(7, 5, 0, 0),
                frame(8, 0, 9, 12),
                frame(10, 0, 11, 3),
                frame(12, 0, 11, 0),
            ],
            stacks: vec![
                vec![],
                vec![0, 1, 2, 3],
                vec![0, 4, 1, 5, 2, 6, 3],
                vec![0, 4, 3],
                vec![0],
            ],
            ..Recording::default()
        };
        let view = View::new(&rec);
        let callers = |stack| view.callers(stack).unwrap_or_default();
        assert_eq!(callers(0), "");
        assert_eq!(callers(1), "wrap (app.c:7) < main (app.c:30)");
        assert_eq!(callers(2), "step (train.py:3) < <module> (train.py)");
        assert_eq!(callers(3), "forward (t.py:12)");
        assert_eq!(callers(4), "cudaLaunchKernel");
    }

    #[test]
    fn wrong_indices_are_unknown() {
        let rec = Recording::default();
        let view = View::new(&rec);
        let kernel = Kernel {
            launch: Some(7),
            ..Kernel::default()
        };
        assert_eq!(view.name(9), UNKNOWN);
        assert_eq!(view.process_name(3), UNKNOWN);
        assert_eq!(view.launch(&kernel), None);
        assert!(view.caller(4).is_none());
    }
}
