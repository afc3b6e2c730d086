//! A folder of cubins, so that the next run reads none from a process again.
//!
//! One file per checksum, for its owner only. The folder is opened once and never through a link at its end; files
//! are opened inside that folder whatever becomes of its name, never through links; what is read is believed only if
//! it has the checksum; what is written appears whole or not at all. Files are never removed.

use std::fs::{DirBuilder, File, OpenOptions};
use std::io::{ErrorKind, Read, Write};
use std::os::fd::AsRawFd;
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, ensure};

use super::announced::{CUBIN_MAX, verify};

/// An open folder.
#[derive(Debug)]
pub struct Cache {
    folder: File,
}

impl Cache {
    /// Opens the folder, which is made if only its last part is missing. It must be ours, and nobody else may be able
    /// to write there.
    pub fn open(path: &Path) -> Result<Self> {
        match DirBuilder::new().mode(0o700).create(path) {
            Err(e) if e.kind() != ErrorKind::AlreadyExists => {
                return Err(e).with_context(|| format!("failed to make {}", path.display()));
            }
            _ => {}
        }
        let folder = OpenOptions::new()
            .read(true)
            .custom_flags(libc::O_DIRECTORY | libc::O_NOFOLLOW)
            .open(path)
            .with_context(|| format!("failed to open the folder {}", path.display()))?;
        let about = folder.metadata()?;
        // SAFETY: no preconditions.
        let own = unsafe { libc::geteuid() };
        ensure!(
            about.uid() == own && about.mode() & 0o022 == 0,
            "{} belongs to somebody else or others may write there",
            path.display()
        );
        Ok(Self { folder })
    }

    /// Path that leads into the open folder.
    fn inside(&self, name: &str) -> PathBuf {
        format!("/proc/self/fd/{}/{name}", self.folder.as_raw_fd()).into()
    }

    fn name(crc: u64) -> String {
        format!("{crc:08x}.cubin")
    }

    /// The cubin of that checksum, if it is there and whole.
    pub fn get(&self, crc: u64) -> Option<Vec<u8>> {
        let file = OpenOptions::new()
            .read(true)
            // A pipe without a writer would be waited for.
            .custom_flags(libc::O_NOFOLLOW | libc::O_NONBLOCK)
            .open(self.inside(&Self::name(crc)))
            .ok()?;
        let about = file.metadata().ok()?;
        if !about.is_file() || about.len() > CUBIN_MAX {
            return None;
        }
        let mut bytes = Vec::new();
        file.take(CUBIN_MAX + 1).read_to_end(&mut bytes).ok()?;
        verify(crc, &bytes).ok()?;
        Some(bytes)
    }

    /// Keeps a cubin; one that is there already is replaced.
    pub fn put(&self, crc: u64, bytes: &[u8]) -> Result<()> {
        // Made with mode 0600 under a name that nothing had.
        let mut file = tempfile::Builder::new()
            .prefix(".new-")
            .tempfile_in(self.inside("."))?;
        file.write_all(bytes)?;
        file.persist(self.inside(&Self::name(crc)))?;
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;
    use std::os::unix::fs::{PermissionsExt, symlink};

    #[test]
    fn what_was_put_comes_back_and_is_private() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("cubins");
        let bytes = b"some code";
        let crc = u64::from(crc32fast::hash(bytes));
        let cache = Cache::open(&path).unwrap();
        assert_eq!(cache.get(crc), None);
        cache.put(crc, bytes).unwrap();
        cache.put(crc, bytes).unwrap();
        assert_eq!(cache.get(crc).as_deref(), Some(bytes.as_slice()));
        let names: Vec<_> = fs::read_dir(&path).unwrap().collect();
        assert_eq!(names.len(), 1);
        let file = names[0].as_ref().unwrap().path();
        assert_eq!(fs::metadata(&file).unwrap().mode() & 0o777, 0o600);
        assert_eq!(fs::metadata(&path).unwrap().mode() & 0o777, 0o700);
        // Another run.
        assert_eq!(
            Cache::open(&path).unwrap().get(crc).as_deref(),
            Some(bytes.as_slice())
        );
    }

    #[test]
    fn damaged_files_links_and_pipes_are_not_read() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("cubins");
        let cache = Cache::open(&path).unwrap();
        let bytes = b"some code";
        let crc = u64::from(crc32fast::hash(bytes));
        let file = path.join(Cache::name(crc));
        fs::write(&file, b"other code").unwrap();
        assert_eq!(cache.get(crc), None);
        fs::remove_file(&file).unwrap();
        let elsewhere = dir.path().join("elsewhere");
        fs::write(&elsewhere, bytes).unwrap();
        symlink(&elsewhere, &file).unwrap();
        assert_eq!(cache.get(crc), None);
        // Writing replaces the link, not what it leads to.
        cache.put(crc, bytes).unwrap();
        assert!(fs::symlink_metadata(&file).unwrap().is_file());
        fs::remove_file(&file).unwrap();
        let pipe = std::ffi::CString::new(file.to_str().unwrap()).unwrap();
        // SAFETY: the path is NUL-terminated and lives through the call.
        assert_eq!(unsafe { libc::mkfifo(pipe.as_ptr(), 0o600) }, 0);
        assert_eq!(cache.get(crc), None);
    }

    #[test]
    fn a_folder_that_others_can_write_or_a_link_is_refused() {
        let dir = tempfile::tempdir().unwrap();
        let open = dir.path().join("open");
        fs::create_dir(&open).unwrap();
        fs::set_permissions(&open, fs::Permissions::from_mode(0o777)).unwrap();
        assert!(Cache::open(&open).is_err());
        let link = dir.path().join("link");
        fs::set_permissions(&open, fs::Permissions::from_mode(0o700)).unwrap();
        symlink(&open, &link).unwrap();
        assert!(Cache::open(&link).is_err());
        assert!(Cache::open(&dir.path().join("no/such")).is_err());
        Cache::open(&open).unwrap();
    }
}
