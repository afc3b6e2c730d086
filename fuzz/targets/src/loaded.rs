//! Symbol tables of a library in memory, as the loader mapped it.

use std::cell::OnceCell;
use std::os::fd::AsRawFd;

use parcagpu_interpose::foreign::Library;

use crate::Bytes;
use crate::process::memory_file;

/// Bytes of the library that is looked at.
const SIZE: usize = 16 << 10;
/// Where the bytes under test begin: behind a header that is good.
const START: usize = 256;

struct Mapped {
    start: *mut u8,
    library: Library,
}

fn map() -> Mapped {
    let file = memory_file();
    file.set_len(SIZE as u64).expect("a file in memory");
    // SAFETY: a fresh mapping of the whole file, kept for ever.
    let start = unsafe {
        libc::mmap(
            std::ptr::null_mut(),
            SIZE,
            libc::PROT_READ | libc::PROT_WRITE,
            libc::MAP_SHARED,
            file.as_raw_fd(),
            0,
        )
    };
    assert_ne!(start, libc::MAP_FAILED);
    let mut head = vec![0u8; START];
    head[..6].copy_from_slice(b"\x7fELF\x02\x01");
    head[32..40].copy_from_slice(&64u64.to_le_bytes());
    head[54..56].copy_from_slice(&56u16.to_le_bytes());
    head[56..58].copy_from_slice(&1u16.to_le_bytes());
    head[64..68].copy_from_slice(&1u32.to_le_bytes());
    head[64 + 40..64 + 48].copy_from_slice(&(SIZE as u64).to_le_bytes());
    let start = start.cast::<u8>();
    // SAFETY: the head is shorter than the mapping.
    unsafe { std::ptr::copy_nonoverlapping(head.as_ptr(), start, head.len()) };
    let library = Library::open(start as usize, start as usize + START).expect("its head is good");
    Mapped { start, library }
}

/// The dynamic section and whatever it points to.
pub fn symbols(data: &[u8]) {
    look(data);
}

/// The same; the address of `cuInit` if there is one.
pub fn look(data: &[u8]) -> Option<usize> {
    thread_local! {
        static MAPPED: OnceCell<Mapped> = const { OnceCell::new() };
    }
    MAPPED.with(|mapped| {
        let mapped = mapped.get_or_init(map);
        let mut bytes = Bytes(data);
        let bytes = bytes.take(SIZE - START);
        // SAFETY: inside the mapping, which only this thread uses.
        unsafe {
            let to = mapped.start.add(START);
            std::ptr::copy_nonoverlapping(bytes.as_ptr(), to, bytes.len());
            std::ptr::write_bytes(to.add(bytes.len()), 0, SIZE - START - bytes.len());
        }
        mapped.library.calls_gmon_start();
        mapped.library.function("");
        mapped.library.function("cuInit")
    })
}
