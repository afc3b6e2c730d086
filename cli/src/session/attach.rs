//! Attaching the BPF programs to the probes of a library.

use std::fs;
use std::os::fd::AsRawFd;

use anyhow::{Context, Result};
use libbpf_rs::{Link, ProgramMut, UsdtOpts};
use parcagpu_abi::probe::{self, PROVIDER, Probe};

use super::Wanted;
use super::said::libbpf_said;
use super::skel::ParcagpuSkel;
use crate::elf::Image;

/// What probes are attached to.
pub struct Target<'a> {
    /// The library.
    pub file: &'a fs::File,
    /// What is in it.
    pub image: &'a Image,
    /// Number and start of the one process; `None`: all.
    pub process: Option<(u32, u64)>,
}

/// Attaches those of the probes that the file has.
pub fn attach_to(
    skel: &mut ParcagpuSkel<'static>,
    wanted: &Wanted,
    target: &Target<'_>,
    probes: &[Probe],
) -> Result<Vec<Link>> {
    let has = |p: &Probe| target.image.note(PROVIDER, p.name).is_some();
    // Through the descriptor: nobody can replace the file under us.
    let path = format!("/proc/self/fd/{}", target.file.as_raw_fd());
    let mut links = Vec::new();
    for probe in probes.iter().filter(|p| has(p)) {
        if *probe == probe::KERNEL_EXECUTED
            && has(&probe::ACTIVITY_BATCH)
            && !wanted.kernel_executed_too
        {
            continue;
        }
        let options = UsdtOpts {
            cookie: status_distance(target.image, probe).unwrap_or(0),
            ..UsdtOpts::default()
        };
        let pid = target.process.map_or(-1, |(pid, _)| pid.cast_signed());
        let link = program(skel, probe)
            .attach_usdt_with_opts(pid, &path, PROVIDER, probe.name, options)
            .map_err(|e| anyhow::anyhow!("{e}: {}", libbpf_said()))
            .with_context(|| format!("failed to attach to {}", probe.name))?;
        links.push(link);
    }
    Ok(links)
}

/// Distance from a probe site to the status block, as the BPF program adds it to the address of the
/// site.
fn status_distance(image: &Image, probe: &Probe) -> Option<u64> {
    let site = image.note(PROVIDER, probe.name)?.site;
    Some(image.status?.wrapping_sub(site))
}

fn program<'a>(skel: &'a mut ParcagpuSkel<'static>, probe: &Probe) -> &'a mut ProgramMut<'static> {
    let programs = &mut skel.progs;
    match *probe {
        probe::CUDA_CORRELATION => &mut programs.on_cuda_correlation,
        probe::KERNEL_EXECUTED => &mut programs.on_kernel_executed,
        probe::ACTIVITY_BATCH => &mut programs.on_activity_batch,
        probe::PC_SAMPLE_BATCH => &mut programs.on_pc_sample_batch,
        probe::STALL_REASON_MAP => &mut programs.on_stall_reason_map,
        probe::GPU_CONFIG => &mut programs.on_gpu_config,
        probe::CUBIN_LOADED => &mut programs.on_cubin_loaded,
        probe::CUBIN_UNLOADED => &mut programs.on_cubin_unloaded,
        probe::ERROR => &mut programs.on_error,
        probe::NVTX_EVENT_BATCH => &mut programs.on_nvtx_event_batch,
        _ => &mut programs.on_nvtx_resource_name,
    }
}
