//! The built library as an ELF file: probes, dependencies, exports. Needs no driver and no rights.

use std::collections::{BTreeSet, HashSet};
use std::fs;

use goblin::elf::program_header::{PF_W, PT_LOAD};
use goblin::elf::section_header::SHN_UNDEF;
use goblin::elf::{Elf, ProgramHeader};
use parcagpu_abi::probe::{ALL, PROVIDER};
use parcagpu_tests::artefacts;
use parcagpu_tests::notes::{self, Note};

const PAGE: u64 = 4096;

fn library() -> Vec<u8> {
    fs::read(artefacts::library()).expect("the library can be read")
}

fn all_notes() -> Vec<Note> {
    notes::read(&artefacts::library()).expect("the library has notes")
}

/// Probes of `probes.d`: name, and type and name of each argument.
fn contract() -> Vec<(String, Vec<(String, String)>)> {
    let text = fs::read_to_string(artefacts::root().join("probes.d")).expect("probes.d");
    let mut code = String::new();
    for (i, part) in text.split("/*").enumerate() {
        code += if i == 0 {
            part
        } else {
            part.split_once("*/").expect("comments end").1
        };
    }
    assert!(code.contains(&format!("provider {PROVIDER} {{")));
    code.split(';')
        .filter_map(|statement| statement.split_once("probe "))
        .map(|(_, declaration)| {
            let (name, rest) = declaration.split_once('(').expect("an argument list");
            let arguments = rest.split_once(')').expect("which ends").0;
            let arguments = arguments.split(',').map(|argument| {
                let argument = argument.trim();
                let at = argument
                    .rfind(|c: char| !c.is_alphanumeric() && c != '_')
                    .expect("a type before the name");
                (
                    argument[..=at].trim().to_owned(),
                    argument[at + 1..].to_owned(),
                )
            });
            (name.trim().to_owned(), arguments.collect())
        })
        .collect()
}

/// `probes.d` and the Rust table say the same, in the same order.
#[test]
fn table_is_the_contract() {
    let table: Vec<(String, Vec<(String, String)>)> = ALL
        .iter()
        .map(|probe| {
            let owned = |(ty, name): &(&str, &str)| ((*ty).to_owned(), (*name).to_owned());
            (
                probe.name.to_owned(),
                probe.args.iter().map(owned).collect(),
            )
        })
        .collect();
    assert_eq!(contract(), table);
    assert_eq!(table.len(), 11);
}

/// Exactly one note per probe, with the arguments of the contract, 8 bytes each.
#[test]
fn notes_are_the_contract() {
    let notes = all_notes();
    assert_eq!(notes.len(), contract().len());
    for (name, arguments) in contract() {
        let found: Vec<&Note> = notes.iter().filter(|n| n.name == name).collect();
        assert_eq!(found.len(), 1, "sites of {name}");
        assert_eq!(found[0].provider, PROVIDER);
        let words: Vec<&str> = found[0].arguments.split_whitespace().collect();
        assert_eq!(words.len(), arguments.len(), "{name}: {words:?}");
        for word in words {
            let (size, _) = word.split_once('@').expect("SIZE@PLACE");
            assert!(matches!(size, "8" | "-8"), "{name}: {word}");
        }
    }
}

fn loads<'a>(elf: &'a Elf<'_>) -> impl Iterator<Item = &'a ProgramHeader> {
    elf.program_headers.iter().filter(|h| h.p_type == PT_LOAD)
}

/// Mappings in which the file page of an address appears, as the kernel maps whole pages.
fn mappings_of(elf: &Elf<'_>, address: u64) -> usize {
    let home = loads(elf)
        .find(|h| (h.p_vaddr..h.p_vaddr + h.p_memsz).contains(&address))
        .expect("the address is in a segment");
    let offset = address - home.p_vaddr + home.p_offset;
    assert!(
        offset < home.p_offset + home.p_filesz,
        "{address:#x} is in the file"
    );
    let page = offset / PAGE * PAGE;
    loads(elf)
        .filter(|h| {
            let start = h.p_offset / PAGE * PAGE;
            let end = (h.p_offset + h.p_filesz).div_ceil(PAGE) * PAGE;
            (start..end).contains(&page)
        })
        .count()
}

