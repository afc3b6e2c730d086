//! Holds the names we look up, and the names the simulated driver exports, against NVIDIA's.
//!
//! Real libraries are read as ELF files and never loaded: some crash without a driver.

mod conformance_common;
mod conformance_mocks;
mod conformance_wheels;

use conformance_common::root;
use conformance_mocks::mock;
use conformance_wheels::wheels;
use goblin::elf::Elf;
use goblin::elf::sym::{STB_GLOBAL, STB_WEAK, STT_FUNC};
use parcagpu::cupti::api;
use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

/// Functions a library exports, and its soname.
fn exports(library: &Path) -> (BTreeSet<String>, Option<String>) {
    let bytes = std::fs::read(library).unwrap_or_else(|e| panic!("{}: {e}", library.display()));
    let elf = Elf::parse(&bytes).unwrap_or_else(|e| panic!("{}: {e}", library.display()));
    let names = elf
        .dynsyms
        .iter()
        .filter(|sym| {
            !sym.is_import()
                && sym.st_type() == STT_FUNC
                && matches!(sym.st_bind(), STB_GLOBAL | STB_WEAK)
        })
        .filter_map(|sym| elf.dynstrtab.get_at(sym.st_name))
        .map(str::to_owned)
        .collect();
    (names, elf.soname.map(str::to_owned))
}

fn libcupti(wheel: &Path) -> PathBuf {
    let folder = wheel.join("lib");
    let mut found =
        std::fs::read_dir(&folder).unwrap_or_else(|e| panic!("{}: {e}", folder.display()));
    found
        .next()
        .expect("fetched wheels hold a libcupti")
        .expect("a readable folder")
        .path()
}

/// Every identifier in NVIDIA's driver headers that can name an entry point: prototypes, their
/// versioned names, and the per-thread-stream twins, which only the callback ids spell out.
fn driver_names(wheel: &Path) -> BTreeSet<String> {
    let mut names = BTreeSet::new();
    for header in ["cuda.h", "cudaTypedefs.h", "cupti_driver_cbid.h"] {
        let path = wheel.join("include").join(header);
        let text =
            std::fs::read_to_string(&path).unwrap_or_else(|e| panic!("{}: {e}", path.display()));
        for word in text.split(|c: char| !c.is_ascii_alphanumeric() && c != '_') {
            let word = word
                .strip_prefix("CUPTI_DRIVER_TRACE_CBID_")
                .unwrap_or(word);
            if word
                .strip_prefix("cu")
                .is_some_and(|rest| rest.starts_with(|c: char| c.is_ascii_uppercase()))
            {
                names.insert(word.to_owned());
            }
        }
    }
    assert!(
        names.len() > 500,
        "only {} names in {}",
        names.len(),
        wheel.display()
    );
    names
}

#[test]
fn every_required_function_is_in_every_libcupti() {
    let Some(wheels) = wheels("every_required_function_is_in_every_libcupti") else {
        return;
    };
    let mut missing = Vec::new();
    for (version, folder) in &wheels {
        let (names, soname) = exports(&libcupti(folder));
        assert!(
            names.len() > 100,
            "CUDA {version}: only {} functions",
            names.len()
        );
        assert!(
            soname.is_some_and(|name| name.starts_with("libcupti.so.")),
            "CUDA {version}"
        );
        missing.extend(
            api::REQUIRED
                .iter()
                .filter(|name| !names.contains(**name))
                .map(|name| format!("CUDA {version}: {name}")),
        );
    }
    assert!(missing.is_empty(), "{}", missing.join("\n"));
}

/// The names `cupti::driver` looks up in libcuda stand in its source as C strings.
#[test]
fn the_driver_functions_we_call_are_in_the_headers() {
    let Some(wheels) = wheels("the_driver_functions_we_call_are_in_the_headers") else {
        return;
    };
    let source =
        std::fs::read_to_string(root().join("src/cupti/driver.rs")).expect("driver.rs is there");
    let ours: BTreeSet<&str> = source
        .split("c\"cu")
        .skip(1)
        .filter_map(|rest| rest.split('"').next())
        .filter(|rest| !rest.is_empty())
        .collect();
    assert!(ours.len() >= 3, "{ours:?}");
    // Each lookup may fail in an older driver; a name that the newest does not have is a wrong one.
    let (version, folder) = wheels.last().expect("at least one version");
    let names = driver_names(folder);
    for name in &ours {
        let name = format!("cu{name}");
        assert!(names.contains(&name), "CUDA {version} has no {name}");
    }
}

#[test]
fn the_simulated_cupti_exports_only_what_the_real_one_does() {
    let Some(wheels) = wheels("the_simulated_cupti_exports_only_what_the_real_one_does") else {
        return;
    };
    let (ours, soname) = exports(&mock("mock-cupti"));
    let (_, folder) = wheels
        .iter()
        .find(|(version, _)| version == "13.0")
        .expect("13.0 is simulated");
    let (real, real_soname) = exports(&libcupti(folder));
    assert_eq!(soname, real_soname);
    let wrong: Vec<_> = ours
        .iter()
        .filter(|name| !real.contains(*name) && !name.starts_with("mock"))
        .collect();
    assert!(wrong.is_empty(), "not in libcupti 13.0: {wrong:?}");
    let missing: Vec<_> = api::REQUIRED
        .iter()
        .filter(|name| !ours.contains(**name))
        .collect();
    assert!(missing.is_empty(), "not simulated: {missing:?}");
}

#[test]
fn the_simulated_driver_exports_only_what_the_headers_name() {
    let Some(wheels) = wheels("the_simulated_driver_exports_only_what_the_headers_name") else {
        return;
    };
    let (ours, soname) = exports(&mock("mock-cuda"));
    assert_eq!(soname.as_deref(), Some("libcuda.so.1"));
    assert!(ours.iter().any(|name| name == "cuLaunchKernel"), "{ours:?}");
    let (_, folder) = wheels
        .iter()
        .find(|(version, _)| version == "13.0")
        .expect("13.0 is simulated");
    let names = driver_names(folder);
    let wrong: Vec<_> = ours
        .iter()
        .filter(|name| !names.contains(*name) && !name.starts_with("mock"))
        .collect();
    assert!(
        wrong.is_empty(),
        "not in the headers of CUDA 13.0: {wrong:?}"
    );
}
