//! Which libcupti programs of this host would get, in the order in which the library looks.
//!
//! What a program has mapped comes before everything and cannot be known here; `status` shows it for
//! programs that run.

use std::env;
use std::path::{Path, PathBuf};

use super::{Finding, driver, entries, loader, ok, warn};

const INSTALL: &str = "python3 -m pip install nvidia-cuda-cupti (in the program's environment), or install the CUDA toolkit\n\
    or name it: PARCAGPU_CUPTI_PATH=/path/to/libcupti.so.13";

/// What the search is told by the environment.
#[derive(Default)]
struct Environment {
    cupti_path: Option<PathBuf>,
    library_path: Option<String>,
    toolkits: Vec<PathBuf>,
    python_prefixes: Vec<PathBuf>,
}

impl Environment {
    fn ours() -> Self {
        let set = |name: &str| {
            env::var_os(name)
                .filter(|v| !v.is_empty())
                .map(PathBuf::from)
        };
        let python = env::var_os("PATH")
            .iter()
            .flat_map(env::split_paths)
            .map(|folder| folder.join("python3"))
            .find_map(|file| file.canonicalize().ok())
            .and_then(|file| file.ancestors().nth(2).map(Path::to_owned));
        Self {
            cupti_path: set("PARCAGPU_CUPTI_PATH"),
            library_path: env::var("LD_LIBRARY_PATH").ok(),
            toolkits: ["CUDA_HOME", "CUDA_PATH"]
                .into_iter()
                .filter_map(set)
                .collect(),
            python_prefixes: set("VIRTUAL_ENV").into_iter().chain(python).collect(),
        }
    }
}

pub fn finding(root: &Path, driver: Option<&str>) -> Finding {
    judge(root, driver, &Environment::ours())
}

fn judge(root: &Path, driver: Option<&str>, environment: &Environment) -> Finding {
    let major = driver.and_then(driver::cuda_major);
    if let Some(named) = &environment.cupti_path
        && !named.exists()
    {
        return warn(
            "libcupti",
            format!("PARCAGPU_CUPTI_PATH={} does not exist", named.display()),
            "unset PARCAGPU_CUPTI_PATH, or correct it",
        );
    }
    let sonames = sonames(major);
    if let Some(file) = search(root, &sonames, environment) {
        return ok("libcupti", describe(&file));
    }
    let newer = format!("libcupti.so.{}", major.map_or(14, |m| m + 1));
    if let Some(file) = search(root, &[newer], environment) {
        return warn(
            "libcupti",
            format!(
                "only {}, which is newer than the driver: it does not work with it",
                describe(&file)
            ),
            format!(
                "update the driver, or: python3 -m pip install nvidia-cuda-cupti-cu{}",
                major.unwrap_or(12)
            ),
        );
    }
    warn(
        "libcupti",
        format!(
            "no {} where programs of this host would find it (PyTorch brings its own)",
            sonames.join(" or ")
        ),
        INSTALL,
    )
}

fn sonames(major: Option<u32>) -> Vec<String> {
    (12..=major.unwrap_or(13))
        .rev()
        .map(|major| format!("libcupti.so.{major}"))
        .chain(["libcupti.so.11.8".to_owned()])
        .collect()
}

fn search(root: &Path, sonames: &[String], environment: &Environment) -> Option<PathBuf> {
    if let Some(named) = &environment.cupti_path {
        if named.is_file() {
            return Some(named.clone());
        }
        let inside = sonames
            .iter()
            .map(|name| named.join(name))
            .find(|f| f.is_file());
        if inside.is_some() {
            return inside;
        }
    }
    let folders = folders(root, environment);
    sonames.iter().find_map(|name| {
        let by_loader = loader::find(root, name, environment.library_path.as_deref());
        let in_folders = folders.iter().map(|folder| folder.join(name));
        by_loader.into_iter().chain(in_folders).find(|file| {
            file.is_file() && !file.components().any(|part| part.as_os_str() == "stubs")
        })
    })
}

