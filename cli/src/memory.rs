//! Memory of other processes.
//!
//! `process_vm_readv` needs the right to trace the process (same user, or CAP_SYS_PTRACE) and no more;
//! `/proc/PID/mem` is a file of the process's user and needs rights on files besides. It is the second
//! choice, for where a seccomp filter forbids the call.

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;

/// A process whose memory is read.
#[derive(Debug)]
pub struct Memory {
    pid: libc::pid_t,
    file: Option<File>,
}

impl Memory {
    /// Of a process; errors come when it is read.
    pub fn of(pid: u32) -> Self {
        Self {
            pid: pid.cast_signed(),
            file: None,
        }
    }

    /// Reads what is there at `address`, at most all of `bytes`; how much it was.
    pub fn read_at(&mut self, bytes: &mut [u8], address: u64) -> io::Result<usize> {
        match self.call(bytes, address) {
            Err(e) if matches!(e.raw_os_error(), Some(libc::EPERM | libc::ENOSYS)) => {
                let file = match self.file.take() {
                    Some(file) => file,
                    None => File::open(format!("/proc/{}/mem", self.pid))?,
                };
                self.file.insert(file).read_at(bytes, address)
            }
            other => other,
        }
    }

    /// Reads all of `bytes`.
    pub fn read_exact_at(&mut self, bytes: &mut [u8], address: u64) -> io::Result<()> {
        match self.read_at(bytes, address)? {
            n if n == bytes.len() => Ok(()),
            _ => Err(io::ErrorKind::UnexpectedEof.into()),
        }
    }

    fn call(&self, bytes: &mut [u8], address: u64) -> io::Result<usize> {
        let local = libc::iovec {
            iov_base: bytes.as_mut_ptr().cast(),
            iov_len: bytes.len(),
        };
        let remote = libc::iovec {
            iov_base: address as *mut libc::c_void,
            iov_len: bytes.len(),
        };
        // SAFETY: `local` describes `bytes`, which is ours to write; the other process's memory is only
        // read, and an address that is not mapped there is an error.
        let n = unsafe {
            libc::process_vm_readv(self.pid, &raw const local, 1, &raw const remote, 1, 0)
        };
        usize::try_from(n).map_err(|_| io::Error::last_os_error())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn own_memory_and_none() {
        let told = *b"what is here";
        let mut memory = Memory::of(std::process::id());
        let mut bytes = [0; 12];
        memory
            .read_exact_at(&mut bytes, told.as_ptr() as u64)
            .unwrap();
        assert_eq!(bytes, told);
        assert!(memory.read_at(&mut bytes, 8).is_err());
        assert!(memory.read_at(&mut bytes, u64::MAX - 3).is_err());
    }
}
