//! The loader's meeting point with debuggers (`r_debug`, `r_brk`).
//!
//! ld.so calls the empty function at `r_brk` before and after it changes its
//! lists, with its lock held; old ones do so before the new libraries are
//! relocated. We write one jump over that function. It is never taken back.

use std::ffi::{CStr, c_char, c_int};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, Ordering};

use super::objects::{self, Objects, Scope, Seen};
use super::{ACTIVE, Way};
use crate::image::Place;

const DT_DEBUG: usize = 21;
const RT_CONSISTENT: c_int = 0;
/// Bounds for walks over the loader's lists.
const MOST_NAMESPACES: usize = 64;
const MOST_LIBRARIES: usize = 1 << 16;

/// `struct r_debug_extended` of glibc's `<link.h>`.
#[repr(C)]
struct Debug {
    version: c_int,
    map: *const LinkMap,
    brk: usize,
    state: c_int,
    loader_base: usize,
    /// From version 2 on: the next namespace.
    next: *const Debug,
}

/// The public part of `struct link_map`.
#[repr(C)]
struct LinkMap {
    base: usize,
    name: *const c_char,
    dynamic: usize,
    next: *const LinkMap,
    previous: *const LinkMap,
}

/// The loader's structure, by the entry that it fills in the program's own
/// dynamic section.
fn debug() -> Option<*const Debug> {
    let mut at = objects::program_dynamic()? as *const [usize; 2];
    loop {
        // SAFETY: the program's dynamic section, which ends with tag 0.
        let [tag, value] = unsafe { at.read() };
        match tag {
            0 => return None,
            DT_DEBUG => return (value != 0).then_some(value as *const Debug),
            _ => at = at.wrapping_add(1),
        }
    }
}

/// Where ld.so itself is mapped.
pub(super) fn loader_base() -> Option<usize> {
    // SAFETY: set by the loader before any code of ours runs, never changed.
    debug().map(|debug| unsafe { (*debug).loader_base })
}

/// Matching libraries of all namespaces; `None` while a list is changing.
///
/// Only to be called with the loader's lock held.
pub(super) fn objects(rule_for: impl Fn(&[u8]) -> Option<usize>) -> Option<Objects> {
    let mut objects = Objects::new(Scope::All);
    let mut debug = debug()?;
    for index in 0..MOST_NAMESPACES {
        // SAFETY: the loader's structures, stable while its lock is held;
        // `next` is there from version 2 on.
        let (namespace, next) = unsafe {
            let next = ((*debug).version >= 2).then(|| (*debug).next);
            ((&(*debug).state, (*debug).map), next)
        };
        if *namespace.0 != RT_CONSISTENT {
            return None;
        }
        walk(namespace.1, index == 0, &rule_for, &mut objects);
        match next {
            Some(next) if !next.is_null() => debug = next,
            _ => break,
        }
    }
    Some(objects)
}

fn walk(
    mut map: *const LinkMap,
    base: bool,
    rule_for: &impl Fn(&[u8]) -> Option<usize>,
    objects: &mut Objects,
) {
    for _ in 0..MOST_LIBRARIES {
        if map.is_null() {
            return;
        }
        // SAFETY: an entry of the loader's list, stable while its lock is held.
        let entry = unsafe { &*map };
        map = entry.next;
        if entry.name.is_null() {
            continue;
        }
        // SAFETY: the loader's string, kept while the library is mapped.
        let name = unsafe { CStr::from_ptr(entry.name) }.to_bytes();
        let Some(rule) = rule_for(name) else { continue };
        objects.add(Seen {
            place: Place {
                base: entry.base,
                dynamic: entry.dynamic,
            },
            rule,
            name,
            base,
            code: code_at(entry.base),
        });
    }
}

/// Executable segments by the ELF header, which a shared library has at its
/// base address.
fn code_at(base: usize) -> [(usize, usize); 8] {
    if base == 0 {
        return Seen::code_of(0, &[]);
    }
    // SAFETY: shared libraries are linked at 0, so that the base is where
    // their file's first page, with header and program headers, is mapped.
    unsafe {
        let header = &*(base as *const libc::Elf64_Ehdr);
        if header.e_ident[..4] != *b"\x7fELF" {
            return Seen::code_of(0, &[]);
        }
        let first = (base + header.e_phoff as usize) as *const libc::Elf64_Phdr;
        let headers = std::slice::from_raw_parts(first, usize::from(header.e_phnum));
        Seen::code_of(base, headers)
    }
}

