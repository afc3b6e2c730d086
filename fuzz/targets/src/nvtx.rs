//! What a program says through NVTX: attribute structs of any size and strings of any bytes.

use std::ffi::CStr;

use parcagpu::nvtx::collector::{Describe, Message, blank, read_sized};
use parcagpu::nvtx::naming;
use parcagpu::nvtx::strings;
use parcagpu::nvtx::sys::{
    Chars, EventAttributes, MESSAGE_CHARS, MESSAGE_REGISTERED, MESSAGE_WIDE, ResourceAttributes,
    SyncAttributes, Wide,
};
use parcagpu::nvtx::text::{ROOM, TEXT_MAX};
use parcagpu_abi::status::Counter;

use crate::Bytes;

/// What a C program must do even to a hostile tool: terminate its strings, or make them long.
fn units<T: Copy + Default>(mut units: Vec<T>) -> Box<[T]> {
    if units.len() < TEXT_MAX {
        units.push(T::default());
    }
    // Exactly so long, so that a byte too many is noticed.
    units.into_boxed_slice()
}

/// Describes an event by what a program gave, and looks at the text that came of it.
fn describe(what: impl Describe) {
    let mut event = blank();
    let mut room = vec![0xff; ROOM];
    // SAFETY: callers give pointers to what is there, as NVTX's functions take it.
    let used = unsafe { what.describe(&mut event, &mut room) };
    assert!(used <= ROOM && event.flags <= 6);
    // SAFETY: messages are terminated, in the room or for ever.
    let text = unsafe { CStr::from_ptr(event.message) };
    assert!(text.count_bytes() <= TEXT_MAX);
    assert!(text.to_str().is_ok(), "texts are UTF-8");
}

/// Bytes of an attribute struct: at least version and size, and as many as the size says.
fn sized(bytes: &[u8]) -> Box<[u8]> {
    let mut bytes = bytes.to_vec();
    bytes.resize(bytes.len().max(4), 0);
    let claimed = usize::from(u16::from_le_bytes([bytes[2], bytes[3]]));
    if claimed > bytes.len() {
        let len = bytes.len() as u16;
        bytes[2..4].copy_from_slice(&len.to_le_bytes());
    }
    bytes.into_boxed_slice()
}

/// Puts the address of a real string where the type says that there is one.
fn point(bytes: &mut [u8], kind_at: usize, at: usize, chars: &[u8], wide: &[u32]) {
    let (Some(kind), true) = (bytes.get(kind_at..kind_at + 4), bytes.len() >= at + 8) else {
        return;
    };
    let kind = i32::from_le_bytes(kind.try_into().expect("four bytes"));
    let address = match kind {
        MESSAGE_CHARS => chars.as_ptr() as u64,
        MESSAGE_WIDE => wide.as_ptr() as u64,
        _ => return,
    };
    bytes[at..at + 8].copy_from_slice(&address.to_le_bytes());
}

/// The first byte says what the rest is.
pub fn nvtx(data: &[u8]) {
    // One handle that means something; the bytes may hit upon it.
    static KNOWN: std::sync::OnceLock<u64> = std::sync::OnceLock::new();
    let known = *KNOWN.get_or_init(|| strings::register(c"known").0);

    let mut data = Bytes(data);
    let what = data.u8();
    let len = usize::from(data.u8());
    let mut attributes = sized(data.take(len));
    let rest = data.0;
    let wide: Vec<u32> = rest
        .chunks_exact(4)
        .map(|c| u32::from_le_bytes(c.try_into().expect("four bytes")))
        .collect();
    let (chars, wide) = (units(rest.to_vec()), units(wide));
    match what % 8 {
        0 => describe(chars.as_ptr().cast::<std::ffi::c_char>() as Chars),
        1 => describe(wide.as_ptr() as Wide),
        2 => {
            let handle =
                u64::from_le_bytes(std::array::from_fn(|i| rest.get(i).copied().unwrap_or(0)));
            describe(Message(MESSAGE_REGISTERED, handle ^ known));
        }
        3 => {
            point(&mut attributes, 8, 8, &chars, &wide);
            // SAFETY: as many bytes as their size says.
            let sync = unsafe { read_sized(attributes.as_ptr().cast::<SyncAttributes>()) };
            assert!(sync.is_some());
        }
        4 => {
            point(&mut attributes, 16, 24, &chars, &wide);
            let resource = attributes.as_mut_ptr().cast::<ResourceAttributes>();
            // SAFETY: as many bytes as their size says, and strings where the type says so.
            unsafe { naming::resource(resource) };
        }
        _ => {
            point(&mut attributes, 32, 40, &chars, &wide);
            describe(attributes.as_ptr().cast::<EventAttributes>());
        }
    }
    let panics = parcagpu::status::block().get(Counter::Panics);
    assert_eq!(panics, 0, "a panic was stopped at a barrier");
}
