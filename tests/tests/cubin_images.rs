//! Machine code of NVIDIA's own compilers, from CUDA 12 and 13 and for five architectures: what it is, how long it
//! is, which part of a fat binary a GPU runs, and whether a consumer gets the very bytes.
//!
//! Sizes and entries are compared with the files themselves and with cuobjdump. What is loaded runs on the
//! simulated driver.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::OnceLock;
use std::time::{Duration, Instant};

use parcagpu::cubin::fatbin::{self, Entry};
use parcagpu::cubin::image::{self, Kind};
use parcagpu_abi::status::{Counter, State};
use parcagpu_tests::block;
use parcagpu_tests::compilers::{self, Compilers};
use parcagpu_tests::hosts::compile;
use parcagpu_tests::lab::{Lab, Mode};
use parcagpu_tests::need;
use parcagpu_tests::program::{Running, WATCHDOG};
use parcagpu_tests::trace::{Events, Trace, number};

const SHORT: Duration = Duration::from_secs(10);
/// Turing, Ampere, Hopper and both lines of Blackwell.
const ARCHITECTURES: [u32; 5] = [75, 80, 90, 100, 120];

/// A kernel's source, and where its results go.
struct Bench {
    folder: PathBuf,
    source: String,
    tools: &'static Compilers,
}

impl Bench {
    fn new(lab: &Lab, tools: &'static Compilers) -> Self {
        Self::at(lab.file("images"), tools)
    }

    fn at(folder: PathBuf, tools: &'static Compilers) -> Self {
        fs::create_dir_all(&folder).unwrap();
        let source = parcagpu_tests::artefacts::root().join("tests/hosts/cubins/several.cu");
        Self {
            folder,
            source: source.to_str().unwrap().to_owned(),
            tools,
        }
    }

    /// Compiles to `name`.
    fn nvcc(&self, name: &str, options: &str) -> PathBuf {
        let mut arguments: Vec<&str> = options.split_whitespace().collect();
        arguments.extend(["-o", name, &self.source]);
        self.tools.nvcc(&self.folder, &arguments);
        self.folder.join(name)
    }

