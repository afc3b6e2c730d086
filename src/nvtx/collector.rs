//! From a call to an event.
//!
//! Runs on the program's threads, in the middle of whatever they do. Order: the semaphore of
//! `nvtx_event_batch`, at the call site; then guard and panic barrier; then the event is written into the
//! thread's batch, with its text copied.

use parcagpu_abi::nvtx::NvtxEvent;
use parcagpu_abi::status::Counter;

use super::sys::{
    COLOR_ARGB, Chars, DomainHandle, EventAttributes, MESSAGE_CHARS, MESSAGE_REGISTERED,
    MESSAGE_WIDE, PAYLOAD_32_BITS, PAYLOADS, RangeId, SIZE_END, StringHandle, Wide,
};
use super::text;
use super::{batch, domains, launch, strings, timer};
use crate::entry::{self, Inside};
use crate::probes;
use crate::{clock, status};

/// Kinds of events, by the contract's numbers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u16)]
pub enum Kind {
    /// Opens a range of this thread.
    Push = 1,
    /// Closes its innermost one.
    Pop = 2,
    /// Opens a range that any thread may close.
    Start = 3,
    /// Closes it.
    End = 4,
    /// A moment.
    Mark = 5,
}

/// What an event is given by the call.
pub trait Describe {
    /// Completes `event`; a text is copied into `room`, of at least [`text::ROOM`] bytes. The bytes used.
    ///
    /// # Safety
    /// Pointers in `self` are null or what NVTX's functions take.
    unsafe fn describe(self, event: &mut NvtxEvent, room: &mut [u8]) -> usize;
}

/// Pops and ends say nothing.
pub struct Nothing;

impl Describe for Nothing {
    unsafe fn describe(self, _event: &mut NvtxEvent, _room: &mut [u8]) -> usize {
        0
    }
}

impl Describe for Chars {
    unsafe fn describe(self, event: &mut NvtxEvent, room: &mut [u8]) -> usize {
        // SAFETY: the caller's promise.
        let len = unsafe { text::copy_chars(self, room) };
        event.message = room.as_ptr().cast();
        len + 1
    }
}

impl Describe for Wide {
    unsafe fn describe(self, event: &mut NvtxEvent, room: &mut [u8]) -> usize {
        // SAFETY: the caller's promise.
        let len = unsafe { text::copy_wide(self, room) };
        event.message = room.as_ptr().cast();
        len + 1
    }
}

/// An event that says nothing.
pub fn blank() -> NvtxEvent {
    NvtxEvent {
        timestamp_ns: 0,
        tid: 0,
        correlation_id: 0,
        domain_id: 0,
        kind: 0,
        flags: 0,
        color: 0,
        device_id: 0,
        payload: 0,
        range_id: 0,
        message: c"".as_ptr(),
    }
}

/// A message by its type. Unknown types are no message.
#[derive(Clone, Copy, Debug)]
pub struct Message(pub i32, pub u64);

impl Describe for Message {
    unsafe fn describe(self, event: &mut NvtxEvent, room: &mut [u8]) -> usize {
        // SAFETY: the caller's promise; the type says what the value is.
        unsafe {
            match self.0 {
                MESSAGE_CHARS => (self.1 as Chars).describe(event, room),
                MESSAGE_WIDE => (self.1 as Wide).describe(event, room),
                MESSAGE_REGISTERED => {
                    event.message = strings::text(StringHandle(self.1));
                    0
                }
                _ => 0,
            }
        }
    }
}

/// As much of an attribute struct as its `size` says there is; the rest is zero.
///
/// # Safety
/// `from` is null or points to as many bytes as the `u16` at offset 2 says. `T` is made of numbers.
pub unsafe fn read_sized<T: Copy>(from: *const T) -> Option<T> {
    if from.is_null() {
        return None;
    }
    // SAFETY: every attribute struct begins with version and size.
    let size = unsafe { from.cast::<u16>().add(1).read_unaligned() };
    let len = usize::from(size).clamp(SIZE_END, size_of::<T>());
    // SAFETY: numbers may be zero.
    let mut copy: T = unsafe { std::mem::zeroed() };
    // SAFETY: `len` bytes are there by the struct's own word, and fit.
    unsafe {
        std::ptr::copy_nonoverlapping(from.cast::<u8>(), (&raw mut copy).cast::<u8>(), len);
    }
    Some(copy)
}

/// Whether the last field of `len` bytes at `offset` is there: half a field is none.
pub fn has(size: u16, offset: usize, len: usize) -> bool {
    offset + len <= usize::from(size)
}

impl Describe for *const EventAttributes {
    unsafe fn describe(self, event: &mut NvtxEvent, room: &mut [u8]) -> usize {
        // SAFETY: the caller's promise.
        let Some(a) = (unsafe { read_sized(self) }) else {
            return 0;
        };
        if a.color_type == COLOR_ARGB && has(a.size, 12, 4) {
            event.color = a.color;
        }
        if PAYLOADS.contains(&a.payload_type) && has(a.size, 24, 8) {
            event.flags = a.payload_type as u16;
            event.payload = match a.payload_type {
                PAYLOAD_32_BITS.. => a.payload & u64::from(u32::MAX),
                _ => a.payload,
            };
        }
        if !has(a.size, 40, 8) {
            return 0;
        }
        // SAFETY: as above.
        unsafe { Message(a.message_type, a.message).describe(event, room) }
    }
}

