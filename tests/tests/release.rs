//! What the built files ask of a system: the release of `scripts/build-release` runs with an old glibc,
//! the ordinary build with that of its machine.

use std::fs;
use std::path::{Path, PathBuf};

use goblin::elf::Elf;
use parcagpu_tests::need::skip;
use parcagpu_tests::{artefacts, notes};

/// The newest glibc that a release may need.
const OLDEST: (u32, u32) = (2, 28);

/// The newest version of glibc that a file needs, and of which library.
fn needed_glibc(elf: &Elf<'_>) -> Option<((u32, u32), String)> {
    let mut newest = None;
    for file in elf.verneed.as_ref()?.iter() {
        let library = elf.dynstrtab.get_at(file.vn_file).unwrap_or_default();
        for need in file.iter() {
            let name = elf.dynstrtab.get_at(need.vna_name).unwrap_or_default();
            if let Some(version) = version(name) {
                newest = newest.max(Some((version, format!("{name} of {library}"))));
            }
        }
    }
    newest
}

/// `GLIBC_2.28` or `GLIBC_2.2.5`, the first two numbers.
fn version(name: &str) -> Option<(u32, u32)> {
    let mut numbers = name.strip_prefix("GLIBC_")?.split('.');
    Some((numbers.next()?.parse().ok()?, numbers.next()?.parse().ok()?))
}

/// The releases that were built here: folders of target/dist.
fn releases() -> Vec<PathBuf> {
    let library = artefacts::library();
    let target = library.ancestors().nth(2).expect("target/release/FILE");
    ["amd64", "arm64"]
        .map(|arch| target.join("dist").join(arch))
        .into_iter()
        .filter(|folder| folder.is_dir())
        .collect()
}

/// Runs a check on each release, or says that there is none.
fn with_each_release(test: &str, check: impl Fn(&Path)) {
    let releases = releases();
    if releases.is_empty() {
        skip(
            test,
            "release",
            "no release is built (scripts/build-release)",
        );
    }
    releases.iter().for_each(|folder| check(folder));
}

#[test]
fn versions_are_read_as_numbers() {
    assert_eq!(version("GLIBC_2.2.5"), Some((2, 2)));
    assert!(version("GLIBC_2.4") < version("GLIBC_2.28"));
    assert_eq!(version("GLIBC_PRIVATE"), None);
    assert_eq!(version("GCC_3.0"), None);
}

/// The library that every machine builds for itself: what it needs is there, since the tests run with it.
#[test]
fn ordinary_build_states_its_need() {
    for file in [artefacts::library(), artefacts::command()] {
        let bytes = fs::read(&file).expect("readable");
        let elf = Elf::parse(&bytes).expect("an ELF file");
        let (needed, symbol) = needed_glibc(&elf).expect("it is linked with glibc");
        println!("{} needs {symbol}", file.display());
        let here = here();
        assert!(needed <= here, "{symbol} is needed, this is {here:?}");
    }
}

/// The version of the glibc that runs this test.
fn here() -> (u32, u32) {
    // SAFETY: returns a constant text.
    let text = unsafe { std::ffi::CStr::from_ptr(libc::gnu_get_libc_version()) };
    version(&format!("GLIBC_{}", text.to_str().expect("ASCII"))).expect("two numbers")
}

#[test]
fn a_release_needs_an_old_glibc_only() {
    with_each_release("a_release_needs_an_old_glibc_only", |folder| {
        for name in ["libparcagpu.so", "parcagpu"] {
            let bytes = fs::read(folder.join(name)).expect("readable");
            let elf = Elf::parse(&bytes).expect("an ELF file");
            let (needed, symbol) = needed_glibc(&elf).expect("it is linked with glibc");
            assert!(needed <= OLDEST, "{name} needs {symbol}");
            let foreign: Vec<&&str> = elf
                .libraries
                .iter()
                .filter(|needed| {
                    let of_every_system = [
                        "libc.so.6",
                        "libm.so.6",
                        "libdl.so.2",
                        "libpthread.so.0",
                        "libgcc_s.so.1",
                    ];
                    !needed.starts_with("ld-linux") && !of_every_system.contains(needed)
                })
                .collect();
            assert!(foreign.is_empty(), "{name} needs {foreign:?}");
            assert!(
                elf.rpaths.is_empty() && elf.runpaths.is_empty(),
                "{name} has a search path"
            );
            let debug = elf
                .section_headers
                .iter()
                .any(|s| elf.shdr_strtab.get_at(s.sh_name) == Some(".debug_info"));
            assert!(!debug, "{name} is stripped");
        }
    });
}

#[test]
fn a_release_is_whole() {
    with_each_release("a_release_is_whole", |folder| {
        for name in [
            "parcagpu-entrypoint.sh",
            "probes.d",
            "parcagpu.bt",
            "ebpf/parcagpu.h",
            "LICENSE",
        ] {
            assert!(folder.join(name).is_file(), "{name}");
        }
        let link = fs::read_link(folder.join("libparcagpucupti.so")).expect("a link");
        assert_eq!(link, Path::new("libparcagpu.so"));

        let library = folder.join("libparcagpu.so");
        let bytes = fs::read(&library).expect("readable");
        let elf = Elf::parse(&bytes).expect("an ELF file");
        assert_eq!(elf.soname, Some("libparcagpu.so"));
        let machine = match folder.file_name().and_then(|name| name.to_str()) {
            Some("arm64") => goblin::elf::header::EM_AARCH64,
            _ => goblin::elf::header::EM_X86_64,
        };
        assert_eq!(elf.header.e_machine, machine);
        let dynamic = &elf.dynamic.as_ref().expect("a dynamic section").info;
        assert_ne!(
            dynamic.flags_1 & goblin::elf::dynamic::DF_1_NODELETE,
            0,
            "-z nodelete"
        );
        assert_ne!(
            dynamic.flags & goblin::elf::dynamic::DF_SYMBOLIC,
            0,
            "-Bsymbolic"
        );
    });
}

/// Another linker, another layout: a page of a site or of a semaphore that is mapped twice would count
/// every consumer twice.
#[test]
fn probes_of_a_release() {
    with_each_release("probes_of_a_release", |folder| {
        let bytes = fs::read(folder.join("libparcagpu.so")).expect("readable");
        let elf = Elf::parse(&bytes).expect("an ELF file");
        let notes = notes::of(&elf, &bytes).expect("notes");
        let mut names: Vec<&str> = notes.iter().map(|n| n.name.as_str()).collect();
        names.sort_unstable();
        let mut expected: Vec<&str> = parcagpu_abi::probe::ALL.iter().map(|p| p.name).collect();
        expected.sort_unstable();
        assert_eq!(names, expected);

        // The page that the kernel on that machine may have.
        let page = if elf.header.e_machine == goblin::elf::header::EM_AARCH64 {
            0x1_0000
        } else {
            0x1000
        };
        let loads: Vec<_> = elf
            .program_headers
            .iter()
            .filter(|h| h.p_type == goblin::elf::program_header::PT_LOAD)
            .collect();
        for note in &notes {
            for address in [note.site, note.semaphore] {
                let home = loads
                    .iter()
                    .find(|h| (h.p_vaddr..h.p_vaddr + h.p_filesz).contains(&address))
                    .expect("the address is in the file");
                let at = (address - home.p_vaddr + home.p_offset) / page;
                let mapped = loads.iter().filter(|h| {
                    let last = (h.p_offset + h.p_filesz - 1) / page;
                    (h.p_offset / page..=last).contains(&at)
                });
                assert_eq!(mapped.count(), 1, "{} at {address:#x}", note.name);
            }
        }
    });
}
