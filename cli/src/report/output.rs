//! Where a report goes: stdout, or a file that is complete or not there.

use std::fs::{self, Permissions};
use std::io::{BufWriter, Write};
use std::os::unix::fs::{FileTypeExt, OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};

use crate::refusal::{about_path, refuse};

/// Writes to `path`, `-` for stdout.
///
/// A regular file is made beside the path under another name and put in its place when it is complete, so that
/// no link is ever followed and an old file lasts until the new one is there. Devices and pipes are written into;
/// links and folders are refused.
pub fn write_to(path: &Path, write: impl FnOnce(&mut dyn Write) -> Result<()>) -> Result<()> {
    if path.as_os_str() == "-" {
        let mut out = BufWriter::new(std::io::stdout().lock());
        write(&mut out)?;
        return out.flush().context("failed to write to stdout");
    }
    let failed = || format!("failed to write {}", path.display());
    match fs::symlink_metadata(path) {
        Ok(meta) if meta.is_symlink() => Err(refuse(format!(
            "{} is a link; reports are not written through links",
            path.display()
        ))),
        Ok(meta) if meta.is_dir() => Err(refuse(format!("{} is a folder", path.display()))),
        Ok(meta) if meta.file_type().is_char_device() || meta.file_type().is_fifo() => {
            let file = fs::OpenOptions::new()
                .write(true)
                .custom_flags(libc::O_NOFOLLOW)
                .open(path)
                .map_err(|e| about_path(failed(), e))?;
            let mut out = BufWriter::new(file);
            write(&mut out)?;
            out.flush().with_context(failed)
        }
        _ => replace(path, write),
    }
}

fn replace(path: &Path, write: impl FnOnce(&mut dyn Write) -> Result<()>) -> Result<()> {
    let failed = || format!("failed to write {}", path.display());
    let folder = match path.parent() {
        Some(folder) if folder != Path::new("") => folder.to_owned(),
        _ => PathBuf::from("."),
    };
    // The error of the next call would have a name that only we know.
    fs::metadata(&folder).map_err(|e| about_path(failed(), e))?;
    let mut file = tempfile::Builder::new()
        .prefix(".parcagpu-")
        .permissions(Permissions::from_mode(0o644))
        .tempfile_in(&folder)
        .map_err(|e| about_path(failed(), e))?;
    {
        let mut out = BufWriter::with_capacity(1 << 20, file.as_file_mut());
        write(&mut out)?;
        out.flush().with_context(failed)?;
    }
    file.persist(path)
        .map_err(|e| about_path(failed(), e.error))?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::symlink;

    fn put(path: &Path, text: &str) -> Result<()> {
        write_to(path, |out| Ok(out.write_all(text.as_bytes())?))
    }

    #[test]
    fn a_file_is_made_and_replaced() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("out");
        put(&path, "one").unwrap();
        put(&path, "two").unwrap();
        assert_eq!(fs::read_to_string(&path).unwrap(), "two");
        assert_eq!(fs::metadata(&path).unwrap().permissions().mode() & 0o133, 0);
        assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 1);
    }

    #[test]
    fn links_are_not_followed() {
        let dir = tempfile::tempdir().unwrap();
        let (target, link) = (dir.path().join("target"), dir.path().join("link"));
        fs::write(&target, "mine").unwrap();
        symlink(&target, &link).unwrap();
        assert!(
            put(&link, "theirs")
                .unwrap_err()
                .to_string()
                .contains("link")
        );
        let hard = dir.path().join("hard");
        fs::hard_link(&target, &hard).unwrap();
        put(&hard, "theirs").unwrap();
        assert_eq!(fs::read_to_string(&target).unwrap(), "mine");
        assert!(put(dir.path(), "").is_err());
    }

    #[test]
    fn a_failure_leaves_the_old_file() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("out");
        put(&path, "old").unwrap();
        let result = write_to(&path, |out| {
            out.write_all(b"half")?;
            anyhow::bail!("no more")
        });
        assert!(result.is_err());
        assert_eq!(fs::read_to_string(&path).unwrap(), "old");
        assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 1);
    }
}
