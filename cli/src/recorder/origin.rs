//! Where a recording is made: the host, its zone, and what its driver calls the GPUs.

use std::collections::BTreeMap;
use std::fs;
use std::io::Write;
use std::path::Path;

use crate::recording::format::{EVERYBODY, Note, UTC_OFFSET_ZERO};
use crate::recording::writer::Writer;

/// What NVIDIA's kernel module says of each GPU.
const GPUS: &str = "proc/driver/nvidia/gpus";

/// Release of the host's kernel.
pub fn kernel_release() -> String {
    fs::read_to_string("/proc/sys/kernel/osrelease")
        .map(|release| release.trim_end().to_owned())
        .unwrap_or_default()
}

/// Notes the host and its zone.
pub fn say_host(writer: &mut Writer<impl Write>) {
    let host = fs::read_to_string("/proc/sys/kernel/hostname").unwrap_or_default();
    writer.note(EVERYBODY, Note::Host, 0, 0, host.trim_end());
    if let Some(offset) = utc_offset_s() {
        let value = UTC_OFFSET_ZERO.saturating_add_signed(offset);
        writer.note(EVERYBODY, Note::UtcOffset, 0, value, "");
    }
}

/// How far local time is ahead of UTC now, s.
fn utc_offset_s() -> Option<i64> {
    // SAFETY: all zeros is a valid `tm`; both pointers live through the calls.
    unsafe {
        let now = libc::time(std::ptr::null_mut());
        let mut local: libc::tm = std::mem::zeroed();
        (!libc::localtime_r(&raw const now, &raw mut local).is_null()).then_some(local.tm_gmtoff)
    }
}

/// GPUs of the machine: UUID and model. `root` is `/`.
pub fn models(root: &Path) -> BTreeMap<String, String> {
    let field = |text: &str, name: &str| {
        let line = text.lines().find(|l| l.starts_with(name))?;
        Some(line.split_once(':')?.1.trim().to_owned())
    };
    let folders = fs::read_dir(root.join(GPUS)).into_iter().flatten();
    folders
        .flatten()
        .filter_map(|folder| {
            let text = fs::read_to_string(folder.path().join("information")).ok()?;
            Some((field(&text, "GPU UUID")?, field(&text, "Model")?))
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn gpus_have_the_names_of_the_driver() {
        let root = tempfile::tempdir().unwrap();
        assert!(models(root.path()).is_empty());
        let folder = root.path().join(GPUS).join("0000:01:00.0");
        fs::create_dir_all(&folder).unwrap();
        let text = "Model: \t\t NVIDIA H200\nIRQ:   \t 22\nGPU UUID: \t GPU-1\n";
        fs::write(folder.join("information"), text).unwrap();
        let wanted = BTreeMap::from([("GPU-1".to_owned(), "NVIDIA H200".to_owned())]);
        assert_eq!(models(root.path()), wanted);
        assert!(utc_offset_s().is_some_and(|s| s.abs() <= 86_400));
    }
}
