//! Whether the first bytes of a function may be replaced by a jump.
//!
//! The engines relocate what they overwrite, but none of them looks at the
//! rest of the body: a branch back into the overwritten bytes would run the
//! middle of our jump. That, and what they get wrong quietly, is refused here.

use std::fmt;

use crate::image::Image;
use crate::symbols::Function;

mod aarch64;
#[cfg(target_arch = "x86_64")]
mod x86_64;

#[cfg(target_arch = "aarch64")]
use aarch64::check_body;
#[cfg(target_arch = "x86_64")]
use x86_64::check_body;

/// A longer body is looked at only so far: branches back over more are not
/// made by compilers to reach an entry.
const MOST_CODE: usize = 1 << 16;
/// How many first bytes are compared with the file.
const COMPARED: usize = 16;

/// Why a function is left alone.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Refusal {
    /// The library does not export it.
    Missing,
    /// Its address is chosen by a resolver when the program binds to it.
    Indirect,
    /// Shorter than the jump; the size in bytes.
    TooShort(usize),
    /// It starts with a jump: another's hook, or a stub for another function.
    JumpAtStart,
    /// Its body branches to its first bytes.
    BranchIntoStart,
    /// A debugger's breakpoint is in its first bytes.
    Breakpoint,
    /// Its first bytes are not the file's: somebody else changed them.
    Changed,
    /// Its code cannot be read.
    Unreadable,
    /// It is the same code as a function that is hooked already.
    SameAs(&'static str),
    /// The engine refused; its words.
    Engine(String),
}

impl fmt::Display for Refusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Refusal::Missing => f.write_str("not exported"),
            Refusal::Indirect => f.write_str("chosen by a resolver"),
            Refusal::TooShort(size) => write!(f, "too short ({size} bytes)"),
            Refusal::JumpAtStart => f.write_str("starts with a jump"),
            Refusal::BranchIntoStart => f.write_str("branches into its first bytes"),
            Refusal::Breakpoint => f.write_str("breakpoint in its first bytes"),
            Refusal::Changed => f.write_str("already changed by somebody else"),
            Refusal::Unreadable => f.write_str("code cannot be read"),
            Refusal::SameAs(name) => write!(f, "same code as {name}"),
            Refusal::Engine(words) => f.write_str(words),
        }
    }
}

/// Says whether an engine that overwrites at least `need` bytes may hook the
/// function.
pub(crate) fn check(image: &Image, function: Function, need: usize) -> Result<(), Refusal> {
    if function.indirect {
        return Err(Refusal::Indirect);
    }
    if function.size < need {
        return Err(Refusal::TooShort(function.size));
    }
    let len = function.size.min(MOST_CODE);
    let body = image
        .code(function.address, len)
        .ok_or(Refusal::Unreadable)?;
    let start = &body[..len.min(COMPARED)];
    match image.on_disk(function.address, start.len()) {
        Some(file) if file == start => {}
        Some(file) => {
            let broken = start
                .iter()
                .zip(&file)
                .any(|(now, was)| now != was && is_trap(*now));
            return Err(if broken {
                Refusal::Breakpoint
            } else {
                Refusal::Changed
            });
        }
        None if start.iter().copied().any(is_trap) => return Err(Refusal::Breakpoint),
        None => {}
    }
    check_body(&body, function.address as u64, need)
}

/// A byte that debuggers write over code on x86-64.
fn is_trap(byte: u8) -> bool {
    cfg!(target_arch = "x86_64") && byte == 0xcc
}

#[cfg(all(test, target_arch = "x86_64"))]
mod tests {
    use std::ffi::{CStr, c_void};

    use super::*;
    use crate::image::Place;
    use crate::maps::page_size;
    use crate::symbols::Symbols;

    fn address_of(name: &CStr) -> usize {
        // SAFETY: a look-up by name.
        unsafe { libc::dlsym(libc::RTLD_DEFAULT, name.as_ptr()) as usize }
    }

    /// The C library of this process, as the loader has it.
    fn c_library() -> Image {
        unsafe extern "C" {
            fn dladdr1(
                address: *const c_void,
                info: *mut libc::Dl_info,
                extra: *mut *const [usize; 3],
                flags: i32,
            ) -> i32;
        }
        const RTLD_DL_LINKMAP: i32 = 2;
        let mut entry: *const [usize; 3] = std::ptr::null();
        // SAFETY: fills plain data, and gives the loader's entry for the
        // library, which begins with base, name and dynamic section.
        let [base, _, dynamic] = unsafe {
            let mut info: libc::Dl_info = std::mem::zeroed();
            let inside = address_of(c"l64a") as *const c_void;
            assert_ne!(
                dladdr1(inside, &raw mut info, &raw mut entry, RTLD_DL_LINKMAP),
                0
            );
            entry.read()
        };
        Image::open(Place { base, dynamic }).expect("the C library is mapped")
    }

    #[test]
    fn functions_of_the_c_library() {
        let image = c_library();
        let symbols = Symbols::of(&image).expect("symbols");
        for name in [c"l64a", c"getenv", c"qsort", c"fopen"] {
            let found = symbols.function(name.to_str().expect("ASCII"));
            let found = found.expect("exported");
            assert_eq!(found.address, address_of(name));
            assert_eq!(check(&image, found, 5), Ok(()), "{name:?}");
        }
        let chosen = symbols.function("memcpy").expect("exported");
        assert_eq!(check(&image, chosen, 5), Err(Refusal::Indirect));
        assert_eq!(symbols.function("no_such_function"), None);
    }

    #[test]
    fn what_somebody_changed_is_left_alone() {
        let image = c_library();
        let symbols = Symbols::of(&image).expect("symbols");
        // Seldom used, so nobody runs into the bytes written.
        let function = symbols.function("sethostid").expect("exported");
        assert_eq!(check(&image, function, 5), Ok(()));
        let first = function.address as *mut u8;
        let page = (function.address & !(page_size() - 1)) as *mut c_void;
        let rx = libc::PROT_READ | libc::PROT_EXEC;
        // SAFETY: the pages of that function, for the two bytes' time.
        unsafe {
            let size = 2 * page_size();
            assert_eq!(libc::mprotect(page, size, rx | libc::PROT_WRITE), 0);
            let byte = first.read();
            first.write(0xcc);
            assert_eq!(check(&image, function, 5), Err(Refusal::Breakpoint));
            first.write(byte ^ 1);
            assert_eq!(check(&image, function, 5), Err(Refusal::Changed));
            first.write(byte);
            assert_eq!(libc::mprotect(page, size, rx), 0);
        }
        assert_eq!(check(&image, function, 5), Ok(()));
    }
}
