//! Changed copies of the simulated driver: functions missing, or starting with other code.

use std::fs;
use std::path::PathBuf;

use goblin::elf::Elf;
use goblin::elf::section_header::SHT_DYNSYM;

use crate::artefacts;
use crate::lab::Lab;

/// A folder with a copy of the simulated driver, changed by `change`.
fn changed_driver(lab: &Lab, name: &str, change: impl FnOnce(&mut Vec<u8>)) -> PathBuf {
    let folder = lab.file(name);
    fs::create_dir(&folder).expect("a name of its own");
    let mut bytes = fs::read(artefacts::sim().join("libcuda.so.1")).expect("readable");
    change(&mut bytes);
    fs::write(folder.join("libcuda.so.1"), bytes).expect("room for a copy");
    folder
}

/// A driver that does not export these functions, as an older one; see also `MOCK_CUDA_ABSENT`.
pub fn driver_without(lab: &Lab, name: &str, functions: &[&str]) -> PathBuf {
    changed_driver(lab, name, |bytes| {
        for function in functions {
            let whole = format!("\0{function}\0").into_bytes();
            let places: Vec<usize> = bytes
                .windows(whole.len())
                .enumerate()
                .filter(|(_, w)| *w == whole)
                .map(|(at, _)| at)
                .collect();
            assert!(!places.is_empty(), "the simulated driver names {function}");
            for at in places {
                bytes[at + 1] = b'x';
            }
        }
    })
}

/// The start of every function of the simulated driver, and where the jump to its body lies.
const ENTRY: [u8; 6] = [0x55, 0x48, 0x89, 0xe5, 0x41, 0x54];
/// How the entries begin that the loader calls.
pub const BODY: u8 = 29;

/// A driver in which `function` starts with other code. With `size`, the function is said to be that
/// short, and a neighbour begins right behind it, under the name of another function.
pub fn driver_with_code(
    lab: &Lab,
    name: &str,
    function: &str,
    code: &[u8],
    size: Option<(u64, &str)>,
) -> PathBuf {
    assert!(code.len() <= usize::from(BODY));
    changed_driver(lab, name, |bytes| {
        let file = bytes.clone();
        let elf = Elf::parse(&file).expect("an ELF file");
        let index = |wanted: &str| {
            elf.dynsyms
                .iter()
                .position(|s| elf.dynstrtab.get_at(s.st_name) == Some(wanted))
                .unwrap_or_else(|| panic!("the simulated driver has {wanted}"))
        };
        let address = elf
            .dynsyms
            .get(index(function))
            .expect("it is there")
            .st_value;
        let segment = elf
            .program_headers
            .iter()
            .find(|h| h.is_executable() && h.vm_range().contains(&(address as usize)))
            .expect("functions lie in code");
        let at = (address - segment.p_vaddr + segment.p_offset) as usize;
        assert_eq!(bytes[at..at + ENTRY.len()], ENTRY);
        assert_eq!(bytes[at + usize::from(BODY)], 0xe9, "the jump to the body");
        bytes[at..at + code.len()].copy_from_slice(code);
        let Some((size, neighbour)) = size else {
            return;
        };
        let table = elf
            .section_headers
            .iter()
            .find(|s| s.sh_type == SHT_DYNSYM)
            .expect("a table of exported symbols")
            .sh_offset as usize;
        // Elf64_Sym: value at 8, size at 16, 24 bytes in all.
        let mut set = |symbol: usize, value: u64, size: u64| {
            let entry = table + symbol * 24;
            bytes[entry + 8..entry + 16].copy_from_slice(&value.to_le_bytes());
            bytes[entry + 16..entry + 24].copy_from_slice(&size.to_le_bytes());
        };
        set(index(function), address, size);
        set(index(neighbour), address + size, 34 - size);
    })
}
