//! Which libcupti.
//!
//! A process can use one copy of libcupti only: once a copy has subscribed, every other one is refused
//! with error 39, also after the first one unsubscribed or finalised (measured, CUDA 13.0). So the copy
//! that the program is going to use is the one to take.
//!
//! In this order: the copy of a mapped tool that is known to bring its own; one that the process has
//! mapped already; `PARCAGPU_CUPTI_PATH`; the one of the driver's major version, else of an older one, by soname and in the usual places (beside CUDA
//! libraries that are mapped, toolkits, the `nvidia/*/lib` folders of a Python environment). Folders
//! named `stubs` are never looked at.

use std::ffi::{CStr, CString, OsStr, c_int, c_void};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

/// A loaded libcupti; its handle is never closed.
pub struct Found {
    /// From `dlopen`.
    pub handle: *mut c_void,
    /// The file, as the loader names it.
    pub path: PathBuf,
    /// What is wrong with the file or folder that was asked for, if this is not it.
    pub complaint: Option<String>,
}

/// Finds and loads libcupti. `driver` is the driver's version (13000 for 13.0), if known. The error
/// says where it was looked for.
pub fn locate(driver: Option<u32>, wanted: Option<&Path>) -> Result<Found, String> {
    let mut complaint = None;
    let found = search(driver, wanted, &mut complaint).map(|found| Found { complaint, ..found });
    // What the loader says of our misses must not be found by the program's next dlerror.
    last_error();
    found
}

fn search(
    driver: Option<u32>,
    wanted: Option<&Path>,
    complaint: &mut Option<String>,
) -> Result<Found, String> {
    *complaint = wanted
        .filter(|path| !path.exists())
        .map(|path| format!("PARCAGPU_CUPTI_PATH={} does not exist", path.display()));
    let mapped = mapped_files();
    if let Some(found) = brought_by_tool(&mapped).and_then(|path| open(&path, 0)) {
        return Ok(found);
    }
    let in_process = mapped.iter().find(|path| is_cupti(path));
    if let Some(found) = in_process.and_then(|path| open(path, libc::RTLD_NOLOAD)) {
        return Ok(found);
    }
    if let Some(wanted) = wanted {
        match open_wanted(wanted, driver) {
            Ok(found) => return Ok(found),
            Err(why) => {
                *complaint = Some(format!("PARCAGPU_CUPTI_PATH={}: {why}", wanted.display()));
            }
        }
    }
    let names = sonames(driver);
    let folders = folders(&mapped);
    for name in &names {
        if let Some(found) = open(Path::new(name), 0) {
            return Ok(found);
        }
        let candidates = folders.iter().map(|folder| folder.join(name));
        for candidate in candidates.filter(|path| !is_stub(path) && path.is_file()) {
            if let Some(found) = open(&candidate, 0) {
                return Ok(found);
            }
        }
    }
    let note = complaint.take().map_or_else(String::new, |c| c + "; ");
    Err(format!(
        "{note}no {} found by the loader or in {} folders of toolkits and Python environments; \
         PARCAGPU_CUPTI_PATH names one",
        names.join(" or "),
        folders.len()
    ))
}

/// Tools that load a copy of their own by its path: file name, and the copy, from the tool's folder.
const TOOLS: [(&str, &str); 1] = [("libproton.so", "../backends/nvidia/lib/cupti/libcupti.so")];

fn brought_by_tool(mapped: &[PathBuf]) -> Option<PathBuf> {
    TOOLS.iter().find_map(|(tool, copy)| {
        let tool = mapped
            .iter()
            .find(|path| path.file_name().is_some_and(|name| name == *tool))?;
        // Without the dots, as the tool names it.
        tool.parent()?.join(copy).canonicalize().ok()
    })
}

/// Sonames that fit a driver, the best first. A library of a newer major version than the driver's
/// does not work; an older one usually does.
fn sonames(driver: Option<u32>) -> Vec<String> {
    const NEWEST_KNOWN: u32 = 13;
    let major = driver.map_or(NEWEST_KNOWN, |version| version / 1000);
    (12..=major)
        .rev()
        .map(|major| format!("libcupti.so.{major}"))
        .chain(std::iter::once("libcupti.so.11.8".to_owned()))
        .collect()
}

fn open_wanted(wanted: &Path, driver: Option<u32>) -> Result<Found, String> {
    let candidates = if wanted.is_dir() {
        sonames(driver)
            .iter()
            .map(|name| wanted.join(name))
            .filter(|path| path.is_file())
            .collect()
    } else {
        vec![wanted.to_owned()]
    };
    let last = candidates.last().ok_or("no libcupti in that folder")?;
    candidates
        .iter()
        .find_map(|path| open(path, 0))
        .ok_or_else(|| last_error().unwrap_or_else(|| format!("cannot load {}", last.display())))
}