    /// The same by way of PTX and CUDA 12's assembler.
    fn ptxas(&self, name: &str, sm: u32, front: &str, options: &str) -> PathBuf {
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
    fn taken_apart(&self, fatbin: &Path) -> Vec<Vec<u8>> {
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
fn compiled(test: &str) -> Option<(Lab, Bench)> {
    let tools = compilers::get(test)?;
    let lab = Lab::new();
    let bench = Bench::new(&lab, tools);
    Some((lab, bench))
}

/// For those that watch a program load what they made, too.
fn watched(test: &str) -> Option<(Lab, Bench)> {
    compiled(test).filter(|_| need::bpf(test))
}

/// Cubins of both compilers for every architecture: plain, with lines, with debug information. Made once, for all
/// tests of this process.
fn cubins(tools: &'static Compilers) -> &'static [PathBuf] {
    static MADE: OnceLock<Vec<PathBuf>> = OnceLock::new();
    MADE.get_or_init(|| {
        let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join("cubins");
        let bench = Bench::at(folder, tools);
        let mut cubins = Vec::new();
        for sm in ARCHITECTURES {
            for (kind, options) in [("plain", ""), ("lines", "-lineinfo"), ("debug", "-G")] {
                let options = format!("-cubin -arch sm_{sm} {options}");
                cubins.push(bench.nvcc(&format!("13-{sm}-{kind}.cubin"), &options));
            }
            let lines = format!("12-{sm}-lines.cubin");
            cubins.push(bench.ptxas(&lines, sm, "-lineinfo", "-lineinfo"));
            let debug = format!("12-{sm}-debug.cubin");
            cubins.push(bench.ptxas(&debug, sm, "-G", "-g"));
        }
        cubins
    })
}

/// Code for `-gencode`: as many cubins as the test wants, and PTX of the newest.
fn targets(list: &[&str]) -> String {
    let each = list.iter().map(|sm| match sm.strip_prefix("ptx_") {
        Some(ptx) => format!("-gencode arch=compute_{ptx},code=compute_{ptx}"),
        None => format!("-gencode arch=compute_{sm},code=sm_{sm}"),
    });
    each.collect::<Vec<_>>().join(" ")
}

fn entries(fatbin: &Path) -> (Vec<u8>, Vec<Entry>) {
    let bytes = fs::read(fatbin).unwrap();
    assert_eq!(image::kind(&bytes[..]).unwrap(), Kind::Fatbin);
    assert_eq!(fatbin::len(&bytes[..]).unwrap(), bytes.len() as u64);
    let entries = fatbin::entries(&bytes[..]).unwrap();
    (bytes, entries)
}

/// The length of a cubin by its headers is that of the file, whatever lies behind it.
#[test]
fn cubins_are_as_long_as_their_files() {
    let Some((_lab, bench)) = compiled("cubins_are_as_long_as_their_files") else {
        return;
    };
    let cubins = cubins(bench.tools);
    assert_eq!(cubins.len(), 25);
    let mut versions: BTreeMap<u8, usize> = BTreeMap::new();
    for cubin in cubins {
        let mut bytes = fs::read(cubin).unwrap();
        let len = bytes.len() as u64;
        *versions.entry(bytes[7]).or_default() += 1;
        bytes.extend([0x7f; 4096]);
        assert_eq!(image::kind(&bytes[..]).unwrap(), Kind::Elf);
        let shown = cubin.display();
        assert_eq!(image::cubin_len(&bytes[..]).unwrap(), len, "{shown}");
        assert!(image::is_linked(&bytes[..]).unwrap(), "{shown}");
    }
    // OSABI: CUDA 12 keeps the older one for what is before Blackwell.
    assert_eq!(versions, BTreeMap::from([(0x33, 6), (0x41, 19)]));
    let relocatable = bench.nvcc("part.cubin", "-dc -cubin -arch sm_90");
    let bytes = fs::read(relocatable).unwrap();
    assert_eq!(image::cubin_len(&bytes[..]).unwrap(), bytes.len() as u64);
    assert!(!image::is_linked(&bytes[..]).unwrap());
}

/// Entries are those that cuobjdump finds; what is packed is known to be.
#[test]
fn entries_are_those_that_cuobjdump_finds() {
    let Some((_lab, bench)) = compiled("entries_are_those_that_cuobjdump_finds") else {
        return;
    };
    let code = targets(&["75", "80", "90", "90a", "100f", "103", "120", "ptx_120"]);
    let kinds = [
        // By itself nvcc packs PTX and code with debug information, by Zstandard; for speed by LZ4.
        ("default", "", false),
        ("unpacked", "-no-compress", false),
        ("debug", "-G", true),
        ("speed", "-compress-mode=speed -Xfatbin -compress-all", true),
        ("size", "-compress-mode=size", true),
        ("linked", "-dc", false),
    ];
    for (kind, options, packed) in kinds {
        let file = bench.nvcc(
            &format!("{kind}.fatbin"),
            &format!("-fatbin {code} {options}"),
        );
        let (bytes, entries) = entries(&file);
        let sms: Vec<u32> = entries.iter().map(|entry| entry.sm).collect();
        assert_eq!(sms, [75, 80, 90, 90, 100, 103, 120], "{kind}");
        let own: Vec<bool> = entries.iter().map(|e| e.one_architecture).collect();
        assert_eq!(own, [false, false, false, true, false, false, false]);
        let parts = bench.taken_apart(&file);
        assert_eq!(parts.len(), entries.len());
        for (entry, part) in entries.iter().zip(&parts) {
            let Some(cubin) = entry.cubin else {
                assert!(packed || kind == "linked", "{kind}: {entry:?}");
                continue;
            };
            let at = cubin.offset as usize;
            assert!(!packed && kind != "linked", "{kind}: {entry:?}");
            assert_eq!(bytes[at..at + cubin.len as usize], part[..], "{kind}");
        }
    }
}

/// Which code a GPU runs, by NVIDIA's rules of binary compatibility.
#[test]
fn the_gpu_gets_its_code() {
    let Some((_lab, bench)) = compiled("the_gpu_gets_its_code") else {
        return;
    };
    let code = targets(&["75", "80", "86", "87", "90a", "100f", "103a", "120"]);
    let (_, all) = entries(&bench.nvcc("all.fatbin", &format!("-fatbin {code}")));
    let expected = [
        (70, None),
        (75, Some(0)),
        (80, Some(1)),
        (86, Some(2)),
        (87, Some(3)),
        (89, Some(2)),
        (90, Some(4)),
        (100, Some(5)),
        (103, Some(6)),
        (110, None),
        (120, Some(7)),
        (121, Some(7)),
    ];
    for (gpu, index) in expected {
        let index: Option<usize> = index;
        let wanted = index.map(|i| all[i].cubin.expect("nothing is packed"));
        assert_eq!(fatbin::chosen(&all, gpu), wanted, "sm_{gpu}");
    }
    let code = targets(&["90", "90a"]);
    let (_, both) = entries(&bench.nvcc("both.fatbin", &format!("-fatbin {code}")));
    let own = both.iter().find(|entry| entry.one_architecture);
    let own = own.expect("code for sm_90a").cubin;
    assert!(own.is_some() && fatbin::chosen(&both, 90) == own);
}

/// A program that loads images; it stands at a gate with a consumer attached when this returns.
struct Loading {
    program: Running,
    library: PathBuf,
    trace: Trace,
    gate: usize,
}

impl Loading {
    /// `words` come after the first gate. With `hold` the program itself has CUPTI.
    fn start(lab: &Lab, hold: bool, sm: u32, words: &[&str]) -> Self {
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
    fn go_on(&mut self) {
        self.gate += 1;
        self.program.open_gate(self.gate);
        self.program.wait_gate(self.gate + 1);
    }

    fn told(&self, probe: &str) -> Vec<serde_json::Value> {
        let mut events = self.trace.so_far();
        events.retain(|event| event["probe"] == probe);
        events
    }

    /// Waits until so many cubins were told.
    #[track_caller]
    fn wait(&self, probe: &str, count: usize) -> Vec<serde_json::Value> {
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
    fn read(&self, told: &[serde_json::Value]) -> Vec<Vec<u8>> {
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

    fn counter(&self, counter: Counter) -> u64 {
        block::counter(self.program.pid(), &self.library, counter)
    }

    /// Nothing went wrong, other than that CUPTI is taken. Gives all that was told.
    #[track_caller]
    fn end(mut self) -> Events {
        self.gate += 1;
        self.program.open_gate(self.gate);
        self.program.wait(SHORT).ok();
        let events = self.trace.end();
        let errors = events.errors();
        assert!(errors.iter().all(|error| error.1 == "yield"), "{errors:?}");
        events
    }
}

fn texts(paths: &[PathBuf]) -> Vec<&str> {
    paths.iter().map(|path| path.to_str().unwrap()).collect()
}

fn sorted(mut list: Vec<Vec<u8>>) -> Vec<Vec<u8>> {
    list.sort();
    list
}

fn read_all(paths: &[PathBuf]) -> Vec<Vec<u8>> {
    sorted(paths.iter().map(|path| fs::read(path).unwrap()).collect())
}

/// While the program itself has CUPTI: images are told from the calls that load them, by every way in, as the
/// very bytes of the files; and again when their last module goes.
#[test]
fn images_of_calls_are_told_and_read_back() {
    let Some((lab, bench)) = watched("images_of_calls_are_told_and_read_back") else {
        return;
    };
    let cubins = cubins(bench.tools);
    let files = texts(cubins);
    let ways = ["module", "data", "dataex", "library", "libraryfile"];
    let mut words = Vec::new();
    for (i, file) in files.iter().enumerate() {
        words.extend([ways[i % ways.len()], file]);
    }
    // The first one twice more, in other ways.
    words.extend(["data", files[0], "library", files[0], "gate"]);
    // Two of its three modules go, and the second cubin's.
    words.extend(["drop", "drop"]);
    words.extend(["gate", "data", files[1], "gate"]);
    words.extend(vec!["drop"; files.len() + 1]);
    words.push("gate");
    let mut loading = Loading::start(&lab, true, 90, &words);
    loading.go_on();
    let told = loading.wait("cubin_loaded", files.len());
    assert_eq!(sorted(loading.read(&told)), read_all(cubins));
    assert_eq!(loading.counter(Counter::CubinsKept), files.len() as u64);

    loading.go_on();
    let gone = loading.wait("cubin_unloaded", 1);
    let second = crc32fast::hash(&fs::read(&cubins[1]).unwrap());
    assert_eq!(number(&gone[0], "cubin_crc"), u64::from(second));
    loading.go_on();
    let told = loading.wait("cubin_loaded", files.len() + 1);
    let again = loading.read(&told[files.len()..]);
    assert_eq!(again, [fs::read(&cubins[1]).unwrap()]);

    loading.go_on();
    loading.wait("cubin_unloaded", files.len() + 1);
    assert_eq!(loading.counter(Counter::CubinsKept), 0);
    assert_eq!(loading.counter(Counter::CubinBytes), 0);
    loading.end();
}

/// Of fat binaries the entry of the GPU is told; what only the driver can unpack, compile or link is not, and no
/// other entry in its place.
#[test]
fn of_fat_binaries_the_gpus_part_is_told() {
    let Some((lab, bench)) = watched("of_fat_binaries_the_gpus_part_is_told") else {
        return;
    };
    let code = targets(&["80", "90", "120", "ptx_120"]);
    let plain = bench.nvcc("plain.fatbin", &format!("-fatbin {code}"));
    let lines = bench.nvcc("lines.fatbin", &format!("-fatbin -lineinfo {code}"));
    let only = bench.nvcc("only.fatbin", "-fatbin -Xptxas -O1 -arch sm_90");
    let zstd = bench.nvcc("zstd.fatbin", &format!("-fatbin -G {code}"));
    let lz4 = format!("-fatbin -compress-mode=speed -Xfatbin -compress-all {code}");
    let lz4 = bench.nvcc("lz4.fatbin", &lz4);
    let ptx = bench.nvcc("text.ptx", "-ptx -arch compute_80");
    let part = bench.nvcc("part.cubin", "-dc -cubin -arch sm_90");
    let [plain_, lines_, only_] = [&plain, &lines, &only].map(|p| p.to_str().unwrap());
    let mut words = vec![
        "fatbin",
        plain_,
        "wrapper",
        lines_,
        "librarywrapper",
        only_,
        "library",
        plain_,
    ];
    for file in [&zstd, &lz4, &ptx, &part] {
        words.extend(["data", file.to_str().unwrap()]);
    }
    words.push("gate");
    let parts = [&plain, &lines].map(|file| bench.taken_apart(file));
    let only = bench.taken_apart(&only);
    for (gpu, index) in [(90, 1), (120, 2), (89, 0)] {
        let mut wanted: Vec<_> = parts.iter().map(|parts| parts[index].clone()).collect();
        let mut words = words.clone();
        if gpu == 90 {
            wanted.extend(only.iter().cloned());
        } else {
            // No GPU but Hopper's takes it.
            words.drain(4..6);
        }
        let mut loading = Loading::start(&lab, true, gpu, &words);
        loading.go_on();
        let told = loading.wait("cubin_loaded", wanted.len());
        assert_eq!(sorted(loading.read(&told)), sorted(wanted), "sm_{gpu}");
        let all = loading.end();
        assert_eq!(all.of("cubin_loaded").count(), told.len(), "sm_{gpu}");
    }
}

/// From CUPTI a consumer gets what the driver runs, whatever it was made from: packed entries in the way they were
/// before, PTX as what it became.
#[test]
fn what_the_driver_makes_is_told_through_cupti() {
    let Some((lab, bench)) = watched("what_the_driver_makes_is_told_through_cupti") else {
        return;
    };
    let code = targets(&["80", "90", "120", "ptx_120"]);
    let lz4 = format!("-fatbin -lineinfo -compress-mode=speed -Xfatbin -compress-all {code}");
    let files = [
        bench.nvcc("plain.fatbin", &format!("-fatbin {code}")),
        bench.nvcc("zstd.fatbin", &format!("-fatbin -G {code}")),
        bench.nvcc("lz4.fatbin", &lz4),
    ];
    let cubin = bench.nvcc("13.cubin", "-cubin -lineinfo -Xptxas -O1 -arch sm_90");
    let older = bench.ptxas("12.cubin", 90, "-lineinfo", "-lineinfo");
    let ptx = bench.nvcc("text.ptx", "-ptx -arch compute_80");
    let [fat, zstd, lz4] = [&files[0], &files[1], &files[2]].map(|p| p.to_str().unwrap());
    let words = [
        "wrapper",
        fat,
        "fatbin",
        zstd,
        "library",
        lz4,
        "use",
        "module",
        cubin.to_str().unwrap(),
        "data",
        older.to_str().unwrap(),
        "data",
        ptx.to_str().unwrap(),
        "gate",
        "drop",
        "drop",
        "drop",
        "gate",
    ];
    let mut wanted: Vec<_> = files
        .iter()
        .map(|f| bench.taken_apart(f)[1].clone())
        .collect();
    wanted.extend([&cubin, &older].map(|file| fs::read(file).unwrap()));

    let mut loading = Loading::start(&lab, false, 90, &words);
    loading.go_on();
    let told = loading.wait("cubin_loaded", wanted.len() + 1);
    let mut read = loading.read(&told);
    let made = read.pop().expect("the last one came from PTX");
    assert!(!wanted.contains(&made));
    assert_eq!(image::cubin_len(&made[..]).unwrap(), made.len() as u64);
    assert_eq!(sorted(read), sorted(wanted));
    loading.go_on();
    loading.wait("cubin_unloaded", 3);
    assert_eq!(loading.counter(Counter::CubinsKept), 3);
    loading.end();
}

/// A thousand modules at the same time, told one by one; when they are gone, so is every copy, twice.
#[test]
fn a_thousand_modules_come_and_go() {
    let Some((lab, bench)) = watched("a_thousand_modules_come_and_go") else {
        return;
    };
    let cubin = bench.nvcc("one.cubin", "-cubin -arch sm_90");
    let file = cubin.to_str().unwrap();
    let mut round = vec!["many", "1000", file, "gate"];
    round.extend(["drop"; 1000]);
    round.push("gate");
    let words = [round.clone(), round].concat();
    let mut loading = Loading::start(&lab, true, 90, &words);
    let pid = loading.program.pid();
    let mut mappings = Vec::new();
    for i in 1..=2 {
        loading.go_on();
        let told = loading.wait("cubin_loaded", i * 1000);
        let mut read = loading.read(&told[(i - 1) * 1000..]);
        read.sort();
        read.dedup();
        assert_eq!(read.len(), 1000, "each its own bytes");
        let size = fs::metadata(&cubin).unwrap().len();
        assert!(read.iter().all(|bytes| bytes.len() as u64 == size));
        assert_eq!(loading.counter(Counter::CubinBytes), 1000 * size);
        loading.go_on();
        loading.wait("cubin_unloaded", i * 1000);
        assert_eq!(loading.counter(Counter::CubinBytes), 0);
        mappings.push(block::holdings(pid).2);
    }
    assert!(mappings[1] <= mappings[0] + 20, "{mappings:?}");
    loading.end();
}
