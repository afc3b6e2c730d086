//! Machine code that a program gives to the driver: cubins and fat binaries.

use parcagpu::cubin::fatbin;
use parcagpu::cubin::image::{self, Kind};
use parcagpu::cubin::memory::IMAGE_MAX;

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

/// The cubins of a fat binary, and the one that each GPU gets.
pub fn fatbin(data: &[u8]) {
    let len = fatbin::len(data);
    let Ok(cubins) = fatbin::cubins(data) else {
        return;
    };
    let len = len.expect("what has entries has a length");
    for cubin in &cubins {
        let end = cubin.offset.checked_add(cubin.len).expect("checked");
        assert!(cubin.offset >= 16 && cubin.len >= 64 && end <= len);
        let start = usize::try_from(cubin.offset).expect("in memory");
        assert!(data[start..].starts_with(b"\x7fELF"));
    }
    for sm in [0, 75, 89, 90, 103, 121, u32::MAX] {
        if let Some(chosen) = fatbin::chosen(&cubins, sm) {
            assert!(chosen.sm / 10 == sm / 10 && chosen.sm <= sm);
            assert!(cubins.contains(&chosen));
        }
    }
}
