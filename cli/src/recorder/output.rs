//! Creates the file of a recording with care: never through a link, never over something else, readable by
//! nobody else.

use std::fs::{self, File, OpenOptions};
use std::io::ErrorKind;
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::Path;

use anyhow::Result;

use crate::refusal::{about_path, refuse};

/// Creates `path`; with `force`, a regular file that is there is replaced.
pub fn create(path: &Path, force: bool) -> Result<File> {
    let shown = path.display();
    if force {
        match fs::symlink_metadata(path) {
            Ok(old) if old.is_file() && old.nlink() == 1 => {
                fs::remove_file(path)
                    .map_err(|e| about_path(format!("cannot replace {shown}"), e))?;
            }
            Ok(_) => {
                return Err(refuse(format!(
                    "{shown} is a link or no regular file; it is left alone"
                )));
            }
            Err(_) => {}
        }
    }
    let created = OpenOptions::new()
        .write(true)
        .create_new(true)
        .mode(0o600)
        .custom_flags(libc::O_NOFOLLOW | libc::O_CLOEXEC)
        .open(path);
    created.map_err(|e| match e.kind() {
        ErrorKind::AlreadyExists if path.is_dir() => {
            refuse(format!("{shown} is a folder; -o names a file"))
        }
        ErrorKind::AlreadyExists => refuse(format!(
            "{shown} is there already; --force replaces it, -o names another file"
        )),
        _ => about_path(format!("cannot create {shown}"), e),
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Write;
    use std::os::unix::fs::{PermissionsExt, symlink};

    #[test]
    fn nothing_is_written_over_unasked_or_through_a_link() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("a");
        create(&path, false).unwrap().write_all(b"old").unwrap();
        assert_eq!(
            fs::metadata(&path).unwrap().permissions().mode() & 0o777,
            0o600
        );
        let error = create(&path, false).unwrap_err().to_string();
        assert!(error.contains("is there already"), "{error}");
        create(&path, true).unwrap();
        assert_eq!(fs::read(&path).unwrap(), b"");

        let (link, target) = (dir.path().join("link"), dir.path().join("target"));
        symlink(&target, &link).unwrap();
        for force in [false, true] {
            assert!(create(&link, force).is_err());
        }
        let hard = dir.path().join("hard");
        fs::hard_link(&path, &hard).unwrap();
        assert!(create(&hard, true).is_err());
        assert!(!target.exists() && create(dir.path(), true).is_err());
        let error = create(dir.path(), false).unwrap_err().to_string();
        assert!(error.ends_with("is a folder; -o names a file"), "{error}");
        let error = create(&dir.path().join("no/such"), false).unwrap_err();
        assert!(error.to_string().starts_with("cannot create "));
    }
}
