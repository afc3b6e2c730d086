//! What the tests of machine code share: NVIDIA's own compilers, and a program that loads what they made.
#![allow(dead_code, reason = "each suite uses a part")]

use std::fs::{self, File};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use parcagpu_abi::status::{Counter, State};
use parcagpu_tests::block;
use parcagpu_tests::compilers::{self, Compilers};
use parcagpu_tests::hosts::compile;
use parcagpu_tests::lab::{Lab, Mode};
use parcagpu_tests::need;
use parcagpu_tests::program::{Running, WATCHDOG};
use parcagpu_tests::trace::{Events, Trace, number};
use serde_json::Value;

const SHORT: Duration = Duration::from_secs(10);

/// A kernel's source, and where its results go.
pub struct Bench {
    folder: PathBuf,
    source: String,
    pub tools: &'static Compilers,
}

impl Bench {
    pub fn new(lab: &Lab, tools: &'static Compilers) -> Self {
        Self::at(lab.file("images"), tools)
    }

    pub fn at(folder: PathBuf, tools: &'static Compilers) -> Self {
        fs::create_dir_all(&folder).unwrap();
        let source = parcagpu_tests::artefacts::root().join("tests/hosts/cubins/several.cu");
        Self {
            folder,
            source: source.to_str().unwrap().to_owned(),
            tools,
        }
    }

    /// Compiles to `name`.
    pub fn nvcc(&self, name: &str, options: &str) -> PathBuf {
        let mut arguments: Vec<&str> = options.split_whitespace().collect();
        arguments.extend(["-o", name, &self.source]);
        self.tools.nvcc(&self.folder, &arguments);
        self.folder.join(name)
    }

    /// The same by way of PTX and CUDA 12's assembler.
    pub fn ptxas(&self, name: &str, sm: u32, front: &str, options: &str) -> PathBuf {
        let ptx = self.nvcc(
            &format!("{name}.ptx"),
            &format!("-ptx -arch compute_{sm} {front}"),
        );
        // CUDA 12 knows this much of the language; the kernels use nothing newer.
        let text = fs::read_to_string(&ptx).unwrap();
        let newest = text.lines().find(|line| line.starts_with(".version"));
        let text = text.replacen(newest.expect("PTX says its version"), ".version 8.8", 1);
        fs::write(&ptx, text).unwrap();
        let arch = format!("-arch=sm_{sm}");
        let mut arguments = vec![arch.as_str()];
        arguments.extend(options.split_whitespace());
        let from = format!("{name}.ptx");
        arguments.extend(["-o", name, &from]);
        self.tools.ptxas(&self.folder, &arguments);
        self.folder.join(name)
    }

    /// The cubins that cuobjdump finds in a fat binary, in its order.
    pub fn taken_apart(&self, fatbin: &Path) -> Vec<Vec<u8>> {
        let stem = fatbin.file_stem().unwrap().to_str().unwrap();
        let folder = self.folder.join(format!("{stem}.parts"));
        fs::create_dir(&folder).unwrap();
        let printed = self
            .tools
            .cuobjdump(&folder, &["-xelf", "all", fatbin.to_str().unwrap()]);
        let names = printed.lines().filter_map(|line| line.rsplit(' ').next());
        names
            .map(|name| fs::read(folder.join(name)).unwrap())
            .collect()
    }
}

/// For tests that need the compilers only; `None`, told, without them.
pub fn compiled(test: &str) -> Option<(Lab, Bench)> {
    let tools = compilers::get(test)?;
    let lab = Lab::new();
    let bench = Bench::new(&lab, tools);
    Some((lab, bench))
}

/// For those that watch a program load what they made, too.
pub fn watched(test: &str) -> Option<(Lab, Bench)> {
    compiled(test).filter(|_| need::bpf(test))
}

/// A program that loads images; it stands at a gate with a consumer attached when this returns.
pub struct Loading {
    pub program: Running,
    library: PathBuf,
    trace: Trace,
    gate: usize,
}

impl Loading {
    /// `words` come after the first gate. With `hold` the program itself has CUPTI.
    pub fn start(lab: &Lab, hold: bool, sm: u32, words: &[&str]) -> Self {
        let loader = compile(lab, "cubins/loader.c", "loader", &[]);
        let first: &[&str] = if hold { &["hold"] } else { &[] };
        let mut program = lab
            .program(Mode::Preload, loader)
            .args(first)
            .args(["init", "gate"])
            .args(words)
            .env("MOCK_CUDA_SM", sm.to_string())
            .start();
        program.wait_gate(1);
        let pid = program.pid();
        let trace = Trace::attach(lab, &[pid]);
        let state = if hold { State::Yielded } else { State::Active };
        block::wait_state(pid, &lab.library(), state);
        // Where modules are seen is put in at the first look after that.
        block::wait_looks(pid, &lab.library());
        Self {
            program,
            library: lab.library(),
            trace,
            gate: 0,
        }
    }

    /// Lets the program go on to its next gate.
    pub fn go_on(&mut self) {
        self.gate += 1;
        self.program.open_gate(self.gate);
        self.program.wait_gate(self.gate + 1);
    }

    pub fn told(&self, probe: &str) -> Vec<Value> {
        let mut events = self.trace.so_far();
        events.retain(|event| event["probe"] == probe);
        events
    }

    /// Waits until so many cubins were told.
    #[track_caller]
    pub fn wait(&self, probe: &str, count: usize) -> Vec<Value> {
        let deadline = Instant::now() + WATCHDOG;
        loop {
            let told = self.told(probe);
            if told.len() >= count || Instant::now() > deadline {
                assert_eq!(told.len(), count, "{:#?}", self.trace.so_far());
                return told;
            }
            std::thread::sleep(Duration::from_millis(10));
        }
    }

    /// Bytes of the cubins that were told, read from the program's memory.
    #[track_caller]
    pub fn read(&self, told: &[Value]) -> Vec<Vec<u8>> {
        let memory = File::open(format!("/proc/{}/mem", self.program.pid())).unwrap();
        let read = told.iter().map(|event| {
            let mut bytes = vec![0; number(event, "size") as usize];
            memory
                .read_exact_at(&mut bytes, number(event, "address"))
                .expect("what was told is readable");
            let crc = u64::from(crc32fast::hash(&bytes));
            assert_eq!(number(event, "cubin_crc"), crc);
            bytes
        });
        read.collect()
    }

    pub fn counter(&self, counter: Counter) -> u64 {
        block::counter(self.program.pid(), &self.library, counter)
    }

    /// Nothing went wrong, other than that CUPTI is taken. Gives all that was told.
    #[track_caller]
    pub fn end(mut self) -> Events {
        self.gate += 1;
        self.program.open_gate(self.gate);
        self.program.wait(SHORT).ok();
        let events = self.trace.end();
        let errors = events.errors();
        assert!(errors.iter().all(|error| error.1 == "yield"), "{errors:?}");
        events
    }
}

/// In an order in which they can be compared.
pub fn sorted(mut list: Vec<Vec<u8>>) -> Vec<Vec<u8>> {
    list.sort();
    list
}
