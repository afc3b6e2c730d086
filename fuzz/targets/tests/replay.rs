//! The fuzz targets as ordinary tests: all seeds, every input that once found a fault, and some thousand
//! mutations of them, the same ones each time. `scripts/fuzz` is what goes further.

use std::fs;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::Path;

use parcagpu_fuzz_targets::{TARGETS, Target, loaded};

/// Mutations for each target, so many that in a debug build all of them together take seconds.
fn mutations(target: &Target) -> u32 {
    match target.name {
        // Seven files for each input.
        "report" => 1_000,
        _ => 30_000,
    }
}
/// Longest input.
const LONGEST: usize = 2048;

fn inputs(folder: &str, target: &Target) -> Vec<(String, Vec<u8>)> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("..")
        .join(folder)
        .join(target.name);
    let Ok(files) = fs::read_dir(&folder) else {
        return Vec::new();
    };
    let mut inputs: Vec<_> = files
        .map(|file| {
            let path = file.expect("a file").path();
            let bytes = fs::read(&path).expect("readable");
            (path.display().to_string(), bytes)
        })
        .collect();
    inputs.sort();
    inputs
}

/// Runs one input; the panic of the target is told together with it.
#[track_caller]
fn run(target: &Target, name: &str, bytes: &[u8]) {
    let outcome = catch_unwind(AssertUnwindSafe(|| (target.run)(bytes)));
    assert!(
        outcome.is_ok(),
        "{} fails on {name}: \"{}\"",
        target.name,
        bytes.escape_ascii()
    );
}

/// Marsaglia's xorshift: the same numbers each time.
struct Numbers(u64);

impl Numbers {
    fn next(&mut self) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0
    }

    fn below(&mut self, n: usize) -> usize {
        (self.next() % n.max(1) as u64) as usize
    }
}

/// Numbers at which things break.
const EDGES: [u64; 12] = [
    0,
    1,
    4,
    64,
    0x7f,
    0xff,
    0x7fff,
    0xffff,
    0x7fff_ffff,
    0xffff_ffff,
    i64::MAX as u64,
    u64::MAX,
];

fn mutate(bytes: &mut Vec<u8>, other: &[u8], numbers: &mut Numbers) {
    let at = numbers.below(bytes.len());
    match numbers.below(8) {
        0 if !bytes.is_empty() => bytes[at] ^= 1 << numbers.below(8),
        1 if !bytes.is_empty() => bytes[at] = numbers.next() as u8,
        2 | 3 => {
            let width = [1, 2, 4, 8][numbers.below(4)];
            let edge = EDGES[numbers.below(EDGES.len())].to_le_bytes();
            let at = at & !(width - 1);
            for (place, byte) in bytes.iter_mut().skip(at).zip(&edge[..width]) {
                *place = *byte;
            }
        }
        4 => bytes.truncate(at),
        5 => {
            let from = numbers.below(other.len());
            let len = numbers.below(64).min(other.len() - from);
            let piece = other[from..from + len].iter().copied();
            bytes.splice(at..at, piece);
        }
        6 => {
            let end = (at + numbers.below(16)).min(bytes.len());
            bytes.drain(at..end);
        }
        _ => {
            let end = (at + numbers.below(64)).min(bytes.len());
            let piece = bytes[at..end].to_vec();
            bytes.splice(at..at, piece);
        }
    }
    bytes.truncate(LONGEST);
}

fn replay(target: &Target) {
    let mut all = inputs("seeds", target);
    assert!(!all.is_empty(), "{} has no seeds", target.name);
    all.extend(inputs("regressions", target));
    run(target, "nothing", &[]);
    for (name, bytes) in &all {
        run(target, name, bytes);
    }
    let mut numbers = Numbers(0x9e37_79b9_7f4a_7c15);
    for _ in 0..mutations(target) {
        let (name, bytes) = &all[numbers.below(all.len())];
        let other = &all[numbers.below(all.len())].1;
        let mut bytes = bytes.clone();
        for _ in 0..=numbers.below(4) {
            mutate(&mut bytes, other, &mut numbers);
        }
        run(target, &format!("a mutation of {name}"), &bytes);
    }
}

