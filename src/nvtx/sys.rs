//! NVTX as its tools see it: tables, slots, structs. 64-bit only; the same in all v3 headers and in the
//! v2 library.

use std::ffi::{c_char, c_int, c_void};
use std::mem::{offset_of, size_of};

/// What a client gives its tool: tables by id.
pub type GetExportTable = unsafe extern "C" fn(u32) -> *const c_void;

/// Id of [`Callbacks`].
pub const TABLE_CALLBACKS: u32 = 1;
/// Id of [`VersionInfo`]; v2 clients have none.
pub const TABLE_VERSION: u32 = 3;

/// A function pointer variable of a client.
pub type Slot = *mut *const c_void;

/// Gives the slots of a module: address of an array of `out_size` addresses of slots, entry 0 null.
pub type GetModule = unsafe extern "C" fn(c_int, *mut *const Slot, *mut u32) -> c_int;

/// Table [`TABLE_CALLBACKS`].
#[repr(C)]
#[derive(Debug)]
pub struct Callbacks {
    /// Size of this struct as the client knows it.
    pub size: usize,
    /// Finds the slots of a module.
    pub module: Option<GetModule>,
}

/// Table [`TABLE_VERSION`].
#[repr(C)]
#[derive(Debug)]
pub struct VersionInfo {
    /// Size of this struct as the client knows it.
    pub size: usize,
    /// 3.
    pub version: u32,
    /// 0.
    pub reserved: u32,
    /// Takes the tool's version.
    pub set_tool_version: unsafe extern "C" fn(u32),
}

/// Slots that a module can have, entry 0 included.
pub const SLOTS_MAX: usize = 17;

/// A module: a group of slots.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(usize)]
pub enum Module {
    /// Default domain.
    Core = 1,
    /// Names of driver API objects.
    Cuda = 2,
    /// Names of OpenCL objects.
    OpenCl = 3,
    /// Names of runtime API objects.
    CudaRt = 4,
    /// Domains.
    Core2 = 5,
    /// User-made synchronisation objects.
    Sync = 6,
}

impl Module {
    /// All, by id.
    pub const ALL: [Self; 6] = [
        Self::Core,
        Self::Cuda,
        Self::OpenCl,
        Self::CudaRt,
        Self::Core2,
        Self::Sync,
    ];

    /// Slots of a v3 client, entry 0 included.
    pub const fn slots(self) -> usize {
        match self {
            Self::Core | Self::Core2 => 16,
            Self::Cuda => 9,
            Self::OpenCl => 15,
            Self::CudaRt | Self::Sync => 7,
        }
    }
}

/// A domain as a client holds it: made by us, 0 for the default domain.
#[repr(transparent)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DomainHandle(pub u64);

/// A registered string as a client holds it.
#[repr(transparent)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StringHandle(pub u64);

/// A resource as a client holds it.
#[repr(transparent)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ResourceHandle(pub u64);

/// Pairs the start and the end of a range; 0 is none.
#[repr(transparent)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RangeId(pub u64);

/// Unchecked bytes, NUL-terminated, or null.
pub type Chars = *const c_char;
/// `wchar_t`: unchecked code points of four bytes, zero-terminated, or null.
pub type Wide = *const u32;

/// What push and pop return for a tool that does not count levels.
pub const NO_PUSH_POP_TRACKING: c_int = -2;

/// `nvtxEventAttributes_t`. A client's may be shorter or longer, as its `size` says.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct EventAttributes {
    /// Of the client's headers; says nothing about the layout.
    pub version: u16,
    /// Size as the client knows it.
    pub size: u16,
    /// 0: none.
    pub category: u32,
    /// [`COLOR_ARGB`], or no colour.
    pub color_type: i32,
    /// 0xAARRGGBB.
    pub color: u32,
    /// 1..=6, or no number.
    pub payload_type: i32,
    /// Number of extended payloads.
    pub reserved: i32,
    /// Raw bits.
    pub payload: u64,
    /// `MESSAGE_*`.
    pub message_type: i32,
    /// Alignment.
    pub pad: u32,
    /// Pointer or handle.
    pub message: u64,
}

/// `nvtxResourceAttributes_t`.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct ResourceAttributes {
    /// As above.
    pub version: u16,
    /// As above.
    pub size: u16,
    /// Class << 16 | index.
    pub identifier_type: i32,
    /// Pointer or number.
    pub identifier: u64,
    /// `MESSAGE_*`.
    pub message_type: i32,
    /// Alignment.
    pub pad: u32,
    /// Pointer or handle.
    pub message: u64,
}

/// `nvtxSyncUserAttributes_t`.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct SyncAttributes {
    /// As above.
    pub version: u16,
    /// As above.
    pub size: u16,
    /// `MESSAGE_*`.
    pub message_type: i32,
    /// Pointer or handle.
    pub message: u64,
}

/// Bytes of version and size, which every attribute struct begins with.
pub const SIZE_END: usize = 4;

/// Value of `color_type`.
pub const COLOR_ARGB: i32 = 1;
/// `payload_type` of the first and the last number: u64, i64, f64, u32, i32, f32.
pub const PAYLOADS: std::ops::RangeInclusive<i32> = 1..=6;
/// The first payload type of 32 bits.
pub const PAYLOAD_32_BITS: i32 = 4;
/// [`Chars`].
pub const MESSAGE_CHARS: i32 = 1;
/// [`Wide`].
pub const MESSAGE_WIDE: i32 = 2;
/// [`StringHandle`].
pub const MESSAGE_REGISTERED: i32 = 3;

/// Identifier types of resources that have a name on the timeline.
pub mod resource {
    /// Kernel's number of a thread.
    pub const NATIVE_THREAD: i32 = 0x1_0003;
    /// Driver API device.
    pub const CUDA_DEVICE: i32 = 0x4_0001;
    /// Driver API stream.
    pub const CUDA_STREAM: i32 = 0x4_0003;
    /// Runtime API device.
    pub const CUDART_DEVICE: i32 = 0x5_0000;
    /// Runtime API stream.
    pub const CUDART_STREAM: i32 = 0x5_0001;
}

const _: () = {
    assert!(size_of::<Callbacks>() == 16);
    assert!(size_of::<VersionInfo>() == 24);
    assert!(offset_of!(VersionInfo, set_tool_version) == 16);
    assert!(size_of::<EventAttributes>() == 48);
    assert!(offset_of!(EventAttributes, payload) == 24);
    assert!(offset_of!(EventAttributes, message_type) == 32);
    assert!(offset_of!(EventAttributes, message) == 40);
    assert!(size_of::<ResourceAttributes>() == 32);
    assert!(offset_of!(ResourceAttributes, identifier) == 8);
    assert!(offset_of!(ResourceAttributes, message) == 24);
    assert!(size_of::<SyncAttributes>() == 16);
    assert!(offset_of!(SyncAttributes, message) == 8);
};