fn last_error() -> Option<String> {
    // SAFETY: dlerror gives null or a terminated string of this thread.
    let text = unsafe { libc::dlerror() };
    if text.is_null() {
        return None;
    }
    // SAFETY: as above; copied at once.
    let text = unsafe { CStr::from_ptr(text) };
    Some(text.to_string_lossy().into_owned())
}

/// Loads `path` with the loader's rules; keeps it for ever.
fn open(path: &Path, flags: c_int) -> Option<Found> {
    let name = CString::new(path.as_os_str().as_bytes()).ok()?;
    // SAFETY: a libcupti's constructors are CUPTI's own; the name is terminated.
    let handle = unsafe { libc::dlopen(name.as_ptr(), flags | libc::RTLD_NOW | libc::RTLD_LOCAL) };
    if handle.is_null() {
        return None;
    }
    let path = loaded_path(handle).unwrap_or_else(|| path.to_owned());
    Some(Found {
        handle,
        path,
        complaint: None,
    })
}

/// The file behind a handle, by the address of one of its functions.
fn loaded_path(handle: *mut c_void) -> Option<PathBuf> {
    // SAFETY: the handle is open.
    let address = unsafe { libc::dlsym(handle, c"cuptiGetVersion".as_ptr()) };
    if address.is_null() {
        return None;
    }
    file_of(address)
}

/// The file that has `address` mapped, as the loader names it; the address is not followed.
#[expect(
    clippy::not_unsafe_ptr_arg_deref,
    reason = "dladdr compares it with ranges only"
)]
pub fn file_of(address: *const c_void) -> Option<PathBuf> {
    // SAFETY: an all-zero Dl_info is valid to be overwritten.
    let mut info: libc::Dl_info = unsafe { std::mem::zeroed() };
    // SAFETY: writes `info`; the address need not be valid.
    if unsafe { libc::dladdr(address, &mut info) } == 0 || info.dli_fname.is_null() {
        return None;
    }
    // SAFETY: the loader's own terminated string, copied at once.
    let name = unsafe { CStr::from_ptr(info.dli_fname) };
    Some(PathBuf::from(OsStr::from_bytes(name.to_bytes())))
}

/// Files of all libraries of the process, as the loader names them.
fn mapped_files() -> Vec<PathBuf> {
    unsafe extern "C" fn add(
        info: *mut libc::dl_phdr_info,
        _size: usize,
        files: *mut c_void,
    ) -> c_int {
        // SAFETY: the loader gives a valid info, and `files` is the vector below.
        let (info, files) = unsafe { (&*info, &mut *files.cast::<Vec<PathBuf>>()) };
        if !info.dlpi_name.is_null() {
            // SAFETY: a terminated string of the loader's.
            let name = unsafe { CStr::from_ptr(info.dlpi_name) }.to_bytes();
            if !name.is_empty() {
                files.push(PathBuf::from(OsStr::from_bytes(name)));
            }
        }
        0
    }
    let mut files: Vec<PathBuf> = Vec::new();
    // SAFETY: the callback gets the vector, which outlives the call.
    unsafe { libc::dl_iterate_phdr(Some(add), (&raw mut files).cast()) };
    files
}

fn is_cupti(path: &Path) -> bool {
    path.file_name()
        .is_some_and(|name| name.as_bytes().starts_with(b"libcupti.so"))
        && !is_stub(path)
}

fn is_stub(path: &Path) -> bool {
    path.components().any(|part| part.as_os_str() == "stubs")
}

/// Folders in which a libcupti may lie, each once.
fn folders(mapped: &[PathBuf]) -> Vec<PathBuf> {
    let mut folders: Vec<PathBuf> = Vec::new();
    let mut add = |folder: PathBuf| {
        if !folders.contains(&folder) {
            folders.push(folder);
        }
    };
    // Where the program has its CUDA libraries from.
    for file in mapped {
        let name = file.file_name().map(OsStr::as_bytes).unwrap_or_default();
        let cuda = [
            &b"libcudart."[..],
            b"libcublas.",
            b"libnvrtc.",
            b"libcudnn.",
        ];
        if let (true, Some(folder)) = (
            cuda.iter().any(|prefix| name.starts_with(prefix)),
            file.parent(),
        ) {
            add(folder.to_owned());
            toolkit_folders(&folder.join(".."), &mut add);
        }
    }
    for packages in python_packages(mapped) {
        for vendor in entries(&packages.join("nvidia")) {
            add(vendor.join("lib"));
        }
    }
    for variable in ["CUDA_HOME", "CUDA_PATH"] {
        if let Some(toolkit) = std::env::var_os(variable) {
            toolkit_folders(Path::new(&toolkit), &mut add);
        }
    }
    toolkit_folders(Path::new("/usr/local/cuda"), &mut add);
    let mut toolkits = entries(Path::new("/usr/local"));
    toolkits.retain(|path| {
        path.file_name()
            .is_some_and(|name| name.as_bytes().starts_with(b"cuda-"))
    });
    toolkits.sort();
    for toolkit in toolkits.iter().rev() {
        toolkit_folders(toolkit, &mut add);
    }
    toolkit_folders(Path::new("/opt/cuda"), &mut add);
    folders
}

