//! NVIDIA's driver: kernel module, devices, libcuda, the right to profile, MIG. All from files.

use std::path::Path;

use super::{Finding, entries, fail, loader, ok, read, warn};

const PARAMETERS: &str = "proc/driver/nvidia/params";

/// Version of the kernel module, e.g. 580.159.04.
pub fn version(root: &Path) -> Option<String> {
    let text = read(root, "proc/driver/nvidia/version")?;
    let line = text.lines().find(|l| l.starts_with("NVRM version"))?;
    // "... Kernel Module  580.159.04  Release Build ..."; the open module says "... for x86_64  580...".
    line.split_whitespace()
        .find(|word| word.contains('.') && word.bytes().all(|b| b.is_ascii_digit() || b == b'.'))
        .map(str::to_owned)
}

/// CUDA major version that a driver brings.
pub fn cuda_major(driver: &str) -> Option<u32> {
    let branch: u32 = driver.split('.').next()?.parse().ok()?;
    Some(match branch {
        580.. => 13,
        525..580 => 12,
        450..525 => 11,
        _ => return None,
    })
}

pub fn findings(root: &Path) -> Vec<Finding> {
    let Some(driver) = version(root) else {
        return vec![absent(root)];
    };
    let mut findings = vec![ok("driver", format!("NVIDIA {driver}"))];
    findings.push(gpus(root));
    findings.push(devices(root));
    findings.push(libcuda(root, &driver));
    findings.push(profiling(root));
    findings.push(mig(root));
    findings
}

fn absent(root: &Path) -> Finding {
    let wsl = read(root, "proc/version").is_some_and(|v| v.to_lowercase().contains("microsoft"));
    if wsl {
        return warn(
            "driver",
            "WSL: the driver is Windows', its settings cannot be seen from here",
            "NVIDIA Control Panel, Developer, Manage GPU Performance Counters: allow access to all users",
        );
    }
    warn(
        "driver",
        "no NVIDIA driver here: programs find no GPU (the simulated driver works)",
        "install the driver, modprobe nvidia; in a container: docker run --gpus all",
    )
}

fn gpus(root: &Path) -> Finding {
    let field = |text: &str, name: &str| {
        let line = text.lines().find(|l| l.starts_with(name))?;
        Some(line.split_once(':')?.1.trim().to_owned())
    };
    let gpus: Vec<String> = entries(root, "proc/driver/nvidia/gpus")
        .iter()
        .filter_map(|folder| {
            let text = std::fs::read_to_string(folder.join("information")).ok()?;
            let model = field(&text, "Model").unwrap_or_else(|| "unknown model".to_owned());
            let uuid = field(&text, "GPU UUID").unwrap_or_else(|| "no UUID".to_owned());
            Some(format!("{model} ({uuid})"))
        })
        .collect();
    if gpus.is_empty() {
        return warn(
            "gpus",
            "the driver sees no GPU",
            "lspci | grep -i nvidia; dmesg | grep -i nvrm",
        );
    }
    ok("gpus", gpus.join(", "))
}

fn devices(root: &Path) -> Finding {
    let missing: Vec<&str> = ["dev/nvidiactl", "dev/nvidia-uvm"]
        .into_iter()
        .filter(|device| !root.join(device).exists())
        .collect();
    if missing.is_empty() {
        return ok("devices", "/dev/nvidiactl, /dev/nvidia-uvm");
    }
    warn(
        "devices",
        format!(
            "not there: /{} (programs started here get no GPU)",
            missing.join(", /")
        ),
        "nvidia-modprobe -u -c=0; in a container: docker run --gpus all (not needed to watch programs of other containers)",
    )
}

fn libcuda(root: &Path, driver: &str) -> Finding {
    let path = std::env::var("LD_LIBRARY_PATH").ok();
    let found = loader::find(root, "libcuda.so.1", path.as_deref());
    let Some(file) = found.first() else {
        return warn(
            "libcuda",
            "the loader finds no libcuda.so.1 (programs started here do not find it either)",
            "install the driver's libraries (libcuda1, nvidia-driver-cuda); in a container: docker run --gpus all",
        );
    };
    let real = file.canonicalize().unwrap_or_else(|_| file.clone());
    let name = real.file_name().map(|n| n.to_string_lossy().into_owned());
    let version = name.as_deref().and_then(|n| n.strip_prefix("libcuda.so."));
    match version {
        Some(version) if version.contains('.') && version != driver => fail(
            "libcuda",
            format!(
                "{} does not fit the kernel module {driver}: cuInit fails",
                real.display()
            ),
            "reboot (the driver was updated while its module was loaded)",
        ),
        _ => ok("libcuda", real.display().to_string()),
    }
}

