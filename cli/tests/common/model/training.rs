//! A training run: its processes, what they launch, and PC samples.

use std::collections::BTreeMap;

use parcagpu_cli::recording::model::{
    About, Clocks, Device, ErrorEvent, PcSample, Process, Recording,
};

use super::launches::{NODES, OPS};
use super::maker::Maker;

pub const BEGIN: u64 = 1_790_000_000_000_000_000;
const PROCESSES: u32 = 3;

/// A training run with about so many kernels: three processes, four streams, graphs in the third, nested and
/// overlapping NVTX ranges, stacks, PC samples; some kernels without times.
pub fn training(kernels: usize) -> Recording {
    let mut maker = Maker::new();
    for process in 0..PROCESSES {
        let part = kernels / PROCESSES as usize;
        maker.process(process);
        if process == 2 {
            maker.graphs(process, part / NODES as usize);
        } else {
            maker.steps(process, part);
        }
    }
    maker.pc_samples(kernels / 50 + 200);
    let end = maker.rec.kernels.iter().map(|k| k.end_ns).max();
    let mut rec = maker.rec;
    rec.about = About {
        version: "0.1.0".to_owned(),
        command: "python train.py --steps 300".to_owned(),
        kernel_release: "6.18.0".to_owned(),
        host: "node-7".to_owned(),
        utc_offset_s: Some(3600),
        begin_ns: BEGIN,
        end_ns: end.unwrap_or(BEGIN) + 3_000_000,
    };
    rec.clocks = Clocks {
        offset_ns: 1_700_000_000_000_000_000,
        uncertainty_ns: 140,
        drift_ns: -900,
    };
    rec.ranges.sort_by_key(|r| r.start_ns);
    // Kernels name their launches by index.
    let mut order: Vec<u32> = (0..rec.launches.len() as u32).collect();
    order.sort_by_key(|i| rec.launches[*i as usize].time_ns);
    let mut place = vec![0; order.len()];
    for (new, old) in order.iter().enumerate() {
        place[*old as usize] = new as u32;
    }
    rec.launches.sort_by_key(|l| l.time_ns);
    for kernel in &mut rec.kernels {
        kernel.launch = kernel.launch.map(|l| place[l as usize]);
    }
    rec.kernels.sort_by_key(|k| k.start_ns);
    for launch in &rec.launches {
        let process = &mut rec.processes[launch.process as usize];
        process.launches_sampled += 1;
    }
    for (process, seen) in rec.processes.iter_mut().zip([1, 20, 1]) {
        process.launches_seen = Some(process.launches_sampled * seen);
    }
    rec.errors.push(ErrorEvent {
        time_ns: BEGIN + 5,
        process: 1,
        code: 39,
        component: "cupti".to_owned(),
        message: "another profiler held CUPTI for 2.1 s".to_owned(),
    });
    rec
}

impl Maker {
    fn process(&mut self, index: u32) {
        let python = index != 2;
        let uuid = format!("GPU-6f9d8c7e-0000-4000-8000-00000000000{index}");
        let device = Device {
            uuid,
            model: "NVIDIA H200".to_owned(),
            name: String::new(),
            sampling_factor: 20,
            clock_khz: 1_980_000,
            sm_count: 132,
        };
        let reasons = [
            "smsp__pcsamp_sample_count",
            "smsp__pcsamp_samples_data_dropped",
            "smsp__pcsamp_warps_issue_stalled_long_scoreboard",
            "smsp__pcsamp_warps_issue_stalled_long_scoreboard_not_issued",
            "smsp__pcsamp_warps_issue_stalled_math_pipe_throttle",
            "smsp__pcsamp_warps_issue_stalled_barrier",
            "smsp__pcsamp_warps_issue_stalled_wait",
            "smsp__pcsamp_warps_issue_stalled_selected",
            "smsp__pcsamp_warps_issue_stalled_not_selected",
        ];
        self.rec.processes.push(Process {
            pid: 4100 + index,
            comm: if python { "python" } else { "decoder" }.to_owned(),
            threads: BTreeMap::from([
                (4100 + index, "MainThread".to_owned()),
                (4200 + index, "pt_autograd_0".to_owned()),
            ]),
            streams: BTreeMap::from([(13, "copy".to_owned()), (20, "nccl".to_owned())]),
            devices: BTreeMap::from([(index % 2, device)]),
            losses: if index == 1 {
                vec![("records dropped by CUPTI".to_owned(), 17)]
            } else {
                Vec::new()
            },
            stall_reasons: reasons.map(str::to_owned).to_vec(),
            ..Process::default()
        });
    }

    fn pc_samples(&mut self, records: usize) {
        let file = self.name("/home/me/kernels/attention.cu");
        for i in 0..records {
            let op = &OPS[self.dice.roll(6) as usize];
            let function = self.name(op.kernel);
            let known = op.kernel.starts_with("_Z");
            let line = 100 + (self.dice.roll(12) * self.dice.roll(5)) as u32;
            let count = |n: u64| n as u32;
            let waits = count(1 + self.dice.roll(9) * u64::from(line % 7));
            let reasons = vec![
                (0, waits + waits / 3 + 8),
                (1, u32::from(i % 97 == 0)),
                (2, waits),
                (3, waits / 2),
                (4, 5),
                (5, waits / 3),
                (7, 2),
                (8, 1),
            ];
            let mnemonic = self.name(["LDG.E.128", "HGMMA.64x128x16.F32.BF16", "BAR.SYNC"][i % 3]);
            self.rec.pc_samples.push(PcSample {
                time_ns: BEGIN + 3_000_000 + i as u64 * 1000,
                process: (i % 2) as u32,
                crc: 0xdead_beef,
                pc_offset: 16 * self.dice.roll(40),
                function,
                reasons,
                file: if known { file } else { 0 },
                line: if known { line } else { 0 },
                mnemonic,
                ..PcSample::default()
            });
        }
    }
}