/// Each semaphore is its own, in a writable mapped section, and each page of a site or semaphore is
/// mapped once: else the kernel counts consumers twice.
#[test]
fn semaphores_and_pages() {
    let bytes = library();
    let elf = Elf::parse(&bytes).unwrap();
    let notes = notes::of(&elf, &bytes).unwrap();
    let semaphores: HashSet<u64> = notes.iter().map(|n| n.semaphore).collect();
    assert_eq!(semaphores.len(), notes.len(), "semaphores are distinct");
    for note in &notes {
        assert_ne!(note.semaphore, 0, "{}", note.name);
        let section = elf
            .section_headers
            .iter()
            .find(|s| s.is_alloc() && s.vm_range().contains(&(note.semaphore as usize)))
            .expect("the semaphore is in a section");
        assert!(section.is_writable(), "{}", note.name);
        assert_eq!(elf.shdr_strtab.get_at(section.sh_name), Some(".probes"));
        assert_eq!(note.semaphore % 2, 0);
        let writable = loads(&elf).any(|h| {
            h.p_flags & PF_W != 0 && (h.p_vaddr..h.p_vaddr + h.p_memsz).contains(&note.semaphore)
        });
        assert!(writable, "{}", note.name);
        assert_eq!(mappings_of(&elf, note.site), 1, "site of {}", note.name);
        assert_eq!(
            mappings_of(&elf, note.semaphore),
            1,
            "semaphore of {}",
            note.name
        );
    }
}

/// The base in every note is the base section's address, so that prelinking can be undone.
#[test]
fn base_section() {
    let bytes = library();
    let elf = Elf::parse(&bytes).unwrap();
    let base = elf
        .section_headers
        .iter()
        .find(|s| elf.shdr_strtab.get_at(s.sh_name) == Some(".stapsdt.base"))
        .expect("a section .stapsdt.base");
    assert_ne!(base.sh_addr, 0);
    for note in notes::of(&elf, &bytes).unwrap() {
        assert_eq!(note.base, base.sh_addr, "{}", note.name);
    }
}

/// A stripped library still has its probes.
#[test]
fn stripped() {
    let lab = parcagpu_tests::lab::Lab::new();
    let file = lab.library();
    let status = std::process::Command::new("strip").arg(&file).status();
    assert!(status.is_ok_and(|s| s.success()), "strip (binutils) works");
    assert_eq!(notes::read(&file).unwrap(), all_notes());
}

/// Needs only what every process has: in particular neither CUDA nor a C++ library.
#[test]
fn dependencies() {
    let bytes = library();
    let elf = Elf::parse(&bytes).unwrap();
    let allowed = [
        "libc.so.6",
        "libgcc_s.so.1",
        "libm.so.6",
        "libdl.so.2",
        "libpthread.so.0",
    ];
    for needed in &elf.libraries {
        let loader = needed.starts_with("ld-linux");
        assert!(loader || allowed.contains(needed), "NEEDED {needed}");
    }
    assert_eq!(elf.soname, Some("libparcagpu.so"));
}

/// Exports the ways in, the status block, and the two functions by which libraries are noticed as they
/// are loaded: nothing else that could stand before a symbol of the program.
#[test]
fn exports() {
    let bytes = library();
    let elf = Elf::parse(&bytes).unwrap();
    let exported: BTreeSet<&str> = elf
        .dynsyms
        .iter()
        .filter(|s| s.st_shndx != SHN_UNDEF as usize)
        .filter_map(|s| elf.dynstrtab.get_at(s.st_name))
        .collect();
    let expected = [
        "InitializeInjection",
        "InitializeInjectionNvtx2",
        "InitializeInjectionNvtxExtension",
        parcagpu_abi::status::SYMBOL,
        "__gmon_start__",
        "dlmopen",
    ];
    assert_eq!(exported, BTreeSet::from(expected));
}

/// The README's table of variables is the code's.
#[test]
fn variables_in_the_readme() {
    let Ok(readme) = fs::read_to_string(artefacts::root().join("README.md")) else {
        return parcagpu_tests::need::skip("variables_in_the_readme", "readme", "no README yet");
    };
    let rows: Vec<(String, String)> = readme
        .lines()
        .filter(|line| line.starts_with('|') && line.contains("`PARCAGPU_"))
        .map(|line| {
            let cells: Vec<&str> = line.trim_matches('|').split('|').map(str::trim).collect();
            let name = cells[0]
                .split('`')
                .find(|part| part.starts_with("PARCAGPU_"));
            (
                name.expect("a name").to_owned(),
                cells[1].trim_matches('`').to_owned(),
            )
        })
        .collect();
    let code: Vec<(String, String)> = parcagpu::config::VARIABLES
        .iter()
        .map(|v| (v.name.to_owned(), v.default.to_owned()))
        .collect();
    assert_eq!(rows, code);
}
