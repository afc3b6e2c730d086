//! Modules that are not what they seem: `MOCK_CUPTI_MODULES`, see the crate's documentation.

use std::ffi::c_void;
use std::sync::Mutex;

use crate::link::ModuleImage;
use crate::settings;

/// What is told of a module.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Odd {
    /// The truth.
    Genuine,
    /// The truth, in a copy that ends where nobody may read.
    Edge,
    /// No byte.
    Empty,
    /// One byte less than an ELF header.
    Short,
    /// A section at offset 2^64-1.
    Far,
    /// 65,535 sections.
    Many,
    /// A section that goes past the end.
    Past,
    /// A fat binary's first bytes.
    Fatbin,
    /// PTX text.
    Ptx,
    /// A size, and a null pointer.
    Null,
}

impl Odd {
    /// By its name in the script.
    pub fn parse(name: &str) -> Option<Self> {
        Some(match name {
            "" => Self::Genuine,
            "edge" => Self::Edge,
            "empty" => Self::Empty,
            "short" => Self::Short,
            "far" => Self::Far,
            "many" => Self::Many,
            "past" => Self::Past,
            "fatbin" => Self::Fatbin,
            "ptx" => Self::Ptx,
            "null" => Self::Null,
            _ => return None,
        })
    }

    fn bytes(self, cubin: &[u8]) -> Vec<u8> {
        let mut bytes = cubin.to_vec();
        let mut write =
            |at: usize, value: &[u8]| bytes[at..at + value.len()].copy_from_slice(value);
        // The first section that is one.
        let section = u64::from_le_bytes(cubin[40..48].try_into().expect("8 bytes")) as usize + 64;
        match self {
            Self::Genuine | Self::Edge | Self::Null => {}
            Self::Far => write(section + 24, &u64::MAX.to_le_bytes()),
            Self::Many => write(60, &u16::MAX.to_le_bytes()),
            Self::Past => write(section + 32, &(cubin.len() as u64 + 1).to_le_bytes()),
            Self::Empty => bytes.clear(),
            Self::Short => bytes.truncate(63),
            Self::Fatbin => bytes = [&0xba55_ed50_u32.to_le_bytes()[..], &[1, 0, 16, 0]].concat(),
            Self::Ptx => bytes = b".version 8.0\n.target sm_90\n\0".to_vec(),
        }
        bytes
    }
}

/// Address and size to tell of a module: the script's n-th for the n-th one.
pub fn told(module: &ModuleImage) -> (*const c_void, usize) {
    /// Modules met, with what was told of them.
    static MET: Mutex<Vec<(u32, usize, usize)>> = Mutex::new(Vec::new());
    let script = &settings::get().modules;
    if script.is_empty() {
        return (module.cubin, module.cubin_size);
    }
    let mut met = MET.lock().expect("nobody panics holding it");
    if let Some((_, address, size)) = met.iter().find(|(id, ..)| *id == module.id) {
        return (std::ptr::with_exposed_provenance(*address), *size);
    }
    let odd = script.get(met.len()).copied().unwrap_or(Odd::Genuine);
    let (address, size) = match odd {
        Odd::Genuine => (module.cubin, module.cubin_size),
        Odd::Null => (std::ptr::null(), module.cubin_size),
        _ => {
            // SAFETY: the driver's own copy, never freed.
            let cubin =
                unsafe { std::slice::from_raw_parts(module.cubin.cast::<u8>(), module.cubin_size) };
            let bytes = odd.bytes(cubin);
            (at_an_end(&bytes), bytes.len())
        }
    };
    met.push((module.id, address.expose_provenance(), size));
    (address, size)
}

/// A lasting copy whose last byte is followed by a page that nobody may read.
fn at_an_end(bytes: &[u8]) -> *const c_void {
    const PAGE: usize = 4096;
    let room = bytes.len().div_ceil(PAGE) * PAGE;
    // SAFETY: new pages, of which the last one is closed; the copy fits before it.
    unsafe {
        let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;
        let mode = libc::PROT_READ | libc::PROT_WRITE;
        let pages = libc::mmap(std::ptr::null_mut(), room + PAGE, mode, flags, -1, 0);
        assert_ne!(pages, libc::MAP_FAILED, "memory for an odd module");
        libc::mprotect(pages.byte_add(room), PAGE, libc::PROT_NONE);
        let copy = pages.byte_add(room - bytes.len());
        std::ptr::copy_nonoverlapping(bytes.as_ptr(), copy.cast(), bytes.len());
        copy
    }
}
