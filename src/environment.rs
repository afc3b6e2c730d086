//! Variables that we set in this process for libraries that come later, beside threads that may be
//! reading the environment.
//!
//! `setenv` moves and frees the array while `getenv` on another thread walks it. Here the array is
//! copied, and the copy takes its place by one exchange; neither the old array nor the text of a
//! variable is ever freed. A thread that calls `setenv` itself at the same moment has the race with
//! everybody's `getenv` that it has without us.

use std::ffi::{CString, OsStr, c_char};
use std::os::unix::ffi::OsStrExt;
use std::sync::atomic::{AtomicPtr, Ordering};

unsafe extern "C" {
    static mut environ: *mut *mut c_char;
}

/// How often the program may get in between.
const TRIES: usize = 16;

/// Every array that was put in place, the last one first: each has its predecessor behind its end. So a
/// leak checker finds them.
static LAST: AtomicPtr<*mut c_char> = AtomicPtr::new(std::ptr::null_mut());

/// A variable that we set.
pub struct Ours(AtomicPtr<c_char>);

impl Ours {
    /// Not set.
    pub const fn new() -> Self {
        Self(AtomicPtr::new(std::ptr::null_mut()))
    }

    /// Sets the variable, unless the program has one of that name.
    pub fn set(&self, name: &str, value: &OsStr) {
        if std::env::var_os(name).is_some() {
            return;
        }
        let text = [name.as_bytes(), b"=", value.as_bytes()].concat();
        let Ok(text) = CString::new(text) else {
            return;
        };
        let text = text.into_raw();
        self.0.store(text, Ordering::Release);
        exchange(|variables| variables.push(text));
    }

    /// Takes it away again, if it is still there.
    pub fn withdraw(&self) {
        let text = self.0.load(Ordering::Acquire);
        if !text.is_null() && is_there(text) {
            exchange(|variables| variables.retain(|variable| *variable != text));
        }
    }
}

impl Default for Ours {
    fn default() -> Self {
        Self::new()
    }
}

fn place() -> &'static AtomicPtr<*mut c_char> {
    // SAFETY: the C library's variable, aligned and always there; others write it as a whole, too.
    unsafe { AtomicPtr::from_ptr(&raw mut environ) }
}

/// The variables in an array, which may be null.
fn variables(array: *mut *mut c_char) -> impl Iterator<Item = *mut c_char> {
    // SAFETY: the environment's array ends with a null pointer.
    let read = move |i| unsafe { AtomicPtr::from_ptr(array.add(i)).load(Ordering::Acquire) };
    let most = if array.is_null() { 0 } else { usize::MAX };
    (0..most)
        .map(read)
        .take_while(|variable| !variable.is_null())
}

fn is_there(text: *mut c_char) -> bool {
    variables(place().load(Ordering::Acquire)).any(|variable| variable == text)
}

fn exchange(change: impl Fn(&mut Vec<*mut c_char>)) {
    for _ in 0..TRIES {
        let old = place().load(Ordering::Acquire);
        let before: Vec<*mut c_char> = variables(old).collect();
        let mut array = before.clone();
        change(&mut array);
        array.push(std::ptr::null_mut());
        array.push(LAST.load(Ordering::Acquire).cast());
        let new = Box::into_raw(array.into_boxed_slice());
        let exchanged =
            place().compare_exchange(old, new.cast(), Ordering::AcqRel, Ordering::Acquire);
        if exchanged.is_ok() {
            LAST.store(new.cast(), Ordering::Release);
            return carry_over(old, &before, new.cast());
        }
        // SAFETY: made above and seen by nobody.
        drop(unsafe { Box::from_raw(new) });
    }
}

/// What somebody replaced in the old array while it was copied.
fn carry_over(old: *mut *mut c_char, before: &[*mut c_char], new: *mut *mut c_char) {
    for (i, was) in before.iter().enumerate() {
        // SAFETY: the old array has as many entries, and is not freed by us.
        let now = unsafe { AtomicPtr::from_ptr(old.add(i)).load(Ordering::Acquire) };
        if now == *was || now.is_null() {
            continue;
        }
        if let Some(at) = variables(new).position(|variable| variable == *was) {
            // SAFETY: an entry of the new array.
            unsafe { AtomicPtr::from_ptr(new.add(at)).store(now, Ordering::Release) };
        }
    }
}

#[cfg(test)]
mod tests {
    use super::Ours;
    use std::ffi::{CStr, OsStr};
    use std::sync::atomic::{AtomicBool, Ordering};

    fn get(name: &CStr) -> Option<Vec<u8>> {
        // SAFETY: a terminated name; the value is copied at once.
        unsafe {
            let value = libc::getenv(name.as_ptr());
            (!value.is_null()).then(|| CStr::from_ptr(value).to_bytes().to_vec())
        }
    }

    // One test, since there is one environment.
    #[test]
    fn readers_find_every_variable_at_any_time() {
        let number = |i| std::ffi::CString::new(format!("PARCAGPUTEST_{i}")).unwrap();
        for i in 0..200 {
            // From here on the array is one that setenv would move and free.
            // SAFETY: threads of other tests read it through std, which keeps them out; no other of this test runs.
            unsafe { std::env::set_var(format!("PARCAGPUTEST_{i}"), "value") };
        }
        static DONE: AtomicBool = AtomicBool::new(false);
        std::thread::scope(|scope| {
            for _ in 0..3 {
                scope.spawn(|| {
                    while !DONE.load(Ordering::Relaxed) {
                        for i in [0, 100, 199] {
                            assert_eq!(get(&number(i)).as_deref(), Some(&b"value"[..]));
                        }
                    }
                });
            }
            for i in 0..2000 {
                let ours = Ours::new();
                ours.set("PARCAGPUTEST_OURS", OsStr::new(&i.to_string()));
                assert_eq!(
                    get(c"PARCAGPUTEST_OURS"),
                    Some(i.to_string().into_bytes()),
                    "set"
                );
                ours.withdraw();
                assert_eq!(get(c"PARCAGPUTEST_OURS"), None);
            }
            DONE.store(true, Ordering::Relaxed);
        });
        // What the program has stays its own.
        let ours = Ours::new();
        ours.set("PARCAGPUTEST_7", OsStr::new("other"));
        ours.withdraw();
        assert_eq!(get(c"PARCAGPUTEST_7").as_deref(), Some(&b"value"[..]));
        // setenv goes on from our array, and what it replaced is not ours to take away.
        static LAST_ONE: Ours = Ours::new();
        let ours = &LAST_ONE;
        ours.set("PARCAGPUTEST_OURS", OsStr::new("1"));
        // SAFETY: as above; the other threads have ended.
        unsafe { std::env::set_var("PARCAGPUTEST_OURS", "2") };
        ours.withdraw();
        assert_eq!(get(c"PARCAGPUTEST_OURS").as_deref(), Some(&b"2"[..]));
    }
}