fn folders(root: &Path, environment: &Environment) -> Vec<PathBuf> {
    let mut folders = Vec::new();
    let python = |prefix: &Path, folders: &mut Vec<PathBuf>| {
        for version in entries(prefix, "lib") {
            for packages in ["site-packages", "dist-packages"] {
                for vendor in entries(&version, &format!("{packages}/nvidia")) {
                    folders.push(vendor.join("lib"));
                }
            }
        }
    };
    for prefix in &environment.python_prefixes {
        python(prefix, &mut folders);
    }
    python(&root.join("usr/local"), &mut folders);
    python(&root.join("usr"), &mut folders);
    let mut toolkits = environment.toolkits.clone();
    toolkits.push(root.join("usr/local/cuda"));
    let versions = entries(root, "usr/local").into_iter().rev();
    toolkits.extend(versions.filter(|p| {
        p.file_name()
            .is_some_and(|n| n.to_string_lossy().starts_with("cuda-"))
    }));
    toolkits.push(root.join("opt/cuda"));
    for toolkit in toolkits {
        for sub in [
            "extras/CUPTI/lib64",
            "lib64",
            "targets/x86_64-linux/lib",
            "targets/sbsa-linux/lib",
        ] {
            folders.push(toolkit.join(sub));
        }
    }
    folders
}

/// The path, and the version that the real file's name tells.
fn describe(file: &Path) -> String {
    let real = file.canonicalize().unwrap_or_else(|_| file.to_owned());
    let name = real.file_name().map(|n| n.to_string_lossy().into_owned());
    let version = name
        .as_deref()
        .and_then(|n| n.strip_prefix("libcupti.so."))
        .map_or_else(String::new, |v| format!(" (version {v})"));
    format!("{}{version}", file.display())
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::super::Level;
    use super::*;

    fn touch(root: &Path, path: &str) {
        let file = root.join(path);
        fs::create_dir_all(file.parent().unwrap()).unwrap();
        fs::write(file, "").unwrap();
    }

    #[test]
    fn the_one_that_fits_the_driver_is_found() {
        let root = tempfile::tempdir().unwrap();
        let root = root.path();
        let nothing = judge(root, Some("580.1"), &Environment::default());
        assert_eq!(nothing.level, Level::Warn);
        assert!(nothing.cure.contains("nvidia-cuda-cupti"));
        touch(
            root,
            "usr/local/cuda-12.8/extras/CUPTI/lib64/libcupti.so.12",
        );
        touch(
            root,
            "usr/lib/python3/dist-packages/nvidia/cu13/lib/libcupti.so.13",
        );
        let text = |driver: &str| judge(root, Some(driver), &Environment::default()).text;
        assert!(text("580.1").ends_with("cu13/lib/libcupti.so.13 (version 13)"));
        assert!(text("570.1").ends_with("lib64/libcupti.so.12 (version 12)"));
        let older = judge(root, Some("470.1"), &Environment::default());
        assert!(
            older.text.contains("newer than the driver"),
            "{}",
            older.text
        );
    }

    #[test]
    fn what_the_environment_names_comes_first() {
        let root = tempfile::tempdir().unwrap();
        let root = root.path();
        touch(root, "usr/lib64/libcupti.so.13");
        touch(root, "mine/libcupti.so.13");
        touch(
            root,
            "venv/lib/python3.11/site-packages/nvidia/cuda_cupti/lib/libcupti.so.12",
        );
        let named = |path: &str| Environment {
            cupti_path: Some(root.join(path)),
            ..Environment::default()
        };
        assert!(
            judge(root, None, &named("mine"))
                .text
                .contains("/mine/libcupti.so.13")
        );
        assert_eq!(judge(root, None, &named("nowhere")).level, Level::Warn);
        let venv = Environment {
            python_prefixes: vec![root.join("venv")],
            ..Environment::default()
        };
        assert!(
            judge(root, Some("535"), &venv)
                .text
                .contains("site-packages")
        );
    }
}
