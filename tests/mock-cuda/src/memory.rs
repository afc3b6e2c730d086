//! Device memory: host memory that is only reached through the driver.

use std::collections::BTreeMap;
use std::ffi::c_void;
use std::sync::Mutex;

use crate::context::{self, give};
use crate::driver_api;
use crate::error::{Error, INVALID_VALUE, OUT_OF_MEMORY, Outcome};
use crate::timeline;

type Allocations = BTreeMap<u64, Box<[u8]>>;

/// Device address to bytes, and the next free address. Addresses count up from the same start in every process, so that the
/// call logs of two runs compare; nothing of the host's lies there.
static ALLOCATIONS: Mutex<(Allocations, u64)> = Mutex::new((BTreeMap::new(), 0x7f00_0000_0000));
const ALIGNMENT: u64 = 512;
const LIMIT: usize = 1 << 32;

fn allocate(out: *mut u64, size: usize) -> Outcome {
    context::required()?;
    if out.is_null() || size == 0 {
        return Err(INVALID_VALUE);
    }
    if size > LIMIT {
        return Err(OUT_OF_MEMORY);
    }
    let address = {
        let (allocations, next) = &mut *ALLOCATIONS.lock().expect("nobody panics holding it");
        let address = *next;
        *next += (size as u64).next_multiple_of(ALIGNMENT);
        allocations.insert(address, vec![0u8; size].into_boxed_slice());
        address
    };
    // SAFETY: the caller's out-pointer, checked.
    unsafe { give(out, address) }
}

fn free(address: u64) -> Outcome {
    context::required()?;
    if address == 0 {
        return Ok(());
    }
    ALLOCATIONS
        .lock()
        .expect("nobody panics holding it")
        .0
        .remove(&address)
        .map(drop)
        .ok_or(INVALID_VALUE)
}

/// The device bytes `[address, address + size)`, if they lie in one allocation.
fn with_range<R>(address: u64, size: usize, act: impl FnOnce(&mut [u8]) -> R) -> Result<R, Error> {
    let mut allocations = ALLOCATIONS.lock().expect("nobody panics holding it");
    let (start, memory) = allocations
        .0
        .range_mut(..=address)
        .next_back()
        .ok_or(INVALID_VALUE)?;
    let offset = (address - start) as usize;
    let range = memory
        .get_mut(offset..offset.checked_add(size).ok_or(INVALID_VALUE)?)
        .ok_or(INVALID_VALUE)?;
    Ok(act(range))
}

fn to_device(to: u64, from: *const c_void, size: usize) -> Outcome {
    timeline::sleep_until(context::required()?.ready());
    if size == 0 {
        return Ok(());
    }
    if from.is_null() {
        return Err(INVALID_VALUE);
    }
    // SAFETY: the caller's buffer of `size` bytes; the range is ours.
    with_range(to, size, |range| unsafe {
        std::ptr::copy_nonoverlapping(from.cast(), range.as_mut_ptr(), size)
    })
}

fn to_host(to: *mut c_void, from: u64, size: usize) -> Outcome {
    timeline::sleep_until(context::required()?.ready());
    if size == 0 {
        return Ok(());
    }
    if to.is_null() {
        return Err(INVALID_VALUE);
    }
    // SAFETY: as above.
    with_range(from, size, |range| unsafe {
        std::ptr::copy_nonoverlapping(range.as_ptr(), to.cast(), size)
    })
}

driver_api! {
    fn cuMemAlloc_v2[243] (out: *mut u64, size: usize) |_call| allocate(out, size);
    fn cuMemFree_v2[245] (address: u64) |_call| free(address);
    fn cuMemGetInfo_v2[242] (unused: *mut usize, total: *mut usize) |_call| {
        context::required()?;
        unsafe {
            give(unused, 1 << 36)?;
            give(total, 1 << 37)
        }
    };
    fn cuMemcpyHtoD_v2[276] (to: u64, from: *const c_void, size: usize) |_call| to_device(to, from, size);
    fn cuMemcpyDtoH_v2[278] (to: *mut c_void, from: u64, size: usize) |_call| to_host(to, from, size);
    fn cuMemsetD8_v2[249] (to: u64, value: u8, size: usize) |_call| {
        context::required()?;
        with_range(to, size, |range| range.fill(value))
    };
}
