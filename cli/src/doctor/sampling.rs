//! Which processes sample PCs: one for each GPU, which the others wait for.
//!
//! The library reserves a GPU by a Unix socket with an abstract name; the kernel lists those of this network
//! namespace, and `/proc/PID/fd` says whose they are.

use std::collections::HashMap;
use std::path::Path;

use super::{Finding, entries, ok, read};

/// Before the GPU's UUID, as `/proc/net/unix` shows it.
const NAME: &str = "@parcagpu/pc-sampling/";

pub fn finding(root: &Path) -> Option<Finding> {
    let sockets = read(root, "proc/net/unix")?;
    let reserved: HashMap<&str, &str> = sockets.lines().filter_map(inode_and_gpu).collect();
    if reserved.is_empty() {
        return None;
    }
    let mut owners = owners(root, &reserved);
    owners.sort_unstable();
    let named: Vec<&str> = owners.iter().map(|(gpu, _)| gpu.as_str()).collect();
    let mut texts: Vec<String> = owners
        .iter()
        .map(|(gpu, pid)| format!("{gpu} by PID {pid} ({})", comm(root, *pid)))
        .collect();
    let mut unknown: Vec<&str> = reserved.values().copied().collect();
    unknown.retain(|gpu| !named.contains(gpu));
    unknown.sort_unstable();
    texts.extend(
        unknown
            .iter()
            .map(|gpu| format!("{gpu} by a process that cannot be looked into")),
    );
    Some(ok(
        "pc sampling",
        format!(
            "reserved: {}; other programs wait for their turn",
            texts.join(", ")
        ),
    ))
}

/// `Num RefCount Protocol Flags Type St Inode Path`.
fn inode_and_gpu(line: &str) -> Option<(&str, &str)> {
    let mut words = line.split_whitespace();
    let inode = words.nth(6)?;
    Some((inode, words.next()?.strip_prefix(NAME)?))
}

/// GPUs and the processes that have their sockets.
fn owners(root: &Path, reserved: &HashMap<&str, &str>) -> Vec<(String, u32)> {
    let mut owners = Vec::new();
    for folder in entries(root, "proc") {
        let pid = folder.file_name().and_then(|name| name.to_str());
        let Some(pid) = pid.and_then(|pid| pid.parse::<u32>().ok()) else {
            continue;
        };
        for descriptor in entries(&folder, "fd") {
            let Ok(target) = std::fs::read_link(descriptor) else {
                continue;
            };
            let target = target.to_string_lossy();
            let inode = target
                .strip_prefix("socket:[")
                .and_then(|rest| rest.strip_suffix(']'));
            if let Some(gpu) = inode.and_then(|inode| reserved.get(inode)) {
                owners.push(((*gpu).to_owned(), pid));
            }
        }
    }
    owners
}

fn comm(root: &Path, pid: u32) -> String {
    let name = read(root, &format!("proc/{pid}/comm")).unwrap_or_default();
    crate::demangle::clean(name.trim_end())
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::fs::symlink;

    use super::finding;

    #[test]
    fn who_samples_is_named() {
        let root = tempfile::tempdir().unwrap();
        let at = |path: &str| {
            let path = root.path().join(path);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            path
        };
        assert_eq!(finding(root.path()), None);
        let head = "Num       RefCount Protocol Flags    Type St Inode Path\n\
             0000000000000000: 00000002 00000000 00000000 0002 01 77 @/tmp/.X11-unix/X0\n";
        fs::write(at("proc/net/unix"), head).unwrap();
        assert_eq!(finding(root.path()), None);
        let sockets = format!(
            "{head}0000000000000000: 00000002 00000000 00000000 0002 01 4242 @parcagpu/pc-sampling/GPU-7f\n\
             0000000000000000: 00000002 00000000 00000000 0002 01 4343 @parcagpu/pc-sampling/GPU-80\n"
        );
        fs::write(at("proc/net/unix"), sockets).unwrap();
        fs::write(at("proc/4165/comm"), "app\n").unwrap();
        symlink("socket:[4242]", at("proc/4165/fd/31")).unwrap();
        symlink("socket:[77]", at("proc/4165/fd/32")).unwrap();
        let found = finding(root.path()).expect("two GPUs");
        assert_eq!(
            found.text,
            "reserved: GPU-7f by PID 4165 (app), GPU-80 by a process that cannot be looked into; \
             other programs wait for their turn"
        );
    }
}
