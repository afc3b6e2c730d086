//! The loader's list of libraries in the program's own namespace.

use std::ffi::{CStr, c_int, c_void};

use crate::image::Place;

/// Matches held at a time: copies of watched libraries mapped together.
const MOST_SEEN: usize = 32;
const MOST_SEGMENTS: usize = 8;

/// Whether we were there before the program ran.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Origin {
    /// Mapped with the program (preloaded or linked).
    Start,
    /// Loaded by a running program.
    Late,
}

/// Which namespaces a list covers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Scope {
    Base,
    All,
}

/// A mapped library that matches a rule.
pub(super) struct Seen {
    pub place: Place,
    pub rule: usize,
    /// The loader's; lives as long as the library is mapped.
    pub name: &'static [u8],
    pub base: bool,
    /// Its executable segments, start and end.
    pub code: [(usize, usize); MOST_SEGMENTS],
}

impl Seen {
    /// Whether the bytes are mapped code of it.
    pub fn covers(&self, address: usize, len: usize) -> bool {
        let end = address.saturating_add(len);
        self.code
            .iter()
            .any(|&(from, to)| from <= address && end <= to)
    }

    /// Executable segments from a library's program headers.
    pub fn code_of(base: usize, headers: &[libc::Elf64_Phdr]) -> [(usize, usize); MOST_SEGMENTS] {
        let mut code = [(0, 0); MOST_SEGMENTS];
        let loaded = headers
            .iter()
            .filter(|h| h.p_type == libc::PT_LOAD && h.p_flags & libc::PF_X != 0);
        for (slot, header) in code.iter_mut().zip(loaded) {
            let start = base.wrapping_add(header.p_vaddr as usize);
            *slot = (start, start.wrapping_add(header.p_memsz as usize));
        }
        code
    }
}

/// The libraries that match, at one moment.
pub(super) struct Objects {
    pub seen: [Option<Seen>; MOST_SEEN],
    pub scope: Scope,
    pub adds: u64,
    pub subs: u64,
}

impl Objects {
    pub fn new(scope: Scope) -> Objects {
        Objects {
            seen: [const { None }; MOST_SEEN],
            scope,
            adds: 0,
            subs: 0,
        }
    }

    pub fn add(&mut self, seen: Seen) {
        if let Some(slot) = self.seen.iter_mut().find(|s| s.is_none()) {
            *slot = Some(seen);
        }
    }
}

/// Matching libraries of the program's namespace; `None` if the loader's
/// counts are still those of `since`.
pub(super) fn in_base(
    since: Option<(u64, u64)>,
    rule_for: impl Fn(&[u8]) -> Option<usize>,
) -> Option<Objects> {
    let mut objects = Objects::new(Scope::Base);
    let mut unchanged = false;
    each(|info| {
        (objects.adds, objects.subs) = (info.dlpi_adds, info.dlpi_subs);
        if since == Some((info.dlpi_adds, info.dlpi_subs)) {
            unchanged = true;
            return false;
        }
        let name = name_of(info);
        if let Some(rule) = rule_for(name) {
            let base = info.dlpi_addr as usize;
            let headers = headers_of(info);
            if let Some(dynamic) = headers.iter().find(|h| h.p_type == libc::PT_DYNAMIC) {
                let place = Place {
                    base,
                    dynamic: base.wrapping_add(dynamic.p_vaddr as usize),
                };
                objects.add(Seen {
                    place,
                    rule,
                    name,
                    base: true,
                    code: Seen::code_of(base, headers),
                });
            }
        }
        true
    });
    (!unchanged).then_some(objects)
}

/// Libraries mapped with the program precede ld.so in the loader's list; what
/// was loaded later follows it.
pub(super) fn origin() -> Origin {
    let here = origin as *const () as usize;
    let loader = super::rendezvous::loader_base();
    let mut loader_passed = loader.is_none();
    let mut result = Origin::Late;
    each(|info| {
        loader_passed |= Some(info.dlpi_addr as usize) == loader;
        let ours = contains(info, here);
        if ours && !loader_passed {
            result = Origin::Start;
        }
        !ours
    });
    result
}

/// Whether an address is in the library that this code is in.
pub(super) fn is_ours(address: usize) -> bool {
    let here = is_ours as *const () as usize;
    let mut result = false;
    each(|info| {
        let ours = contains(info, here);
        result |= ours && contains(info, address);
        !ours
    });
    result
}

fn contains(info: &libc::dl_phdr_info, address: usize) -> bool {
    headers_of(info).iter().any(|header| {
        let start = (info.dlpi_addr as usize).wrapping_add(header.p_vaddr as usize);
        let size = header.p_memsz as usize;
        header.p_type == libc::PT_LOAD && address.wrapping_sub(start) < size
    })
}

/// Calls `visit` for every library until it says false.
fn each(mut visit: impl FnMut(&libc::dl_phdr_info) -> bool) {
    unsafe extern "C" fn step<F: FnMut(&libc::dl_phdr_info) -> bool>(
        info: *mut libc::dl_phdr_info,
        _size: usize,
        data: *mut c_void,
    ) -> c_int {
        // SAFETY: the loader's entry, valid during the call; `data` is the
        // closure that `each` passed.
        let (info, visit) = unsafe { (&*info, &mut *data.cast::<F>()) };
        c_int::from(!visit(info))
    }
    fn step_of<F: FnMut(&libc::dl_phdr_info) -> bool>(_: &F) -> Step {
        step::<F>
    }
    type Step = unsafe extern "C" fn(*mut libc::dl_phdr_info, usize, *mut c_void) -> c_int;
    let call = step_of(&visit);
    // SAFETY: the closure outlives the call and is used by `step` alone.
    unsafe { libc::dl_iterate_phdr(Some(call), (&raw mut visit).cast()) };
}

/// The first library in the list is the program.
pub(super) fn program_dynamic() -> Option<usize> {
    let mut found = None;
    each(|info| {
        let dynamic = headers_of(info)
            .iter()
            .find(|h| h.p_type == libc::PT_DYNAMIC);
        found = dynamic.map(|h| (info.dlpi_addr as usize).wrapping_add(h.p_vaddr as usize));
        false
    });
    found
}

fn name_of(info: &libc::dl_phdr_info) -> &'static [u8] {
    if info.dlpi_name.is_null() {
        return b"";
    }
    // SAFETY: the loader's name of the library, kept while it is mapped; it is
    // used only by the look that is going on.
    unsafe { CStr::from_ptr(info.dlpi_name) }.to_bytes()
}

fn headers_of(info: &libc::dl_phdr_info) -> &[libc::Elf64_Phdr] {
    if info.dlpi_phdr.is_null() {
        return &[];
    }
    // SAFETY: the loader's own view of the library's program headers.
    unsafe { std::slice::from_raw_parts(info.dlpi_phdr, usize::from(info.dlpi_phnum)) }
}