/// Takes an event, if somebody listens.
///
/// # Safety
/// Pointers in `what` are null or what NVTX's functions take.
#[inline(always)]
pub unsafe fn event(kind: Kind, domain: DomainHandle, range: RangeId, what: impl Describe) {
    if probes::nvtx_event_batch::enabled() {
        // SAFETY: the caller's promise.
        unsafe { take(kind, domain, range, what) };
    }
}

/// # Safety
/// As for [`event`].
#[inline(never)]
unsafe fn take(kind: Kind, domain: DomainHandle, range: RangeId, what: impl Describe) {
    let timestamp_ns = clock::monotonic_ns();
    // A signal handler that interrupts us, say: its event is lost, and counted.
    let Some(_inside) = Inside::enter() else {
        status::block().add(Counter::NvtxDropped, 1);
        return;
    };
    entry::quick_barrier((), || {
        timer::ensure();
        let (correlation_id, device_id) = launch::current();
        let event = NvtxEvent {
            timestamp_ns,
            correlation_id,
            domain_id: domains::id(domain),
            kind: kind as u16,
            device_id,
            range_id: range.0,
            ..blank()
        };
        // SAFETY: the caller's promise.
        batch::add(event, |event, room| unsafe { what.describe(event, room) });
    });
}

#[cfg(test)]
mod tests {
    use super::{Describe, EventAttributes, blank, read_sized};
    use crate::nvtx::strings;
    use crate::nvtx::text::ROOM;
    use std::ffi::CStr;

    const FULL: EventAttributes = EventAttributes {
        version: 3,
        size: 48,
        category: 1,
        color_type: 1,
        color: 0x11_22_33_44,
        payload_type: 5,
        reserved: 0,
        payload: 0xdead_beef_ffff_fffe,
        message_type: 1,
        pad: 0,
        message: 0,
    };

    fn described(attributes: &EventAttributes) -> (u32, u16, u64, String) {
        let mut event = blank();
        let mut room = vec![0xff; ROOM];
        // SAFETY: tests give terminated strings, and sizes with so many bytes behind them.
        unsafe { (&raw const *attributes).describe(&mut event, &mut room) };
        // SAFETY: terminated, in the room or for ever.
        let text = unsafe { CStr::from_ptr(event.message) };
        (
            event.color,
            event.flags,
            event.payload,
            text.to_str().unwrap().to_owned(),
        )
    }

    fn with_text(text: &CStr) -> EventAttributes {
        EventAttributes {
            message: text.as_ptr() as u64,
            ..FULL
        }
    }

    #[test]
    fn everything_is_read() {
        let text = "words".to_owned();
        assert_eq!(
            described(&with_text(c"words")),
            (0x11_22_33_44, 5, 0xffff_fffe, text)
        );
        let registered = EventAttributes {
            message_type: 3,
            message: strings::register(c"known").0,
            payload_type: 3,
            ..FULL
        };
        let text = "known".to_owned();
        assert_eq!(
            described(&registered),
            (0x11_22_33_44, 3, 0xdead_beef_ffff_fffe, text)
        );
    }

    #[test]
    fn the_size_is_respected() {
        let text = || String::from("w");
        let of = |size| {
            described(&EventAttributes {
                size,
                ..with_text(c"w")
            })
        };
        let nothing = (0, 0, 0, String::new());
        for size in [0, 1, 4, 8, 12, 15] {
            assert_eq!(of(size), nothing, "{size}");
        }
        assert_eq!(of(16), (0x11_22_33_44, 0, 0, String::new()));
        assert_eq!(of(32), (0x11_22_33_44, 5, 0xffff_fffe, String::new()));
        assert_eq!(of(47), (0x11_22_33_44, 5, 0xffff_fffe, String::new()));
        for size in [48, 49, 56, u16::MAX] {
            assert_eq!(of(size), (0x11_22_33_44, 5, 0xffff_fffe, text()), "{size}");
        }
    }

    #[test]
    fn unknown_types_are_absent() {
        for kind in [0, -1, 7, 0xDFBD_0009_u32.cast_signed(), i32::MAX, i32::MIN] {
            let odd = EventAttributes {
                color_type: kind,
                payload_type: kind,
                message_type: if kind == 0 { 0 } else { 99 },
                ..with_text(c"w")
            };
            assert_eq!(described(&odd), (0, 0, 0, String::new()), "{kind}");
        }
    }

    #[test]
    fn null_is_nothing() {
        // SAFETY: null is allowed.
        assert!(unsafe { read_sized::<EventAttributes>(std::ptr::null()) }.is_none());
        assert_eq!(described(&EventAttributes { message: 0, ..FULL }).3, "");
    }
}
