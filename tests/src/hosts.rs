//! Programs that a suite compiles for itself, compared with and without the library.
//!
//! `PARCAGPU_TEST_LIB` and `PARCAGPU_TEST_ENGINE` name another build of the library and another
//! hook engine to run the same suite with; the default is the release build and `detour`.

use std::ffi::OsString;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use parcagpu_abi::status::State;

use crate::agent::{self, Agent, Event, Kind, Options};
use crate::artefacts;
use crate::block;
use crate::compare::{self, Run};
use crate::cut_short::{self, Error};
use crate::lab::{Lab, Mode};
use crate::mock_log::{self, Call};
use crate::program::Program;

/// On top of what a program itself takes.
const LIMIT: Duration = Duration::from_secs(20);

/// The hook engine under test.
pub fn engine() -> String {
    std::env::var("PARCAGPU_TEST_ENGINE").unwrap_or_else(|_| "detour".to_owned())
}

/// A lab with the library under test.
pub fn lab() -> Lab {
    let lab = Lab::new();
    if let Some(other) = std::env::var_os("PARCAGPU_TEST_LIB") {
        fs::copy(&other, lab.library()).unwrap_or_else(|e| panic!("{}: {e}", other.display()));
    }
    lab
}

/// Compiles a C file of `tests/hosts` into the lab.
#[track_caller]
pub fn compile(lab: &Lab, source: &str, name: &str, arguments: &[&str]) -> PathBuf {
    let result = lab.file(name);
    let output = Command::new("gcc")
        .args(["-std=gnu11", "-O1", "-g", "-Wall", "-Wextra", "-Werror"])
        .arg(artefacts::root().join("tests/hosts").join(source))
        .args(arguments)
        .args(["-ldl", "-lpthread", "-o"])
        .arg(&result)
        .output()
        .expect("gcc is there");
    assert!(
        output.status.success(),
        "gcc {source} {arguments:?}: {}",
        String::from_utf8_lossy(&output.stderr)
    );
    result
}

/// The library as the environment names it.
const LIBRARY: &str = "@library@";

/// A program and what it is run with. The same for the bare run and the one with the library, but for
/// the library.
pub struct Case<'a> {
    lab: &'a Lab,
    program: PathBuf,
    words: Vec<OsString>,
    environment: Vec<(String, OsString)>,
    only_with: Vec<(String, OsString)>,
    mode: Mode,
    driver: PathBuf,
    logged: bool,
    at_gates: Vec<AtGate<'a>>,
}

/// What happens while the program with the library, of this process id, stands at a gate.
type AtGate<'a> = Box<dyn Fn(u32) + Sync + 'a>;

/// The two runs, and what a consumer saw of the second one.
pub struct Seen {
    /// Without the library.
    pub bare: Run,
    /// With it.
    pub with: Run,
    /// Everything that was fired.
    pub events: Told,
}

impl<'a> Case<'a> {
    /// A program on the simulated driver; every launch is sampled.
    pub fn new(lab: &'a Lab, program: impl AsRef<Path>, words: &str) -> Self {
        let case = Self {
            lab,
            program: program.as_ref().to_owned(),
            words: words.split_whitespace().map(OsString::from).collect(),
            environment: Vec::new(),
            only_with: Vec::new(),
            mode: Mode::Preload,
            driver: artefacts::sim(),
            logged: true,
            at_gates: Vec::new(),
        };
        case.with("PARCAGPU_HOOK_ENGINE", engine())
            .with("PARCAGPU_RATE_LIMIT", "1e9")
            .with("PARCAGPU_GRAPH_RATE_LIMIT", "1e9")
    }

    /// One more argument, which may have spaces.
    pub fn arg(mut self, argument: &str) -> Self {
        self.words.push(argument.into());
        self
    }

    /// A variable of both runs.
    pub fn env(mut self, name: &str, value: impl Into<OsString>) -> Self {
        self.environment.push((name.to_owned(), value.into()));
        self
    }

    /// A variable of the run with the library; the last one of a name counts.
    pub fn with(mut self, name: &str, value: impl Into<OsString>) -> Self {
        self.only_with.push((name.to_owned(), value.into()));
        self
    }

    /// The variable is set to the library's path.
    pub fn with_library(self, name: &str) -> Self {
        self.with(name, LIBRARY)
    }

    /// How the library comes in.
    pub fn mode(mut self, mode: Mode) -> Self {
        self.mode = mode;
        self
    }

    /// Where the loader looks for the driver.
    pub fn driver(mut self, folder: impl Into<PathBuf>) -> Self {
        self.driver = folder.into();
        self
    }