/// ld.so called its debugger's function.
extern "C" fn on_rendezvous() {
    // SAFETY: a static, or null.
    if let Some(watch) = unsafe { ACTIVE.load(Ordering::Acquire).as_ref() } {
        watch.look(Way::Rendezvous);
    }
}

static TRIED: AtomicBool = AtomicBool::new(false);
static FAILURE: OnceLock<String> = OnceLock::new();

/// Whether `arm` did what it can.
pub(super) fn was_tried() -> bool {
    TRIED.load(Ordering::Relaxed)
}

/// Why the rendezvous is not ours, if it was wanted.
pub(super) fn failure() -> Option<String> {
    FAILURE.get().cloned()
}

/// Sends calls of `r_brk` to us, if that can be done safely. Once a process.
pub(super) fn arm() {
    if TRIED.swap(true, Ordering::Relaxed) {
        return;
    }
    // SAFETY: set by the loader before any code of ours runs.
    let brk = debug().map(|debug| unsafe { (*debug).brk });
    let result = brk
        .filter(|&brk| brk != 0)
        .ok_or_else(|| "the loader has no rendezvous".to_owned())
        .and_then(arm_at);
    if let Err(why) = result {
        // Nobody else gets here.
        let _ = FAILURE.set(why);
    }
}

#[cfg(target_arch = "x86_64")]
fn arm_at(brk: usize) -> Result<(), String> {
    let handler = on_rendezvous as *const () as usize;
    if !brk.is_multiple_of(16) || !std::arch::is_x86_feature_detected!("cmpxchg16b") {
        return Err("the loader's rendezvous cannot be changed at once".to_owned());
    }
    // SAFETY: code of ld.so, always mapped; the function is aligned to 16.
    let old: [u8; 16] = unsafe { (brk as *const [u8; 16]).read() };
    let new = patched(old, brk, handler)
        .ok_or("the loader's rendezvous is in use by a debugger, or too far away")?;
    crate::permit::check(brk)?;
    // SAFETY: `patched` found nothing but a return and padding there.
    unsafe { write(brk, old, new) }
}

/// Without a tested way to change running code elsewhere, other namespaces are
/// not seen.
#[cfg(not(target_arch = "x86_64"))]
fn arm_at(_brk: usize) -> Result<(), String> {
    let _ = on_rendezvous;
    Err("the loader's rendezvous is used on x86-64 only".to_owned())
}

/// The first 16 bytes of `r_brk` with its `ret` replaced by a jump; `None` if
/// they are not what glibc has there (a debugger's breakpoint, for one).
#[cfg(target_arch = "x86_64")]
fn patched(old: [u8; 16], brk: usize, handler: usize) -> Option<[u8; 16]> {
    const ENDBR: [u8; 4] = [0xf3, 0x0f, 0x1e, 0xfa];
    let ret = if old.starts_with(&ENDBR) { 4 } else { 0 };
    if old[ret] != 0xc3 || !is_padding(&old[ret + 1..], 4) {
        return None;
    }
    let from = brk + ret + 5;
    let distance = i32::try_from(handler as i64 - from as i64).ok()?;
    let mut new = old;
    new[ret] = 0xe9;
    new[ret + 1..ret + 5].copy_from_slice(&distance.to_le_bytes());
    Some(new)
}

/// Whether no code is in the first `need` bytes: no-ops after a return, or traps.
#[cfg(target_arch = "x86_64")]
fn is_padding(bytes: &[u8], need: usize) -> bool {
    use iced_x86::{Decoder, DecoderOptions, Mnemonic};
    // The last no-op may be cut off; its tail is zeros.
    let mut padded = [0; 32];
    padded[..bytes.len()].copy_from_slice(bytes);
    let mut decoder = Decoder::new(64, &padded, DecoderOptions::NONE);
    while decoder.position() < need {
        if !matches!(decoder.decode().mnemonic(), Mnemonic::Nop | Mnemonic::Int3) {
            return false;
        }
    }
    true
}

