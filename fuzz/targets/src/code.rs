//! Machine code that a program gives to the driver: cubins and fat binaries, and what the command makes of it.

use parcagpu::cubin::fatbin;
use parcagpu::cubin::image::{self, Kind};
use parcagpu::cubin::memory::IMAGE_MAX;
use parcagpu_cli::code::{Cubin, FunctionName, sass};

/// The length of a cubin.
pub fn cubin(data: &[u8]) {
    let Ok(len) = image::cubin_len(data) else {
        return;
    };
    assert!((64..=IMAGE_MAX).contains(&len));
    assert_eq!(image::kind(data).ok(), Some(Kind::Elf));
    // What lies behind a cubin has no say in it.
    let within = usize::try_from(len).ok().and_then(|len| data.get(..len));
    if let Some(within) = within {
        assert_eq!(image::cubin_len(within).ok(), Some(len));
    }
}

/// The machine code of a fat binary, and what each GPU gets of it.
pub fn fatbin(data: &[u8]) {
    let len = fatbin::len(data);
    let Ok(entries) = fatbin::entries(data) else {
        return;
    };
    let len = len.expect("what has entries has a length");
    for cubin in entries.iter().filter_map(|entry| entry.cubin) {
        let end = cubin.offset.checked_add(cubin.len).expect("checked");
        assert!(cubin.offset >= 16 && cubin.len >= 64 && end <= len);
        let start = usize::try_from(cubin.offset).expect("in memory");
        assert!(data[start..].starts_with(b"\x7fELF"));
    }
    for sm in [0, 75, 87, 89, 90, 103, 121, u32::MAX] {
        let Some(chosen) = fatbin::chosen(&entries, sm) else {
            continue;
        };
        let entry = entries.iter().find(|entry| entry.cubin == Some(chosen));
        let entry = entry.expect("it is one of them");
        assert!(entry.sm / 10 == sm / 10 && entry.sm <= sm);
        assert!(!entry.one_architecture || entry.sm == sm);
    }
}

/// The lines of a cubin, for the instructions of all its functions.
pub fn lines(data: &[u8]) {
    let Ok(cubin) = Cubin::parse(data) else {
        return;
    };
    for function in cubin.functions().iter().take(16) {
        let mut name = FunctionName {
            name: &function.name,
            cut: false,
            index: function.index,
        };
        let found = cubin.find(&name).expect("by its own symbol");
        assert_eq!(found.function, Some(function));
        for offset in (0..256).step_by(16).chain([function.size, u64::MAX]) {
            if let Ok(line) = cubin.line(&found, offset) {
                assert!(offset < found.size && line.line > 0);
                assert!(!line.file.is_empty() && line.file.len() <= 3 * 4096);
            }
        }
        // Without its index, another of the same name may be found.
        name.index = u32::MAX;
        let found = cubin.find(&name).and_then(|spot| spot.function);
        assert_eq!(found.expect("by its name").name, function.name);
    }
}

/// What a disassembler prints.
pub fn sass(data: &[u8]) {
    let sass = sass::parse(data);
    if let Some(mnemonic) = sass.at(b".text.k", 0x10) {
        assert!(!mnemonic.is_empty() && mnemonic.is_ascii());
    }
}