    /// What happens at the program's next gate, if that is the run with the library; then it goes on.
    pub fn at_gate(mut self, act: impl Fn(u32) + Sync + 'a) -> Self {
        self.at_gates.push(Box::new(act));
        self
    }

    /// At the next gates the library comes back to CUPTI.
    pub fn back_at_gates(mut self, gates: usize) -> Self {
        let library = self.lab.library();
        for _ in 0..gates {
            let library = library.clone();
            self = self.at_gate(move |pid| block::wait_state(pid, &library, State::Active));
        }
        self
    }

    /// Without call log: two copies of the simulated driver cannot write one.
    pub fn unlogged(mut self) -> Self {
        self.logged = false;
        self
    }

    /// The program to be started, with a call log.
    pub fn build(&self, mode: Mode) -> Program {
        let mut program = self
            .lab
            .program(mode, &self.program)
            .args(&self.words)
            .env("LD_LIBRARY_PATH", self.search_path())
            .env("MOCK_LOG", self.log(mode));
        for (name, value) in &self.environment {
            program = program.env(name, value);
        }
        if mode != Mode::Bare || self.mode == Mode::Bare {
            for (name, value) in &self.only_with {
                let library = self.lab.library().into_os_string();
                program = program.env(name, if value == LIBRARY { &library } else { value });
            }
        }
        program
    }

    fn search_path(&self) -> OsString {
        let mut path = self.driver.clone().into_os_string();
        path.push(":");
        path.push(artefacts::sim());
        path
    }

    fn log(&self, mode: Mode) -> PathBuf {
        if !self.logged {
            return PathBuf::new();
        }
        self.lab.file(&format!("calls.{mode:?}"))
    }

    /// The bare run.
    #[track_caller]
    pub fn bare(&self) -> Run {
        self.one(Mode::Bare)
    }

    #[track_caller]
    fn one(&self, mode: Mode) -> Run {
        let _ = fs::remove_file(self.log(mode));
        let mut host = self.build(mode).start();
        for (gate, act) in (1..).zip(&self.at_gates) {
            host.wait_gate(gate);
            if mode != Mode::Bare {
                act(host.pid());
            }
            host.open_gate(gate);
        }
        let ended = host.wait(LIMIT);
        let calls = mock_log::read(&self.log(mode));
        Run { ended, calls }
    }

    /// Runs both, at once, and asserts that they are the same to everybody but the library.
    #[track_caller]
    pub fn check(&self) -> Seen {
        let (bare, seen) = self.both();
        assert_eq!(bare.ended.code(), 0, "bare: {}", bare.ended.stderr);
        seen.same(bare)
    }

    /// The bare run, and the one with the library under a consumer: most programs here wait most of the time.
    #[track_caller]
    fn both(&self) -> (Run, Unjudged) {
        std::thread::scope(|scope| {
            let bare = scope.spawn(|| self.one(Mode::Bare));
            let seen = self.consumed();
            (
                bare.join().unwrap_or_else(|p| std::panic::resume_unwind(p)),
                seen,
            )
        })
    }

    #[track_caller]
    fn consumed(&self) -> Unjudged {
        let consumer = Consumer::new(self.lab);
        let with = self.one(self.mode);
        Unjudged {
            with,
            events: consumer.end(),
        }
    }

    /// The same with any exit status.
    #[track_caller]
    pub fn check_against(&self, bare: Run) -> Seen {
        self.consumed().same(bare)
    }
}

/// A run with the library that was not compared yet.
struct Unjudged {
    with: Run,
    events: Told,
}

impl Unjudged {
    #[track_caller]
    fn same(self, bare: Run) -> Seen {
        let Self { with, events } = self;
        compare::same(&bare, &with);
        cut_short::check(&with.ended, events.cut_short());
        same_cupti(&bare.calls, &with.calls);
        Seen { bare, with, events }
    }
}

/// A consumer of every process that has this lab's library, and of no other.
pub struct Consumer {
    agent: Agent,
}

/// What a consumer was told.
pub struct Told {
    events: Vec<Event>,
}

impl Consumer {
    /// Attaches, as Parca's agent does.
    #[track_caller]
    pub fn new(lab: &Lab) -> Self {
        let agent = Agent::parca(&lab.library(), -1, Options::default());
        Self {
            agent: agent.unwrap_or_else(|e| panic!("{e:#}")),
        }
    }

    /// Reads what came; to be called now and then while a program runs for long.
    pub fn poll(&self) {
        self.agent.poll(Duration::from_millis(20));
    }

    /// What was told so far.
    pub fn so_far(&self) -> Told {
        Told {
            events: self.agent.events(),
        }
    }

