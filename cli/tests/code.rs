//! Cubins by NVIDIA's own compilers, resolved as `nvdisasm` resolves them.

use std::collections::BTreeSet;
use std::fs;
use std::sync::Arc;
use std::time::Duration;

use parcagpu_cli::code::{
    Announced, Code, CodeOptions, Cubin, FunctionName, Knowledge, NoLine, sass,
};
use parcagpu_cli::session::ProcessId;

use common::cuda::{self, Debug, Tools};

mod common;

/// Turing, Ampere, Hopper, and both Blackwells.
const SMS: [u32; 5] = [75, 80, 90, 100, 120];
const PATIENCE: Duration = Duration::from_secs(60);
/// Bytes of a function's name that a PC sample carries.
const NAME_MAX: usize = 127;

fn whole(name: &[u8]) -> FunctionName<'_> {
    FunctionName {
        name,
        cut: false,
        index: 0,
    }
}

/// A cubin in our own memory, announced.
fn announced(bytes: &[u8]) -> Announced {
    Announced {
        process: ProcessId {
            pid: std::process::id(),
            start_ns: 1,
        },
        crc: crc32fast::hash(bytes).into(),
        address: bytes.as_ptr() as u64,
        size: bytes.len() as u64,
    }
}

fn code(tools: &Tools) -> Code {
    Code::start(&CodeOptions {
        nvdisasm: Some(tools.nvdisasm.clone()),
        ..CodeOptions::default()
    })
    .unwrap()
}

/// Compares every instruction; the distinct lines.
fn compare(tools: &Tools, name: &str, bytes: &[u8]) -> BTreeSet<(String, u32)> {
    let cubin = Cubin::parse(bytes).unwrap();
    let mut lines = BTreeSet::new();
    let told = tools.disassembly(bytes);
    assert!(told.len() > 200, "{name}: {} instructions", told.len());
    for ((section, offset), instruction) in told {
        let kernel = section.strip_prefix(".text.").unwrap();
        let ours = cubin.resolve(&whole(kernel.as_bytes()), offset);
        let ours = ours.map(|l| (l.file.to_string(), l.line)).ok();
        assert_eq!(ours, instruction.line, "{name}: {section}+{offset:#x}");
        lines.extend(ours);
    }
    lines
}

/// With -lineinfo and with -G, for every GPU and both ABIs, each instruction has the line that nvdisasm gives it.
#[test]
fn every_instruction_has_the_line_that_nvdisasm_gives_it() {
    let Some(tools) = cuda::tools("every_instruction_has_the_line_that_nvdisasm_gives_it") else {
        return;
    };
    let mut abis = BTreeSet::new();
    for debug in [Debug::LineInfo, Debug::Full] {
        let mut cubins = tools.assembled(&SMS, debug);
        cubins.push((90, "nvcc".to_owned(), tools.cubin(90, debug)));
        for (sm, name, bytes) in cubins {
            let lines = compare(tools, &name, &bytes);
            let short = |path: &str| path.rsplit('/').next().unwrap().to_owned();
            let files: BTreeSet<String> = lines.iter().map(|l| short(&l.0)).collect();
            assert_eq!(
                files.into_iter().collect::<Vec<_>>(),
                ["inlined.h", "lines.cu"]
            );
            assert_eq!(Cubin::parse(&bytes).unwrap().sm(), Some(sm), "{name}");
            abis.insert((bytes[7], bytes[8]));
        }
    }
    assert_eq!(abis.into_iter().collect::<Vec<_>>(), [(0x33, 7), (0x41, 8)]);
}

/// Without line information the functions are there and the reason is told.
#[test]
fn code_without_line_information_says_so() {
    let Some(tools) = cuda::tools("code_without_line_information_says_so") else {
        return;
    };
    for (_, name, bytes) in tools.assembled(&[75, 90], Debug::Plain) {
        let cubin = Cubin::parse(&bytes).unwrap();
        assert!(!cubin.has_lines(), "{name}");
        let found = cubin.resolve(&whole(b"shared_sum"), 0x10);
        assert_eq!(found, Err(NoLine::NoLineInfo), "{name}");
        let found = cubin.resolve(&whole(b"no_such"), 0x10);
        assert_eq!(found, Err(NoLine::NoFunction), "{name}");
    }
}

