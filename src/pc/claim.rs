//! Which process samples a GPU: one at a time.
//!
//! The counters of a GPU belong to one context of one process. CUPTI does not say so when a second one begins:
//! its first `cuptiPCSamplingGetData` gives 999, and the next call of any kind ends CUPTI in that process, with its
//! launches and kernel times (measured on an H200 with CUDA 13.0; after a `cuptiFinalize` of anybody's graphs cannot be launched). So
//! processes agree beforehand, by a Unix socket with an abstract name, which the kernel gives to one of them
//! and takes back when that one ends. It is seen by all that share a network namespace: containers that share a
//! GPU but no network do not see each other.
//!
//! Taken by the thread that sets a context up, given back with the lock of [`super::contexts`] held, before another one
//! can be taken. The descriptor is closed on exec, by a forked child, and only while it is still ours: the
//! program may have closed it and have another one with its number.

use std::io;
use std::os::fd::IntoRawFd;
use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{SocketAddr, UnixDatagram};
use std::sync::atomic::{AtomicI32, AtomicU64, Ordering};

use crate::cupti::sys::CUuuid;

/// Before the GPU's UUID.
const NAME: &str = "parcagpu/pc-sampling/";

/// Our descriptor, -1: none; its socket; the GPU.
static DESCRIPTOR: AtomicI32 = AtomicI32::new(-1);
static INODE: AtomicU64 = AtomicU64::new(0);
static GPU: [AtomicU64; 2] = [const { AtomicU64::new(0) }; 2];

/// Whose a GPU is.
#[derive(Debug)]
pub enum Claim {
    /// Ours, until [`release`].
    Ours,
    /// Another process's.
    Taken,
    /// Nobody can know.
    Unknown(io::Error),
}

/// As `nvidia-smi` writes it; zeroes stand for one that is not known.
pub fn name(uuid: &CUuuid) -> String {
    if *uuid == CUuuid::default() {
        return "GPU-unknown".to_owned();
    }
    let hex: Vec<String> = uuid.bytes.iter().map(|b| format!("{b:02x}")).collect();
    let parts = [&hex[..4], &hex[4..6], &hex[6..8], &hex[8..10], &hex[10..]];
    format!("GPU-{}", parts.map(|part| part.concat()).join("-"))
}

fn halves(uuid: &CUuuid) -> [u64; 2] {
    let (low, high) = uuid.bytes.split_at(8);
    [low, high].map(|half| half.iter().fold(0, |sum, b| sum << 8 | u64::from(*b)))
}

/// The socket behind a descriptor.
fn socket(descriptor: i32) -> Option<u64> {
    // SAFETY: writes the struct, for which zeroes are good.
    let (code, status) = unsafe {
        let mut status: libc::stat = std::mem::zeroed();
        (libc::fstat(descriptor, &mut status), status)
    };
    (code == 0 && status.st_mode & libc::S_IFMT == libc::S_IFSOCK).then_some(status.st_ino)
}

fn is_held() -> bool {
    let descriptor = DESCRIPTOR.load(Ordering::Acquire);
    descriptor >= 0 && socket(descriptor) == Some(INODE.load(Ordering::Relaxed))
}

/// Claims a GPU for this process.
pub fn claim(uuid: &CUuuid) -> Claim {
    let gpu = halves(uuid);
    if is_held() && [0, 1].map(|i| GPU[i].load(Ordering::Relaxed)) == gpu {
        return Claim::Ours;
    }
    release();
    let address = SocketAddr::from_abstract_name(format!("{NAME}{}", name(uuid)));
    let bound = address.and_then(|address| UnixDatagram::bind_addr(&address));
    let descriptor = match bound {
        Ok(socket) => socket.into_raw_fd(),
        Err(error) if error.kind() == io::ErrorKind::AddrInUse => return Claim::Taken,
        Err(error) => return Claim::Unknown(error),
    };
    INODE.store(socket(descriptor).unwrap_or(0), Ordering::Relaxed);
    for (place, half) in GPU.iter().zip(gpu) {
        place.store(half, Ordering::Relaxed);
    }
    DESCRIPTOR.store(descriptor, Ordering::Release);
    Claim::Ours
}

/// Gives the GPU free, if this process has one. Async-signal-safe.
pub fn release() {
    let held = is_held();
    let descriptor = DESCRIPTOR.swap(-1, Ordering::AcqRel);
    if held {
        // SAFETY: it was ours a moment ago, and nobody else knows it.
        unsafe { libc::close(descriptor) };
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::net::UnixDatagram;

    use super::{CUuuid, Claim, DESCRIPTOR, Ordering, claim, name, release};

    /// One after the other: the process has one claim.
    #[test]
    fn one_has_it_until_it_is_released() {
        let mut uuid = CUuuid {
            bytes: *b"a test's gpu....",
        };
        uuid.bytes[12..].copy_from_slice(&std::process::id().to_le_bytes());
        assert!(name(&uuid).starts_with("GPU-61207465-7374-2773-2067-7075"));
        assert_eq!(name(&CUuuid::default()), "GPU-unknown");
        let bind = |uuid: &CUuuid| {
            use std::os::linux::net::SocketAddrExt;
            let name = format!("parcagpu/pc-sampling/{}", name(uuid));
            UnixDatagram::bind_addr(&super::SocketAddr::from_abstract_name(name).unwrap())
        };
        let other = bind(&uuid).expect("nobody has it");
        assert!(matches!(claim(&uuid), Claim::Taken));
        drop(other);
        assert!(matches!(claim(&uuid), Claim::Ours));
        assert!(matches!(claim(&uuid), Claim::Ours));
        assert!(bind(&uuid).is_err());
        let mut second = uuid;
        second.bytes[0] = b'A';
        assert!(matches!(claim(&second), Claim::Ours));
        assert!(bind(&uuid).is_ok(), "one at a time");
        release();
        assert!(bind(&second).is_ok());
        // The program closed it, and has another socket with its number.
        assert!(matches!(claim(&uuid), Claim::Ours));
        let number = DESCRIPTOR.load(Ordering::Relaxed);
        let (theirs, _peer) = UnixDatagram::pair().unwrap();
        // SAFETY: both are descriptors of this test.
        unsafe { libc::dup2(std::os::fd::AsRawFd::as_raw_fd(&theirs), number) };
        assert!(bind(&uuid).is_ok());
        release();
        assert!(super::socket(number).is_some(), "theirs is left alone");
        // SAFETY: as above.
        unsafe { libc::close(number) };
    }
}