    /// Waits until an error was told: whoever comes late is told it within ten seconds.
    #[track_caller]
    pub fn wait_error(&self) {
        let enough = |events: &[Event]| events.iter().any(|e| e.kind == Kind::Error);
        assert!(self.agent.poll_until(enough), "no error was told");
    }

    /// Leaves.
    #[track_caller]
    pub fn end(mut self) -> Told {
        self.agent.detach();
        let told = self.so_far();
        assert_eq!(self.agent.losses().dropped, 0, "the ring was too small");
        told
    }
}

impl Told {
    fn ids(&self, kind: Kind) -> Vec<u64> {
        let events = self.events.iter().filter(|e| e.kind == kind);
        events.map(|e| u64::from(e.id)).collect()
    }

    /// Ids announced by `cuda_correlation`.
    pub fn launches(&self) -> Vec<u64> {
        self.ids(Kind::Correlation)
    }

    /// Ids of kernel records.
    pub fn records(&self) -> Vec<u64> {
        self.ids(Kind::Record)
    }

    /// Callback ids of launches, by launch.
    pub fn callbacks(&self) -> Vec<i32> {
        let launches = self.events.iter().filter(|e| e.kind == Kind::Correlation);
        launches.map(|e| e.code).collect()
    }

    /// Distinct errors, in their order. Not that an end was cut short.
    pub fn errors(&self) -> Vec<Error> {
        cut_short::without(self.all_errors())
    }

    /// Whether a program said that its end came before everything was delivered.
    pub fn cut_short(&self) -> bool {
        cut_short::is_among(&self.all_errors())
    }

    fn all_errors(&self) -> Vec<Error> {
        agent::errors(&self.events)
    }
}

impl Seen {
    /// How often the library subscribed, beyond what the program did.
    pub fn subscriptions(&self) -> usize {
        let good = |calls: &[Call]| {
            let names = ["cuptiSubscribe", "cuptiSubscribe_v2"];
            let good = |c: &&Call| names.contains(&c.name.as_str()) && c.result == 0;
            calls.iter().filter(good).count()
        };
        good(&self.with.calls) - good(&self.bare.calls)
    }

    /// Asserts that exactly so many launches were announced, each once and each with its kernel, unless that was still
    /// to come when the end was cut short.
    #[track_caller]
    pub fn launches(&self, count: usize) -> &Self {
        let (mut launches, mut records) = (self.events.launches(), self.events.records());
        let cut_short = self.events.cut_short();
        let why = || {
            let errors = self.events.all_errors();
            format!("{errors:?}; {}", self.with.ended.stderr)
        };
        assert_eq!(launches.len(), count, "launches announced; {}", why());
        launches.sort_unstable();
        let twice = launches.windows(2).any(|pair| pair[0] == pair[1]);
        assert!(!twice, "an id twice; {}", why());
        records.sort_unstable();
        records.dedup();
        if cut_short {
            launches.retain(|id| records.binary_search(id).is_ok());
        }
        assert_eq!(launches, records, "launches and their kernels; {}", why());
        self
    }

    /// Asserts that nothing was reported as wrong.
    #[track_caller]
    pub fn no_errors(&self) -> &Self {
        assert_eq!(self.events.errors(), []);
        self
    }

    /// Asserts that one error was told whose message has this text, and gives it.
    #[track_caller]
    pub fn one_error(&self, text: &str) -> Error {
        one_error(&self.events, text)
    }
}

/// The one error event whose message contains a text.
#[track_caller]
pub fn one_error(events: &Told, text: &str) -> Error {
    let errors = events.errors();
    let fitting: Vec<_> = errors.iter().filter(|e| e.2.contains(text)).collect();
    assert_eq!(fitting.len(), 1, "errors with {text:?}: {errors:?}");
    fitting[0].clone()
}

/// Asserts that each of the program's own CUPTI calls is there with its result and in its order;
/// calls of ours may be in between.
#[track_caller]
fn same_cupti(bare: &[Call], with: &[Call]) {
    let lines = |calls: &[Call]| -> Vec<String> {
        let first = calls.iter().find(|c| !c.is_cupti()).map(|c| c.tid);
        let own = calls
            .iter()
            .filter(|c| c.is_cupti() && Some(c.tid) == first);
        own.map(|c| format!("{} {} = {}", c.name, c.arguments, c.result))
            .collect()
    };
    let with = lines(with);
    let mut rest = with.iter();
    for call in lines(bare) {
        assert!(
            rest.any(|other| *other == call),
            "the program's {call} is not in its place among {with:#?}"
        );
    }
}
