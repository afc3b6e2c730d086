//! Cubins of NVIDIA's own compilers, from CUDA 12 and 13 and for five architectures: how long they are, and whether a
//! consumer gets the very bytes. What is loaded runs on the simulated driver.

mod cubin_common;

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::OnceLock;

use cubin_common::{Bench, Loading, compiled, sorted, watched};
use parcagpu::cubin::image::{self, Kind};
use parcagpu_abi::status::Counter;
use parcagpu_tests::block;
use parcagpu_tests::compilers::Compilers;
use parcagpu_tests::trace::number;

/// Turing, Ampere, Hopper and both lines of Blackwell.
const ARCHITECTURES: [u32; 5] = [75, 80, 90, 100, 120];

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

fn texts(paths: &[PathBuf]) -> Vec<&str> {
    paths.iter().map(|path| path.to_str().unwrap()).collect()
}

fn read_all(paths: &[PathBuf]) -> Vec<Vec<u8>> {
    sorted(paths.iter().map(|path| fs::read(path).unwrap()).collect())
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
