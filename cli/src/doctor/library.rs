//! The library's file: its probes, and whether consumers and programs can use it.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;

use goblin::elf::header::{EM_AARCH64, EM_X86_64};
use parcagpu_abi::probe::{self, PROVIDER};

use super::{Finding, fail, ok, warn};
use crate::discover::Library;

const REBUILD: &str = "build it again with `make local`, or take it from a release";

pub fn findings(library: &Library) -> Vec<Finding> {
    let path = Path::new(&library.path);
    let path = path.canonicalize().unwrap_or_else(|_| path.to_owned());
    let mut findings = vec![machine(library, &path), probes(library), pages(library)];
    findings.push(access(&path));
    findings
}

fn machine(library: &Library, path: &Path) -> Finding {
    let own = if cfg!(target_arch = "x86_64") {
        EM_X86_64
    } else {
        EM_AARCH64
    };
    if library.image.machine == own {
        return ok("library", path.display().to_string());
    }
    fail(
        "library",
        format!("{} is for another architecture", path.display()),
        REBUILD,
    )
}

fn probes(library: &Library) -> Finding {
    let image = &library.image;
    let missing: Vec<&str> = probe::ALL
        .iter()
        .map(|p| p.name)
        .filter(|name| image.note(PROVIDER, name).is_none())
        .collect();
    let twice: Vec<&str> = probe::ALL
        .iter()
        .map(|p| p.name)
        .filter(|name| {
            let is = |n: &&crate::elf::Note| n.provider == PROVIDER && n.name == *name;
            image.notes.iter().filter(is).count() > 1
        })
        .collect();
    let mute: Vec<&str> = image
        .notes
        .iter()
        .filter(|n| n.provider == PROVIDER && n.semaphore == 0)
        .map(|n| n.name.as_str())
        .collect();
    let mut problems = Vec::new();
    for (what, names) in [
        ("missing", &missing),
        ("more than one site", &twice),
        ("no semaphore", &mute),
    ] {
        if !names.is_empty() {
            problems.push(format!("{what}: {}", names.join(", ")));
        }
    }
    if image.status.is_none() {
        problems.push("no status block".to_owned());
    }
    if problems.is_empty() {
        return ok(
            "probes",
            format!(
                "{}, each with one site and a semaphore; status block",
                probe::ALL.len()
            ),
        );
    }
    fail("probes", problems.join("; "), REBUILD)
}

/// See `Image::mappings_of`.
fn pages(library: &Library) -> Finding {
    let image = &library.image;
    let shared: Vec<&str> = image
        .notes
        .iter()
        .filter(|n| n.provider == PROVIDER)
        .filter(|n| {
            image.mappings_of(n.site) != 1
                || n.semaphore != 0 && image.mappings_of(n.semaphore) != 1
        })
        .map(|n| n.name.as_str())
        .collect();
    if shared.is_empty() {
        return ok(
            "pages",
            "no page of a probe is mapped twice (-z separate-code)",
        );
    }
    fail(
        "pages",
        format!(
            "pages of these probes are mapped twice, the kernel counts them wrongly: {}",
            shared.join(", ")
        ),
        "link it with -Wl,-z,separate-code",
    )
}

/// A program of any user has to load the file.
fn access(path: &Path) -> Finding {
    let shown = path.display();
    let mode = |p: &Path| fs::metadata(p).map_or(0, |m| m.permissions().mode());
    if mode(path) & 0o004 == 0 {
        return warn(
            "library_access",
            format!("{shown} cannot be read by every user: their programs run without it"),
            format!("chmod a+r {shown}"),
        );
    }
    let closed = path.ancestors().skip(1).find(|p| mode(p) & 0o001 == 0);
    if let Some(folder) = closed {
        return warn(
            "library_access",
            format!(
                "folder {} is closed to other users: their programs run without the library",
                folder.display()
            ),
            format!("install -D -m 755 {shown} /usr/local/lib/libparcagpu.so"),
        );
    }
    if shown.to_string().contains([' ', ':']) {
        return warn(
            "library_access",
            format!("LD_PRELOAD cannot name {shown}: it has a space or colon"),
            format!("install -D -m 755 '{shown}' /usr/local/lib/libparcagpu.so"),
        );
    }
    ok("library_access", "every user's programs can load it")
}
