//! Registered strings: texts that live as long as the process, so that events point to them.

use std::ffi::{CStr, CString, c_char};
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};

use super::process;
use super::sys::StringHandle;
use super::table::Table;

const MOST: u32 = 1 << 20;
/// Bytes of all texts together.
const BYTES_MAX: usize = 64 << 20;
const TAG: u64 = 0x0d0b_0000;

struct Registered {
    text: CString,
    /// The next tool's handle.
    theirs: AtomicU64,
}

static STRINGS: Table<Registered> = Table::new(MOST);
static BYTES: AtomicUsize = AtomicUsize::new(0);

/// What stands for a handle that is none of ours.
const UNKNOWN: &CStr = c"(unknown string)";

fn find(handle: StringHandle) -> Option<&'static Registered> {
    (handle.0 >> 32 == TAG)
        .then(|| STRINGS.get(handle.0 as u32))
        .flatten()
}

/// A client registers a string. Past the bound the handle stands for an unknown string.
pub fn register(text: &CStr) -> StringHandle {
    let fits = BYTES.load(Ordering::Relaxed) + text.count_bytes() <= BYTES_MAX;
    let entry = || Registered {
        text: text.to_owned(),
        theirs: AtomicU64::new(0),
    };
    let index = fits.then(|| STRINGS.push(entry())).flatten();
    if index.is_some() {
        BYTES.fetch_add(text.count_bytes(), Ordering::Relaxed);
    } else {
        static TOLD: AtomicBool = AtomicBool::new(false);
        process::report_once(
            &TOLD,
            "the program registers too many NVTX strings; further ones are shown as unknown",
        );
    }
    StringHandle(TAG << 32 | u64::from(index.unwrap_or(u32::MAX)))
}

/// The text of a handle, readable for ever.
pub fn text(handle: StringHandle) -> *const c_char {
    find(handle).map_or(UNKNOWN, |entry| &entry.text).as_ptr()
}

/// Keeps the next tool's handle beside ours.
pub fn keep_theirs(ours: StringHandle, theirs: StringHandle) {
    if let Some(entry) = find(ours) {
        entry.theirs.store(theirs.0, Ordering::Release);
    }
}

/// The next tool's handle, null for what we do not know.
pub fn theirs(ours: StringHandle) -> StringHandle {
    StringHandle(find(ours).map_or(0, |entry| entry.theirs.load(Ordering::Acquire)))
}

#[cfg(test)]
mod tests {
    use super::{keep_theirs, register, text, theirs};
    use crate::nvtx::sys::StringHandle;
    use std::ffi::CStr;

    #[test]
    fn handles_stand_for_their_texts() {
        let (a, b) = (register(c"a"), register(c"b"));
        keep_theirs(b, StringHandle(9));
        // SAFETY: texts are terminated and live for ever.
        let of = |handle| unsafe { CStr::from_ptr(text(handle)) };
        assert_eq!((of(a), of(b)), (c"a", c"b"));
        assert_eq!((theirs(a), theirs(b)), (StringHandle(0), StringHandle(9)));
        assert_eq!(of(StringHandle(0)), c"(unknown string)");
        assert_eq!(of(StringHandle(u64::MAX)), c"(unknown string)");
    }
}
