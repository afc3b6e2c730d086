//! The checksum in PC sample records: ours, so that it equals what `cubin_loaded` announces.
//!
//! Records are not rewritten from CUPTI's checksum instead: that one reads some 28 bytes of a cubin, spread evenly
//! (each byte of one was changed in turn, CUDA 11.8 to 13.0), so that code of the same size often shares it.

use std::ffi::c_void;
use std::sync::atomic::{AtomicBool, Ordering};

use super::api::Functions;
use crate::cubin::image;
use crate::cubin::memory::{At, Source};
use crate::entry;

/// Bytes that are copied at a time; modules of 14 MB are common.
const PART: usize = 256 << 10;

static REGISTERED: AtomicBool = AtomicBool::new(false);

/// Names our callback; once it worked, before the first context is prepared.
pub fn register(functions: &Functions) {
    if REGISTERED.load(Ordering::Acquire) {
        return;
    }
    // Two threads may both do it, but neither goes on before it is done.
    if let Err(error) = functions.register_crc(compute) {
        error.tell_as(
            "pc sampling",
            &format!("samples carry CUPTI's own checksum and match no cubin: {error}"),
        );
        // It is tried again when a context is prepared.
        return;
    }
    REGISTERED.store(true, Ordering::Release);
}

/// CUPTI was finalised, and does not know our callback any more.
pub fn forget() {
    REGISTERED.store(false, Ordering::Release);
}

/// IEEE CRC-32 of the machine code. CUPTI calls this once per module, on a thread of the program.
unsafe extern "C" fn compute(cubin: *const c_void, size: usize, crc: *mut u64) {
    if cubin.is_null() || crc.is_null() {
        return;
    }
    entry::barrier((), || {
        let source = At(cubin as u64);
        // As far as its headers go, which is what the registry keeps.
        let len = image::cubin_len(&source).map_or(size as u64, |len| len.min(size as u64));
        if let Ok(sum) = checksum(&source, len) {
            // SAFETY: CUPTI's place for the result, not null.
            unsafe { crc.write(sum.into()) };
        }
    });
}

fn checksum(source: &(impl Source + ?Sized), len: u64) -> std::io::Result<u32> {
    let mut hasher = crc32fast::Hasher::new();
    let mut part = vec![0; PART.min(len as usize)];
    let mut done = 0;
    while done < len {
        let n = PART.min((len - done) as usize);
        source.read(done, &mut part[..n])?;
        hasher.update(&part[..n]);
        done += n as u64;
    }
    Ok(hasher.finalize())
}

#[cfg(test)]
mod tests {
    use super::{PART, checksum};

    #[test]
    fn parts_give_the_checksum_of_the_whole() {
        let bytes: Vec<u8> = (0..PART * 2 + 17).map(|i| (i * i) as u8).collect();
        for len in [0, 1, PART - 1, PART, PART + 1, bytes.len()] {
            let sum = checksum(&bytes[..], len as u64).unwrap();
            assert_eq!(sum, crc32fast::hash(&bytes[..len]));
        }
        assert!(checksum(&bytes[..10], 11).is_err());
    }
}
