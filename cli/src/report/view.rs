//! What all outputs ask of a recording: names to show, the one rule for GPU time, and how much was seen.
//!
//! Indices are not trusted: a recording that names what is not there gets `(unknown)`, never a panic.

use std::borrow::Cow;
use std::collections::{BTreeSet, HashMap, HashSet};

use super::coverage::Coverage;
use crate::brief::brief;
use crate::demangle::{clean, demangle, plays_tricks};
use crate::recording::model::{Frame, Kernel, Launch, NameId, Recording};
use crate::text::{date, duration, time_of_day};

/// Shown for what a recording does not say.
pub const UNKNOWN: &str = "(unknown)";
/// Frame above kernels whose launch or stack is not known.
pub const NO_STACK: &str = "(stack not known)";

/// What the compiler calls the host's side of a kernel.
const STUB: &str = "__device_stub__";

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

    /// The mangled name. Where it is the shown one, nothing: pprof would take that for a C++ name that is still
    /// to be shortened, and make nothing of `<module>`.
    pub fn system_name(&self, id: NameId) -> String {
        let raw = self.rec.names.get(id as usize);
        let raw = clean(raw.map_or("", |name| name));
        if raw == self.name(id) {
            String::new()
        } else {
            raw
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

    /// `GPU 0`, its model, name and UUID as far as known.
    pub fn device(&self, process: u32, ordinal: u32) -> String {
        let process = self.rec.processes.get(process as usize);
        let known = process.and_then(|p| p.devices.get(&ordinal));
        let words = known.map_or([""; 3], |d| [&d.model, &d.name, &d.uuid]);
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
        self.frame_named(frame, self.kernel_name(frame.function))
    }

    fn frame_named(&self, frame: &Frame, function: &str) -> String {
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

    /// [`View::caller`] in words, and up to two frames that called it, of its own kind: `f (a.py:3) < main (a.py:9)`;
    /// long names are shortened.
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
            .map(|f| self.frame_named(f, &brief(self.kernel_name(f.function))))
            .collect();
        Some(words.join(" < "))
    }

    fn caller_depth(&self, stack: u32) -> usize {
        let at = |wanted: &dyn Fn(&Frame) -> bool| self.stack(stack).position(wanted);
        at(&|f| self.is_python(f) && !self.is_installed(f))
            .or_else(|| at(&|f| self.is_python(f)))
            .or_else(|| {
                let depth = at(&|f| !self.is_cuda(f))?;
                // The compiler gives a kernel a function of its name, which calls the stub.
                let below = depth.checked_sub(1).and_then(|d| self.stack(stack).nth(d));
                let stub = below.is_some_and(|f| self.name(f.function).starts_with(STUB));
                let deeper = stub && self.stack(stack).nth(depth + 1).is_some();
                Some(depth + usize::from(deeper))
            })
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
            || [
                STUB,
                "cudaLaunch",
                "__cudaLaunch",
                "cudaGraphLaunch",
                "libcudart_static_",
            ]
            .iter()
            .any(|start| function.starts_with(start))
    }

    /// How long it took.
    pub fn length_ns(&self) -> u64 {
        let about = &self.rec.about;
        about.end_ns.saturating_sub(about.begin_ns)
    }

    /// `recorded 2026-11-30 09:14:06 +01:00 on node-7, Linux 6.18.0, by parcagpu 0.1.0`: in the time of the host that
    /// recorded, or UTC where it did not say.
    pub fn recorded(&self) -> String {
        let about = &self.rec.about;
        let offset = about.utc_offset_s.unwrap_or(0);
        let local = about
            .begin_ns
            .saturating_add_signed(i64::from(offset) * 1_000_000_000);
        let zone = match about.utc_offset_s {
            None => "UTC".to_owned(),
            Some(_) => {
                let (sign, minutes) = (if offset < 0 { '-' } else { '+' }, offset.abs() / 60);
                format!("{sign}{:02}:{:02}", minutes / 60, minutes % 60)
            }
        };
        // To the second.
        let mut text = format!("recorded {} {:.8} {zone}", date(local), time_of_day(local));
        let words = [
            (" on ", &about.host),
            (", Linux ", &about.kernel_release),
            (", by parcagpu ", &about.version),
        ];
        for (before, word) in words.iter().filter(|(_, word)| !word.is_empty()) {
            text = text + before + &clean(word);
        }
        text
    }

    /// Devices that the processes used, each once.
    pub fn devices(&self) -> Vec<String> {
        let mut devices = BTreeSet::new();
        for (i, process) in (0..).zip(&self.rec.processes) {
            devices.extend(process.devices.keys().map(|d| self.device(i, *d)));
        }
        devices.into_iter().collect()
    }

    /// What the recording is of: `recording of ./app, 1.29 s`.
    pub fn title(&self) -> String {
        let of = match clean(&self.rec.about.command).as_str() {
            "" => String::new(),
            command => format!(" of {command}"),
        };
        format!("recording{of}, {}", duration(self.length_ns().into()))
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
            "__device_stub__Z1kv()",
            "k()",
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
                frame(13, 5, 0, 0),
                frame(14, 5, 0, 0),
            ],
            stacks: vec![
                vec![],
                vec![0, 1, 2, 3],
                vec![0, 4, 1, 5, 2, 6, 3],
                vec![0, 4, 3],
                vec![0],
                vec![0, 7, 8, 2],
                vec![0, 7, 8],
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
        assert_eq!(callers(5), "main (app.c:30)");
        assert_eq!(callers(6), "k()");
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

    #[test]
    fn when_and_where_is_told_in_the_hosts_time() {
        let mut rec = Recording::default();
        rec.about.begin_ns = 1_796_083_199_500_000_000;
        assert_eq!(
            View::new(&rec).recorded(),
            "recorded 2026-11-30 23:59:59 UTC"
        );
        rec.about.host = "node-7".to_owned();
        rec.about.kernel_release = "6.18.0".to_owned();
        for (offset, time) in [
            (3600, "2026-12-01 00:59:59 +01:00"),
            (-12_600, "2026-11-30 20:29:59 -03:30"),
        ] {
            rec.about.utc_offset_s = Some(offset);
            let wanted = format!("recorded {time} on node-7, Linux 6.18.0");
            assert_eq!(View::new(&rec).recorded(), wanted);
        }
    }
}
