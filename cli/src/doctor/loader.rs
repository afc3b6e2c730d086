//! Where the dynamic loader would find a library: its cache, and the folders it always looks into.

use std::path::{Path, PathBuf};

const MAGIC: &[u8] = b"glibc-ld.so.cache1.1";
/// Magic, two numbers and five words that do not matter to us.
const HEADER: usize = 48;
const ENTRY: usize = 24;

/// Folders the loader looks into without being told, and those of distributions.
const FOLDERS: [&str; 7] = [
    "usr/lib/x86_64-linux-gnu",
    "usr/lib/aarch64-linux-gnu",
    "lib64",
    "usr/lib64",
    "lib",
    "usr/lib",
    "usr/lib/wsl/lib",
];

/// Files of this soname, in the loader's order, under `root`.
pub fn find(root: &Path, soname: &str, library_path: Option<&str>) -> Vec<PathBuf> {
    let under = |path: &str| root.join(path.trim_start_matches('/'));
    let cache = std::fs::read(root.join("etc/ld.so.cache")).unwrap_or_default();
    let told = library_path.unwrap_or_default().split(':');
    let told = told
        .filter(|f| !f.is_empty())
        .map(|f| under(f).join(soname));
    let cached = parse_cache(&cache)
        .into_iter()
        .filter(|(name, _)| name == soname)
        .map(|(_, path)| under(&path));
    let usual = FOLDERS.iter().map(|f| under(f).join(soname));
    let mut files: Vec<PathBuf> = Vec::new();
    for file in told.chain(cached).chain(usual).filter(|f| f.is_file()) {
        if !files.contains(&file) {
            files.push(file);
        }
    }
    files
}

/// Sonames and paths of `ld.so.cache`; empty when it has another form.
pub fn parse_cache(bytes: &[u8]) -> Vec<(String, String)> {
    let Some(begin) = bytes.windows(MAGIC.len()).position(|w| w == MAGIC) else {
        return Vec::new();
    };
    let cache = &bytes[begin..];
    let number = |at: usize| -> Option<usize> {
        let bytes = cache.get(at..at.checked_add(4)?)?;
        usize::try_from(u32::from_le_bytes(bytes.try_into().ok()?)).ok()
    };
    let text = |at: usize| -> Option<String> {
        let rest = cache.get(at..)?;
        let end = rest.iter().position(|b| *b == 0)?;
        Some(String::from_utf8_lossy(&rest[..end]).into_owned())
    };
    let count = number(MAGIC.len()).unwrap_or(0).min(cache.len() / ENTRY);
    (0..count)
        .filter_map(|i| {
            let entry = HEADER + i * ENTRY;
            Some((text(number(entry + 4)?)?, text(number(entry + 8)?)?))
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_cache_of_this_machine_has_its_libc() {
        let Ok(bytes) = std::fs::read("/etc/ld.so.cache") else {
            return;
        };
        let libc = parse_cache(&bytes)
            .into_iter()
            .find(|(n, _)| n == "libc.so.6");
        assert!(Path::new(&libc.unwrap().1).is_file());
        for end in (0..bytes.len()).step_by(997) {
            parse_cache(&bytes[..end]);
        }
        assert!(parse_cache(b"glibc-ld.so.cache1.1\xff\xff\xff\xff").is_empty());
    }

    #[test]
    fn told_folders_come_first() {
        let root = tempfile::tempdir().unwrap();
        for folder in ["opt/x", "usr/lib64"] {
            std::fs::create_dir_all(root.path().join(folder)).unwrap();
            std::fs::write(root.path().join(folder).join("libx.so.1"), "").unwrap();
        }
        let found = find(root.path(), "libx.so.1", Some("/nowhere:/opt/x"));
        assert_eq!(found.len(), 2);
        assert!(found[0].ends_with("opt/x/libx.so.1"));
        assert!(find(root.path(), "liby.so.1", None).is_empty());
    }
}
