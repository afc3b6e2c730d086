//! What the command reads of other processes: the files that they map, lines of /proc, the status block.

use std::cell::OnceCell;
use std::fs::File;
use std::os::fd::FromRawFd;
use std::os::unix::fs::FileExt;

use parcagpu_abi::probe::PROVIDER;
use parcagpu_cli::discover::parse_mapping;
use parcagpu_cli::elf::{parse_notes, read_image};
use parcagpu_cli::symbols::jit::Jit;

use crate::Bytes;

pub(crate) fn memory_file() -> File {
    // SAFETY: the name is terminated; a descriptor comes back.
    let descriptor = unsafe { libc::memfd_create(c"fuzzed".as_ptr(), libc::MFD_CLOEXEC) };
    assert!(descriptor >= 0, "a file in memory");
    // SAFETY: it is open, and nobody else's.
    unsafe { File::from_raw_fd(descriptor) }
}

/// A mapped file, and its notes alone.
pub fn elf(data: &[u8]) {
    thread_local! {
        static FILE: OnceCell<File> = const { OnceCell::new() };
    }
    FILE.with(|file| {
        let file = file.get_or_init(memory_file);
        file.set_len(0).expect("a file in memory");
        file.write_all_at(data, 0).expect("a file in memory");
        if let Some(image) = read_image(file) {
            assert!(!image.notes.is_empty());
            let own = image.has_provider(PROVIDER);
            assert!(own || image.note(PROVIDER, "error").is_none());
            for offset in [0, 1, 0x1000, u64::MAX] {
                image.bias(0x7f00_0000_0000, offset);
            }
        }
    });
    for base in [0, u64::MAX] {
        let notes = parse_notes(data, base);
        // A note has 12 bytes of sizes, 8 of owner and 24 of addresses at least.
        assert!(notes.len() <= data.len() / 44);
    }
}

/// The map that a JIT writes of the functions it made.
pub fn jit(data: &[u8]) {
    let mut jit = Jit::default();
    for line in data.split(|byte| *byte == b'\n') {
        jit.line(line);
    }
    for address in [0, 0x1000, 0x7f00_0000_0010, u64::MAX] {
        jit.find(address);
    }
}

/// Lines of a table of mappings.
pub fn maps(data: &[u8]) {
    let text = String::from_utf8_lossy(data);
    for line in text.lines() {
        if let Some(mapping) = parse_mapping(line) {
            assert_ne!(mapping.file.1, 0);
            assert!(line.contains(&mapping.path));
        }
        parcagpu_interpose::foreign::is_mapping(line);
    }
}

/// A status block.
pub fn status(data: &[u8]) {
    // Most blocks are whole and of our version: the bytes are what follows.
    let mut data = Bytes(data);
    let mut bytes = data.0.to_vec();
    if data.u8() % 4 != 0 {
        let len = u32::try_from(size_of::<parcagpu_abi::status::Status>()).expect("4 KiB at most");
        let mut block = parcagpu_abi::status::MAGIC.to_le_bytes().to_vec();
        block.extend(parcagpu_abi::status::VERSION.to_le_bytes());
        block.extend(len.to_le_bytes());
        block.extend(data.0);
        bytes = block;
    }
    let Ok(status) = parcagpu_abi::status::parse(&bytes) else {
        return;
    };
    parcagpu_cli::status::block_text(&status, true, &mut |_, value| assert!(value.len() < 4096));
    parcagpu_cli::status::block_json(&status, &mut |_, value| {
        assert!(serde_json::to_string(&value).is_ok());
    });
}