fn profiling(root: &Path) -> Finding {
    let parameters = read(root, PARAMETERS).unwrap_or_default();
    let value = parameters
        .lines()
        .find_map(|l| l.strip_prefix("RmProfilingAdminOnly:"))
        .map(str::trim);
    match value {
        Some("0") => ok(
            "profiling",
            "PC sampling is open to all users (RmProfilingAdminOnly 0)",
        ),
        Some(_) => warn(
            "profiling",
            "PC sampling only for programs of root (RmProfilingAdminOnly 1); kernel times are not concerned",
            "echo 'options nvidia NVreg_RestrictProfilingToAdminUsers=0' > /etc/modprobe.d/nvidia-profiling.conf\n\
             update-initramfs -u (Debian, Ubuntu) or dracut -f (Fedora, RHEL), then reboot\n\
             or run the program as root (in a container: --cap-add SYS_ADMIN)",
        ),
        None => warn(
            "profiling",
            format!("/{PARAMETERS} does not say who may sample PCs"),
            "look at it on the host: grep RmProfilingAdminOnly /proc/driver/nvidia/params",
        ),
    }
}

fn mig(root: &Path) -> Finding {
    let instances: usize = entries(root, "proc/driver/nvidia/capabilities")
        .iter()
        .filter(|gpu| {
            gpu.file_name()
                .is_some_and(|n| n.to_string_lossy().starts_with("gpu"))
        })
        .map(|gpu| {
            let names = std::fs::read_dir(gpu.join("mig"));
            names.map_or(0, |dir| {
                dir.flatten()
                    .filter(|e| e.file_name().to_string_lossy().starts_with("gi"))
                    .count()
            })
        })
        .sum();
    if instances == 0 {
        return ok("mig", "no MIG instances");
    }
    warn(
        "mig",
        format!(
            "{instances} MIG instances: PC sampling and MIG were not tried together; CUPTI may refuse (error 43)"
        ),
        "for PC sampling: nvidia-smi -mig 0 (ends all programs on the GPU)",
    )
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::super::Level;
    use super::*;

    const VERSION: &str = "NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  580.159.04  Release Build  (x)\n\
        GCC version:  gcc version 12.3.0\n";

    fn host(files: &[(&str, &str)]) -> tempfile::TempDir {
        let root = tempfile::tempdir().unwrap();
        for (path, text) in files {
            let path = root.path().join(path);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, text).unwrap();
        }
        root
    }

    #[test]
    fn a_gpu_host() {
        let root = host(&[
            ("proc/driver/nvidia/version", VERSION),
            (
                "proc/driver/nvidia/params",
                "ResmanDebugLevel: 4294967295\nRmProfilingAdminOnly: 0\n",
            ),
            (
                "proc/driver/nvidia/gpus/0000:01:00.0/information",
                "Model: \t\t NVIDIA H200\nIRQ:   \t 22\nGPU UUID: \t GPU-1\n",
            ),
            ("dev/nvidiactl", ""),
            ("dev/nvidia-uvm", ""),
            ("usr/lib64/libcuda.so.580.159.04", ""),
            ("proc/driver/nvidia/capabilities/mig/config", ""),
        ]);
        let link = root.path().join("usr/lib64/libcuda.so.1");
        std::os::unix::fs::symlink("libcuda.so.580.159.04", &link).unwrap();
        let findings = findings(root.path());
        assert!(
            findings.iter().all(|f| f.level == Level::Ok),
            "{findings:?}"
        );
        assert_eq!(findings[0].text, "NVIDIA 580.159.04");
        assert_eq!(findings[1].text, "NVIDIA H200 (GPU-1)");
        assert_eq!(cuda_major("580.159.04"), Some(13));
        assert_eq!(cuda_major("535.1"), Some(12));
    }

    #[test]
    fn what_hinders_has_its_cure() {
        let root = host(&[
            ("proc/driver/nvidia/version", VERSION),
            ("proc/driver/nvidia/params", "RmProfilingAdminOnly: 1\n"),
            ("proc/driver/nvidia/capabilities/gpu0/mig/gi1/access", ""),
            ("usr/lib64/libcuda.so.550.1", ""),
        ]);
        let link = root.path().join("usr/lib64/libcuda.so.1");
        std::os::unix::fs::symlink("libcuda.so.550.1", &link).unwrap();
        let findings = findings(root.path());
        let one = |check: &str| findings.iter().find(|f| f.check == check).unwrap();
        assert!(
            one("profiling")
                .cure
                .contains("NVreg_RestrictProfilingToAdminUsers=0")
        );
        assert!(one("mig").text.starts_with("1 MIG"));
        assert_eq!(one("libcuda").level, Level::Fail);
        assert!(
            one("devices")
                .text
                .contains("/dev/nvidiactl, /dev/nvidia-uvm")
        );
        assert_eq!(one("gpus").level, Level::Warn);
    }

    #[test]
    fn no_driver_is_a_finding() {
        let root = host(&[("proc/version", "Linux version 6.1 (gcc)")]);
        let none = findings(root.path());
        assert_eq!((none.len(), none[0].level), (1, Level::Warn));
        let root = host(&[("proc/version", "Linux version 5.15-Microsoft-standard-WSL2")]);
        assert!(findings(root.path())[0].text.starts_with("WSL"));
    }
}