/// Changes the 16 bytes at once: another thread may be about to run them, as
/// `dlmopen` is called without the loader's lock.
///
/// # Safety
/// `at` is 16-byte aligned code that `permit` allows to change, and any mix of
/// old and new instructions is harmless.
#[cfg(target_arch = "x86_64")]
unsafe fn write(at: usize, old: [u8; 16], new: [u8; 16]) -> Result<(), String> {
    let size = crate::maps::page_size();
    let page = (at & !(size - 1)) as *mut libc::c_void;
    let rx = libc::PROT_READ | libc::PROT_EXEC;
    // SAFETY: a page of ld.so's code, executable all the time for the threads
    // that run in it now; its protection is put back.
    unsafe {
        if libc::mprotect(page, size, rx | libc::PROT_WRITE) != 0 {
            let error = std::io::Error::last_os_error();
            return Err(format!(
                "the loader's rendezvous cannot be changed: {error}"
            ));
        }
        exchange(at, u128::from_le_bytes(old), u128::from_le_bytes(new));
        libc::mprotect(page, size, rx);
    }
    Ok(())
}

/// Writes `new` to `at` if `old` is there. In assembly, since the standard
/// library's function needs a library call in unoptimised builds.
///
/// # Safety
/// `at` is 16-byte aligned, writable, and the processor has the instruction.
#[cfg(target_arch = "x86_64")]
unsafe fn exchange(at: usize, old: u128, new: u128) {
    // SAFETY: promised by our caller; rbx, which the compiler keeps for itself,
    // is put back.
    unsafe {
        std::arch::asm!(
            "xchg rbx, {low}",
            "lock cmpxchg16b [rdi]",
            "mov rbx, {low}",
            low = inout(reg) new as u64 => _,
            in("rdi") at,
            in("rcx") (new >> 64) as u64,
            inout("rax") old as u64 => _,
            inout("rdx") (old >> 64) as u64 => _,
            options(nostack),
        );
    }
}

#[cfg(all(test, target_arch = "x86_64"))]
mod tests {
    use super::*;

    #[test]
    fn only_an_empty_function_is_patched() {
        // ret; nopw 0(%rax,%rax,1) (as in glibc 2.36), with endbr64 (2.44), and
        // with a breakpoint.
        let plain = [
            0xc3, 0x66, 0x66, 0x2e, 0x0f, 0x1f, 0x84, 0, 0, 0, 0, 0, 0x0f, 0x1f, 0x40, 0,
        ];
        let new = patched(plain, 0x1000, 0x3000).expect("empty");
        assert_eq!(new[..5], [0xe9, 0xfb, 0x1f, 0, 0]);
        assert_eq!(new[5..], plain[5..]);
        let marked = [
            0xf3, 0x0f, 0x1e, 0xfa, 0xc3, 0x66, 0x2e, 0x0f, 0x1f, 0x84, 0, 0, 0, 0, 0, 0x90,
        ];
        let new = patched(marked, 0x1000, 0x3000).expect("empty");
        assert_eq!(new[..9], [0xf3, 0x0f, 0x1e, 0xfa, 0xe9, 0xf7, 0x1f, 0, 0]);
        let mut stopped = plain;
        stopped[0] = 0xcc;
        assert_eq!(patched(stopped, 0x1000, 0x3000), None);
        let code = [
            0xc3, 0x55, 0x48, 0x89, 0xe5, 0xc3, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0,
        ];
        assert_eq!(patched(code, 0x1000, 0x3000), None);
        assert_eq!(patched(plain, 0x1000, 0x1_0000_3000), None, "too far");
    }

    #[test]
    fn this_process_has_the_structure() {
        let debug = debug().expect("DT_DEBUG");
        // SAFETY: the loader's structure.
        let (version, brk) = unsafe { ((*debug).version, (*debug).brk) };
        assert!((1..=2).contains(&version));
        assert_ne!(brk, 0);
        let base = loader_base().expect("base");
        // SAFETY: ld.so's first page.
        assert_eq!(unsafe { (base as *const [u8; 4]).read() }, *b"\x7fELF");
    }
}