/// A name that was cut is found by its symbol, or if it is the only one that begins so; an index is not believed
/// against the name; an offset beyond the function is told.
#[test]
fn functions_are_found_by_what_a_sample_has_of_their_names() {
    let Some(tools) = cuda::tools("functions_are_found_by_what_a_sample_has_of_their_names") else {
        return;
    };
    let bytes = tools.cubin(90, Debug::LineInfo);
    let cubin = Cubin::parse(&bytes).unwrap();
    let symbol = |part: &str| {
        let has = |name: &[u8]| String::from_utf8_lossy(name).contains(part);
        cubin.functions().iter().find(|f| has(&f.name)).unwrap()
    };
    let long = symbol("long_name");
    assert!(long.name.len() > NAME_MAX);
    let cut = |name, index| FunctionName {
        name,
        cut: true,
        index,
    };
    let found = |name: &FunctionName<'_>| cubin.find(name).and_then(|s| s.function);
    assert_eq!(found(&cut(&long.name[..NAME_MAX], 0)), Some(long));
    assert_eq!(found(&cut(&long.name[..NAME_MAX], long.index)), Some(long));
    let inlines = symbol("inlinesIf");
    let common = b"_Z7inlinesI";
    assert_eq!(found(&cut(common, inlines.index)), Some(inlines));
    assert_eq!(found(&cut(common, 0)), None, "several begin so");
    assert_eq!(found(&cut(common, long.index)), None);
    let wrong = FunctionName {
        index: long.index,
        ..whole(&inlines.name)
    };
    assert_eq!(found(&wrong), Some(inlines));
    assert_eq!(found(&whole(&long.name[..NAME_MAX])), None);
    for offset in [inlines.size, 1 << 40, u64::MAX] {
        let line = cubin.resolve(&whole(&inlines.name), offset);
        assert_eq!(line, Err(NoLine::Outside));
    }
    // Code of a function that was called lies inside the section of its caller, and is the callee's.
    let inner = cubin.functions().iter().find(|f| f.start > 0).unwrap();
    let line = cubin.resolve(&whole(&inner.name), 0x10).unwrap();
    assert!((7..=9).contains(&line.line), "{line:?}");
}

/// Read from a process, each instruction has the mnemonic that nvdisasm prints, whole and by function.
#[test]
fn mnemonics_come_from_nvdisasm_in_the_background() {
    let Some(tools) = cuda::tools("mnemonics_come_from_nvdisasm_in_the_background") else {
        return;
    };
    let small = tools.cubin(90, Debug::LineInfo);
    // So large that only functions are asked for.
    let mut large = small.clone();
    large.resize(3 << 20, 0);
    for bytes in [&small, &large] {
        let mut code = code(tools);
        let this = announced(bytes);
        code.announce(this);
        assert!(code.settle(PATIENCE));
        assert_eq!(code.troubles(), [""; 0]);
        let told = tools.disassembly(&small);
        for round in 0..2 {
            for ((section, offset), instruction) in &told {
                let name = section.strip_prefix(".text.").unwrap();
                let place = code.resolve(this.crc, &whole(name.as_bytes()), *offset);
                assert_eq!(place.knowledge, Knowledge::Line);
                assert_eq!(place.function.as_deref(), Some(name.as_bytes()));
                if round == 1 {
                    let ours = place.mnemonic.as_deref();
                    assert_eq!(ours, Some(&*instruction.mnemonic), "{section}+{offset:#x}");
                }
            }
            assert!(code.settle(PATIENCE));
        }
        assert_eq!(code.troubles(), [""; 0]);
        assert_eq!(code.bytes(this.crc).as_deref(), Some(bytes.as_slice()));
    }
}

/// A process that lies is told of and harms nobody; what it announces again is tried again, not for ever.
#[test]
fn a_process_that_lies_is_told_of() {
    let Some(tools) = cuda::tools("a_process_that_lies_is_told_of") else {
        return;
    };
    let bytes = tools.cubin(90, Debug::LineInfo);
    let mut code = code(tools);
    let right = announced(&bytes);
    let ask = |code: &mut Code, crc| {
        assert!(code.settle(PATIENCE));
        code.resolve(crc, &whole(b"shared_sum"), 0x20).knowledge
    };
    assert_eq!(ask(&mut code, right.crc), Knowledge::NotAnnounced);
    for (n, size) in [0, u64::MAX, right.size - 1].into_iter().enumerate() {
        code.announce(Announced { size, ..right });
        assert_eq!(ask(&mut code, right.crc), Knowledge::Unread);
        assert_eq!(code.troubles().len(), n + 1, "{:?}", code.troubles());
    }
    // Three times was enough.
    code.announce(right);
    assert_eq!(ask(&mut code, right.crc), Knowledge::Unread);
    assert_eq!(code.troubles().len(), 3);
    // Not a cubin, and a cubin that changes before it is read.
    let text = b"\x7fELF, but no cubin".to_vec();
    code.announce(announced(&text));
    assert_eq!(ask(&mut code, announced(&text).crc), Knowledge::Unread);
    let mut changed = tools.cubin(75, Debug::Plain);
    let before = announced(&changed);
    changed[1000] ^= 1;
    code.announce(before);
    assert_eq!(ask(&mut code, before.crc), Knowledge::Unread);
    changed[1000] ^= 1;
    code.announce(before);
    let now = ask(&mut code, before.crc);
    assert_eq!(
        now,
        Knowledge::No(NoLine::NoLineInfo),
        "{:?}",
        code.troubles()
    );
    assert_eq!(code.troubles().len(), 5);
}