fn toolkit_folders(toolkit: &Path, add: &mut impl FnMut(PathBuf)) {
    for sub in [
        "extras/CUPTI/lib64",
        "lib64",
        #[cfg(target_arch = "x86_64")]
        "targets/x86_64-linux/lib",
        #[cfg(target_arch = "aarch64")]
        "targets/sbsa-linux/lib",
    ] {
        let folder = toolkit.join(sub);
        if folder.is_dir() {
            add(folder);
        }
    }
}

/// `site-packages` folders of the Python environment this process runs in, if it is one.
fn python_packages(mapped: &[PathBuf]) -> Vec<PathBuf> {
    let of_file = |file: &PathBuf| {
        file.ancestors()
            .find(|a| {
                a.file_name()
                    .is_some_and(|n| n == "site-packages" || n == "dist-packages")
            })
            .map(Path::to_owned)
    };
    let mut packages: Vec<PathBuf> = mapped.iter().filter_map(of_file).collect();
    let prefixes = std::env::var_os("VIRTUAL_ENV")
        .map(PathBuf::from)
        .into_iter()
        .chain(
            std::env::current_exe()
                .ok()
                .filter(|exe| {
                    exe.file_name()
                        .is_some_and(|name| name.as_bytes().starts_with(b"python"))
                })
                .and_then(|exe| exe.ancestors().nth(2).map(Path::to_owned)),
        );
    for prefix in prefixes {
        for python in entries(&prefix.join("lib")) {
            packages.push(python.join("site-packages"));
        }
    }
    packages.sort();
    packages.dedup();
    packages
}

fn entries(folder: &Path) -> Vec<PathBuf> {
    std::fs::read_dir(folder)
        .map(|entries| entries.flatten().map(|entry| entry.path()).collect())
        .unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::{brought_by_tool, file_of, is_cupti, locate, mapped_files, sonames};
    use std::path::Path;

    #[test]
    fn the_copy_of_a_mapped_tool_is_found_beside_it() {
        let root = tempfile::tempdir().unwrap();
        let at = |path| root.path().join(path);
        std::fs::create_dir_all(at("triton/_C")).unwrap();
        std::fs::create_dir_all(at("triton/backends/nvidia/lib/cupti")).unwrap();
        let mapped = [at("torch/libcupti.so.13"), at("triton/_C/libproton.so")];
        assert_eq!(brought_by_tool(&mapped), None);
        let copy = at("triton/backends/nvidia/lib/cupti/libcupti.so");
        std::fs::write(&copy, "").unwrap();
        assert_eq!(brought_by_tool(&mapped), copy.canonicalize().ok());
        assert_eq!(brought_by_tool(&mapped[..1]), None);
    }

    #[test]
    fn the_drivers_major_comes_first_and_never_a_newer_one() {
        assert_eq!(
            sonames(Some(13000)),
            ["libcupti.so.13", "libcupti.so.12", "libcupti.so.11.8"]
        );
        assert_eq!(sonames(Some(12080)), ["libcupti.so.12", "libcupti.so.11.8"]);
        assert_eq!(sonames(Some(11080)), ["libcupti.so.11.8"]);
    }

    #[test]
    fn stubs_are_not_cupti() {
        assert!(is_cupti(Path::new("/usr/local/cuda/lib64/libcupti.so.13")));
        assert!(!is_cupti(Path::new(
            "/usr/local/cuda/lib64/stubs/libcupti.so"
        )));
        assert!(!is_cupti(Path::new("/x/libcuda.so.1")));
    }

    #[test]
    fn mapped_libraries_have_paths() {
        let libc = file_of(libc::getpid as *const std::ffi::c_void).unwrap();
        assert!(mapped_files().contains(&libc), "{libc:?}");
    }

    #[test]
    fn what_was_asked_for_and_is_not_there_is_named() {
        let error = locate(Some(13000), Some(Path::new("/nonexistent/libcupti.so.13")));
        // A machine that has CUPTI installed finds it all the same.
        if let Err(text) = error {
            assert!(text.contains("/nonexistent/libcupti.so.13"), "{text}");
            assert!(text.contains("libcupti.so.13 or libcupti.so.12"), "{text}");
        }
    }
}
