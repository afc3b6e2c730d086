//! Reading what a program points to, in memory or in a file, which may be shorter than it says or not there.

use std::fs::{File, OpenOptions};
use std::io;
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::Path;

/// Longest image that is looked at, bytes; the largest cubins met are some 300 MiB.
pub const IMAGE_MAX: u64 = 1 << 30;

/// Copies `into.len()` bytes from `address` of this process. The kernel does the copy, so that an
/// address without memory is an error and not a fault.
pub fn read_exact(address: u64, into: &mut [u8]) -> io::Result<()> {
    let mut done = 0;
    while done < into.len() {
        let rest = &mut into[done..];
        let local = libc::iovec {
            iov_base: rest.as_mut_ptr().cast(),
            iov_len: rest.len(),
        };
        let remote = libc::iovec {
            iov_base: address.wrapping_add(done as u64) as *mut libc::c_void,
            iov_len: rest.len(),
        };
        // SAFETY: the local vector is `rest`, writable; the kernel checks the remote one.
        let n = unsafe { libc::process_vm_readv(libc::getpid(), &local, 1, &remote, 1, 0) };
        match n {
            1.. => done += n as usize,
            0 => return Err(io::ErrorKind::UnexpectedEof.into()),
            _ => return Err(io::Error::last_os_error()),
        }
    }
    Ok(())
}

/// Bytes of an image: in memory of unknown length, in a slice, or in a file.
pub trait Source {
    /// Copies `into.len()` bytes from `offset`.
    fn read(&self, offset: u64, into: &mut [u8]) -> io::Result<()>;
}

/// An image at an address of this process.
#[derive(Clone, Copy, Debug)]
pub struct At(pub u64);

impl Source for At {
    fn read(&self, offset: u64, into: &mut [u8]) -> io::Result<()> {
        let address = self
            .0
            .checked_add(offset)
            .ok_or(io::ErrorKind::InvalidInput)?;
        read_exact(address, into)
    }
}

impl Source for File {
    fn read(&self, offset: u64, into: &mut [u8]) -> io::Result<()> {
        self.read_exact_at(into, offset)
    }
}

/// Opens a file that holds an image. Nothing is waited for: what is no regular file is an error.
pub fn open(path: &Path) -> io::Result<File> {
    let file = OpenOptions::new()
        .read(true)
        .custom_flags(libc::O_NONBLOCK)
        .open(path)?;
    match file.metadata()?.is_file() {
        true => Ok(file),
        false => Err(io::Error::other("not a regular file")),
    }
}

impl Source for [u8] {
    fn read(&self, offset: u64, into: &mut [u8]) -> io::Result<()> {
        let from = usize::try_from(offset).map_err(|_| io::ErrorKind::UnexpectedEof)?;
        let end = from
            .checked_add(into.len())
            .ok_or(io::ErrorKind::UnexpectedEof)?;
        let bytes = self.get(from..end).ok_or(io::ErrorKind::UnexpectedEof)?;
        into.copy_from_slice(bytes);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::{At, Source, open, read_exact};
    use std::path::Path;

    #[test]
    fn memory_that_is_not_there_is_an_error() {
        let mut into = [0u8; 16];
        assert!(read_exact(0, &mut into).is_err());
        assert!(At(u64::MAX - 4).read(8, &mut into).is_err());
        let here = [7u8; 16];
        read_exact(here.as_ptr() as u64, &mut into).unwrap();
        assert_eq!(into, here);
    }

    #[test]
    fn an_image_that_ends_at_an_unreadable_page_is_read_up_to_its_end() {
        let page = 4096;
        // SAFETY: a fresh private mapping of two pages, the second made unreadable.
        let base = unsafe {
            let base = libc::mmap(
                std::ptr::null_mut(),
                2 * page,
                libc::PROT_READ | libc::PROT_WRITE,
                libc::MAP_PRIVATE | libc::MAP_ANONYMOUS,
                -1,
                0,
            );
            assert_ne!(base, libc::MAP_FAILED);
            libc::mprotect(base.byte_add(page), page, libc::PROT_NONE);
            base as u64
        };
        let mut into = [1u8; 64];
        read_exact(base + page as u64 - 64, &mut into).unwrap();
        assert_eq!(into, [0; 64]);
        assert!(read_exact(base + page as u64 - 63, &mut into).is_err());
        // SAFETY: the mapping made above.
        unsafe { libc::munmap(base as *mut libc::c_void, 2 * page) };
    }

    #[test]
    fn a_slice_is_not_read_past_its_end() {
        let mut into = [0u8; 4];
        assert!([1u8, 2, 3, 4][..].read(0, &mut into).is_ok());
        assert!([1u8, 2, 3, 4][..].read(1, &mut into).is_err());
        assert!([1u8][..].read(u64::MAX, &mut into).is_err());
    }

    #[test]
    fn a_file_is_read_where_it_is_and_a_pipe_is_not_waited_for() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("image");
        std::fs::write(&path, [1, 2, 3, 4]).unwrap();
        let file = open(&path).unwrap();
        let mut into = [0u8; 2];
        file.read(2, &mut into).unwrap();
        assert_eq!(into, [3, 4]);
        assert!(file.read(3, &mut into).is_err());
        assert!(open(Path::new("/")).is_err());
        let pipe = folder.path().join("pipe");
        let name = std::ffi::CString::new(pipe.to_str().unwrap()).unwrap();
        // SAFETY: the name is terminated.
        assert_eq!(unsafe { libc::mkfifo(name.as_ptr(), 0o600) }, 0);
        assert!(open(&pipe).is_err());
    }
}