/// What was kept on disk is not read from a process again.
#[test]
fn a_cache_on_disk_is_enough() {
    let Some(tools) = cuda::tools("a_cache_on_disk_is_enough") else {
        return;
    };
    let dir = tempfile::tempdir().unwrap();
    let options = CodeOptions {
        cache: Some(dir.path().join("cubins")),
        no_mnemonics: true,
        ..CodeOptions::default()
    };
    let bytes = tools.cubin(90, Debug::LineInfo);
    let right = announced(&bytes);
    let elsewhere = Announced {
        address: 8,
        ..right
    };
    for announced in [right, elsewhere] {
        let mut code = Code::start(&options).unwrap();
        code.announce(announced);
        assert!(code.settle(PATIENCE));
        let place = code.resolve(right.crc, &whole(b"shared_sum"), 0x20);
        assert_eq!(place.knowledge, Knowledge::Line, "{:?}", code.troubles());
    }
    // A damaged file is not believed.
    let file = fs::read_dir(dir.path().join("cubins")).unwrap().next();
    let file = file.unwrap().unwrap().path();
    fs::write(&file, &bytes[1..]).unwrap();
    let mut code = Code::start(&options).unwrap();
    code.announce(elsewhere);
    assert!(code.settle(PATIENCE));
    let place = code.resolve(right.crc, &whole(b"shared_sum"), 0x20);
    assert_eq!(place.knowledge, Knowledge::Unread);
}

/// Damaged cubins are read or refused, whatever is damaged.
#[test]
fn damaged_cubins_do_no_harm() {
    let Some(tools) = cuda::tools("damaged_cubins_do_no_harm") else {
        return;
    };
    let mut state = 0x9e37_79b9_7f4a_7c15u64;
    let mut random = move |below: usize| {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        (state % below as u64) as usize
    };
    let mut read = 0;
    for bytes in [
        tools.cubin(90, Debug::LineInfo),
        tools.cubin(90, Debug::Full),
    ] {
        for _ in 0..1000 {
            let mut damaged = bytes.clone();
            for _ in 0..1 + random(8) {
                let at = random(damaged.len());
                damaged[at] = [0, 1, 0x7f, 0x80, 0xff, random(256) as u8][random(6)];
            }
            damaged.truncate(damaged.len() - random(2) * random(damaged.len()));
            if let Ok(cubin) = Cubin::parse(&damaged) {
                read += 1;
                let lines =
                    (0..0x400).filter_map(|at| cubin.resolve(&whole(b"shared_sum"), at).ok());
                assert!(lines.count() <= 0x400);
            }
        }
    }
    assert!(read > 500, "{read} could be read");
}

/// A recording has the bytes at hand; code that nvdisasm does not take is told of.
#[test]
fn cubins_of_a_recording() {
    let Some(tools) = cuda::tools("cubins_of_a_recording") else {
        return;
    };
    let bytes: Arc<[u8]> = tools.cubin(90, Debug::LineInfo).into();
    let mut code = code(tools);
    code.add(7, Arc::clone(&bytes)).unwrap();
    assert!(code.add(8, b"no cubin".as_slice().into()).is_err());
    let function = whole(b"shared_sum");
    assert_eq!(code.resolve(7, &function, 0).mnemonic, None);
    assert!(code.settle(PATIENCE));
    let place = code.resolve(7, &function, 0);
    assert!(
        place.mnemonic.is_some() && place.line.is_some(),
        "{place:?}"
    );
    let failed = sass::disassemble(&tools.nvdisasm, b"no cubin", &[], PATIENCE);
    let failed = failed.unwrap_err().to_string();
    assert!(failed.contains("nvdisasm fatal"), "{failed}");
}
