//! A copy of the library that only one process tree has.
//!
//! Attaching to a file raises the semaphores of every process that maps it. With an inode of its own
//! only the tree that `run` starts is watched, and nobody else pays.

use std::ffi::CString;
use std::fs;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use tempfile::TempDir;

use crate::refusal::refuse;

/// The copy; removed when dropped unless kept.
#[derive(Debug)]
pub struct PrivateCopy {
    dir: TempDir,
    file: PathBuf,
}

impl PrivateCopy {
    /// Copies `library` into a fresh directory from which code may be mapped.
    pub fn of(library: &Path) -> Result<Self> {
        let library = fs::canonicalize(library)
            .with_context(|| format!("failed to find {}", library.display()))?;
        let mut places: Vec<PathBuf> = vec![std::env::temp_dir(), "/tmp".into(), "/dev/shm".into()];
        places.extend(library.parent().map(Path::to_owned));
        let mut why = Vec::new();
        for place in places {
            match Self::in_place(&library, &place) {
                Ok(copy) => return Ok(copy),
                Err(e) => why.push(format!("{}: {e:#}", place.display())),
            }
        }
        Err(refuse(format!(
            "no place for a private copy of the library ({})",
            why.join("; ")
        )))
    }

    fn in_place(library: &Path, place: &Path) -> Result<Self> {
        anyhow::ensure!(
            preloadable(place),
            "the path has a space or colon, LD_PRELOAD cannot name it"
        );
        anyhow::ensure!(!noexec(place)?, "mounted noexec");
        let dir = tempfile::Builder::new()
            .prefix("parcagpu-run-")
            .tempdir_in(place)?;
        // The command may give up its rights before it loads the library.
        fs::set_permissions(dir.path(), fs::Permissions::from_mode(0o755))?;
        let file = dir
            .path()
            .join(library.file_name().context("no file name")?);
        anyhow::ensure!(preloadable(&file), "the file name has a space or colon");
        fs::copy(library, &file)?;
        fs::set_permissions(&file, fs::Permissions::from_mode(0o755))?;
        Ok(Self { dir, file })
    }

    /// The copy.
    pub fn file(&self) -> &Path {
        &self.file
    }

    /// Leaves the copy where it is, for processes that still have it.
    pub fn keep(self) -> PathBuf {
        let Self { dir, file } = self;
        let _kept = dir.keep();
        file
    }
}

fn preloadable(path: &Path) -> bool {
    path.is_absolute()
        && !path
            .as_os_str()
            .as_bytes()
            .iter()
            .any(|b| b" :\t\n$".contains(b))
}

fn noexec(place: &Path) -> Result<bool> {
    let path = CString::new(place.as_os_str().as_bytes())?;
    // SAFETY: statvfs is plain data, valid as zeros.
    let mut fs: libc::statvfs = unsafe { std::mem::zeroed() };
    // SAFETY: the path is NUL-terminated and both arguments live through the call.
    if unsafe { libc::statvfs(path.as_ptr(), &raw mut fs) } != 0 {
        return Err(std::io::Error::last_os_error().into());
    }
    Ok(fs.f_flag & libc::ST_NOEXEC != 0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_copy_goes_unless_it_is_kept() {
        let dir = tempfile::tempdir().unwrap();
        let original = dir.path().join("lib.so");
        fs::write(&original, b"bytes").unwrap();
        let copy = PrivateCopy::of(&original).unwrap();
        let file = copy.file().to_owned();
        assert_eq!(fs::read(&file).unwrap(), b"bytes");
        assert_ne!(file, original);
        drop(copy);
        assert!(!file.exists());
        let kept = PrivateCopy::of(&original).unwrap().keep();
        assert!(kept.exists());
        fs::remove_dir_all(kept.parent().unwrap()).unwrap();
    }

    #[test]
    fn names_that_preload_cannot_carry() {
        assert!(preloadable(Path::new("/a/b.so")));
        for bad in ["/a b/c.so", "/a:b.so", "rel.so", "/$LIB/x.so"] {
            assert!(!preloadable(Path::new(bad)), "{bad}");
        }
    }
}