/// One test for each, so that they run side by side and fail by name.
macro_rules! tests {
    ($($name:ident)*) => {
        $(#[test]
        fn $name() {
            let target = TARGETS.iter().find(|target| target.name == stringify!($name));
            replay(target.expect("a target of that name"));
        })*
        const TESTED: &[&str] = &[$(stringify!($name)),*];
    };
}

tests!(cubin fatbin lines sass nvtx environment elf maps status events names symbols jit recording report);

/// Every target has a test and a program for cargo-fuzz, and the other way round.
#[test]
fn targets_are_complete() {
    let names: Vec<_> = TARGETS.iter().map(|target| target.name).collect();
    assert_eq!(names, TESTED);
    let manifest = Path::new(env!("CARGO_MANIFEST_DIR")).join("../Cargo.toml");
    let manifest = fs::read_to_string(manifest).expect("the manifest of cargo-fuzz");
    let programs = manifest.lines().filter_map(|line| {
        let name = line.strip_prefix("name = \"")?.strip_suffix('"')?;
        (name != "parcagpu-fuzz").then_some(name)
    });
    let mut programs: Vec<_> = programs.collect();
    let mut sorted = names.clone();
    programs.sort_unstable();
    sorted.sort_unstable();
    assert_eq!(programs, sorted);
    for folder in ["seeds", "regressions"] {
        let folder = Path::new(env!("CARGO_MANIFEST_DIR"))
            .join("..")
            .join(folder);
        for entry in fs::read_dir(folder).expect("a folder of inputs") {
            let name = entry.expect("a folder").file_name();
            let name = name.to_str().expect("plain names");
            assert!(names.contains(&name), "{name} is no target");
        }
    }
}

fn seed(target: &str, name: &str) -> Vec<u8> {
    let path = format!("{}/../seeds/{target}/{name}", env!("CARGO_MANIFEST_DIR"));
    fs::read(&path).unwrap_or_else(|e| panic!("{path}: {e}"))
}

/// Seeds are worth something only when the readers take them.
#[test]
fn seeds_are_well_formed() {
    use parcagpu::cubin::{fatbin, image};
    use parcagpu_cli::code::{Cubin, FunctionName};

    let lines = Cubin::parse(&seed("lines", "one")).unwrap();
    let k = FunctionName {
        name: b"k",
        cut: false,
        index: 0,
    };
    for (offset, line) in [(0, 5), (16, 6), (31, 6)] {
        let found = lines.resolve(&k, offset).unwrap();
        assert_eq!((&*found.file, found.line), ("src/k.cu", line));
    }
    let cubin = seed("cubin", "one");
    assert_eq!(image::cubin_len(&cubin[..]).unwrap(), cubin.len() as u64);
    let several = seed("fatbin", "several");
    assert_eq!(fatbin::len(&several[..]).unwrap(), several.len() as u64);
    assert_eq!(fatbin::entries(&several[..]).unwrap().len(), 4);

    let path = format!("{}/../seeds/elf/library", env!("CARGO_MANIFEST_DIR"));
    let library = fs::File::open(path).expect("a seed");
    let image = parcagpu_cli::elf::read_image(&library).expect("an ELF file with notes");
    assert_eq!(image.notes.len(), 2);
    assert_eq!(image.status, Some(0x3000));

    for probe in parcagpu_abi::probe::ALL {
        let bytes = seed("events", probe.name);
        let len = usize::from(u16::from_le_bytes([bytes[0], bytes[1]]));
        let event = parcagpu_cli::decode::decode(&bytes[2..2 + len]);
        assert_eq!(event.expect("an event").header.probe().name, probe.name);
    }
    for kind in ["gnu", "sysv"] {
        let found = loaded::look(&seed("symbols", kind));
        assert!(found.is_some(), "{kind} has cuInit");
    }
}
