//! Recordings made by hand: a training run of any size, and one whose every name and number is hostile.
#![allow(dead_code, reason = "each user takes a part")]

use std::collections::{BTreeMap, HashMap};

use parcagpu_cli::recording::model::{
    About, Clocks, Device, ErrorEvent, Frame, Kernel, Launch, PcSample, Process, Range, RangeKind,
    Recording,
};

const BEGIN: u64 = 1_790_000_000_000_000_000;
const STREAMS: [u32; 4] = [7, 13, 14, 20];
const PROCESSES: u32 = 3;
/// Kernels of one launch of a graph.
const NODES: u64 = 12;

/// Numbers that only look random.
struct Dice(u64);

impl Dice {
    fn roll(&mut self, below: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0 % below
    }
}

/// Names, frames and stacks as they come.
struct Maker {
    rec: Recording,
    known: HashMap<String, u32>,
    stacks: HashMap<Vec<u32>, u32>,
    dice: Dice,
}

impl Maker {
    fn new() -> Self {
        let mut maker = Self {
            rec: Recording::default(),
            known: HashMap::new(),
            stacks: HashMap::new(),
            dice: Dice(0x9e37_79b9_7f4a_7c15),
        };
        maker.name("");
        maker.rec.stacks.push(Vec::new());
        maker
    }

    fn name(&mut self, text: &str) -> u32 {
        let next = self.rec.names.len() as u32;
        let names = &mut self.rec.names;
        *self.known.entry(text.to_owned()).or_insert_with(|| {
            names.push(text.to_owned());
            next
        })
    }

    /// Frames given leaf first as (function, module, file, line).
    fn stack(&mut self, frames: &[(&str, &str, &str, u32)]) -> u32 {
        let mut stack = Vec::new();
        for (function, module, file, line) in frames {
            let frame = Frame {
                function: self.name(function),
                module: self.name(module),
                file: self.name(file),
                line: *line,
            };
            let known = self.rec.frames.iter().position(|f| *f == frame);
            stack.push(known.unwrap_or_else(|| {
                self.rec.frames.push(frame);
                self.rec.frames.len() - 1
            }) as u32);
        }
        let next = self.rec.stacks.len() as u32;
        let stacks = &mut self.rec.stacks;
        *self.stacks.entry(stack.clone()).or_insert_with(|| {
            stacks.push(stack);
            next
        })
    }
}

struct Op {
    layer: &'static str,
    function: &'static str,
    line: u32,
    kernel: &'static str,
    ns: u64,
}

const OPS: [Op; 7] = [
    Op {
        layer: "attention",
        function: "scaled_dot_product_attention",
        line: 61,
        kernel: "_ZN7cutlass13device_kernelIN5flash11enable_sm90INS1_16FlashAttnFwdSm90EEEEEvNT_6ParamsE",
        ns: 182_000,
    },
    Op {
        layer: "attention",
        function: "linear",
        line: 48,
        kernel: "sm90_xmma_gemm_bf16bf16_bf16f32_f32_tn_n_tilesize128x128x64_warpgroupsize1x1x1_execute_segment_k_off_kernel__5x_cublas",
        ns: 96_000,
    },
    Op {
        layer: "mlp",
        function: "linear",
        line: 75,
        kernel: "sm90_xmma_gemm_bf16bf16_bf16f32_f32_tn_n_tilesize128x256x64_warpgroupsize2x1x1_execute_segment_k_off_kernel__5x_cublas",
        ns: 241_000,
    },
    Op {
        layer: "mlp",
        function: "gelu",
        line: 76,
        kernel: "_ZN2at6native29vectorized_elementwise_kernelILi4EZZZNS0_18GeluCUDAKernelImplERNS_18TensorIteratorBaseENS0_8GeluTypeEENKUlvE0_clEvENKUlvE0_clEvEUlfE_St5arrayIPcLm2EEEEviT0_T1_",
        ns: 21_000,
    },
    Op {
        layer: "norm",
        function: "layer_norm",
        line: 83,
        kernel: "_ZN2at6native28vectorized_layer_norm_kernelIN3c108BFloat16EfEEviT0_PKT_S6_S6_PS4_S7_PS5_",
        ns: 14_500,
    },
    Op {
        layer: "norm",
        function: "add",
        line: 84,
        kernel: "_ZN2at6native29vectorized_elementwise_kernelILi4ENS0_15CUDAFunctor_addIfEESt5arrayIPcLm3EEEEviT0_T1_",
        ns: 9_800,
    },
    Op {
        layer: "loss",
        function: "cross_entropy",
        line: 97,
        kernel: "_Z12softmax_rowsPKfPfii",
        ns: 33_000,
    },
];

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

    fn launch(&mut self, process: u32, tid: u32, time_ns: u64, name: &str, stack: u32) -> u32 {
        let index = self.rec.launches.len() as u32;
        let launch = Launch {
            time_ns,
            process,
            tid,
            correlation_id: index + 1,
            cbid: -307,
            name: self.name(name),
            stack,
        };
        self.rec.launches.push(launch);
        index
    }

    fn range(&mut self, process: u32, tid: u32, name: &str, start_ns: u64, end_ns: u64) {
        let name = self.name(name);
        self.rec.ranges.push(Range {
            start_ns,
            end_ns: Some(end_ns),
            process,
            tid,
            name,
            ..Range::default()
        });
    }

    /// Forward passes on the main thread, backward on another, all-reduce on a stream of its own.
    fn steps(&mut self, process: u32, kernels: usize) {
        let (main, backward) = (4100 + process, 4200 + process);
        let nccl = self.name("NCCL");
        let mut cpu = BEGIN + 1_000_000;
        let mut gpu = [cpu; 4];
        let mut made = 0;
        let mut step = 0;
        while made < kernels {
            let from = cpu;
            for (pass, tid) in [("forward", main), ("backward", backward)] {
                let pass_from = cpu;
                for layer in 0..6 {
                    let layer_from = cpu + 600;
                    for op in &OPS {
                        let time =
                            self.dice.roll(op.ns / 5) + op.ns * if tid == main { 1 } else { 2 };
                        let name = self.name(op.kernel);
                        let stack = self.python(op, pass);
                        cpu += 6_000 + self.dice.roll(9_000);
                        let launch = self.launch(process, tid, cpu, op.kernel, stack);
                        let lane = usize::from(op.layer == "norm" && layer % 2 == 0);
                        // Often the kernel runs before its launch has returned.
                        let start = (cpu - self.dice.roll(4_000)).max(gpu[lane]);
                        gpu[lane] = start + time;
                        made += 1;
                        let lost = made % 1_000 == 0;
                        self.kernel(
                            process,
                            STREAMS[lane],
                            launch,
                            name,
                            start,
                            if lost { 0 } else { time },
                        );
                    }
                    self.range(
                        process,
                        tid,
                        &format!("layer {layer}"),
                        layer_from,
                        cpu + 500,
                    );
                }
                self.range(process, tid, pass, pass_from, cpu + 800);
            }
            let stack = self.python(&OPS[6], "all_reduce");
            let kernel =
                "_Z40ncclDevKernel_AllReduce_Sum_bf16_RING_LL24ncclDevKernelArgsStorageILm4096EE";
            let name = self.name(kernel);
            for bucket in 0..2 {
                cpu += 9_000;
                let launch = self.launch(process, backward, cpu, kernel, stack);
                // On one stream, and overlapping there.
                self.kernel(process, 20, launch, name, gpu[0] + bucket * 90_000, 260_000);
                self.rec.ranges.push(Range {
                    start_ns: cpu - 8_000,
                    end_ns: Some(cpu + 14_000),
                    process,
                    tid: backward,
                    kind: RangeKind::Started,
                    domain: nccl,
                    name: self.known["_Z12softmax_rowsPKfPfii"],
                    ..Range::default()
                });
                made += 1;
            }
            let reduce = self.name("ncclAllReduce");
            let newest = self.rec.ranges.len() - 2;
            for range in &mut self.rec.ranges[newest..] {
                range.name = reduce;
            }
            cpu = cpu.max(gpu[0] - 400_000);
            self.range(
                process,
                main,
                &format!("step {}", step % 4),
                from - 500,
                cpu + 900,
            );
            let mark = self.name("loss logged");
            self.rec.ranges.push(Range {
                start_ns: cpu,
                end_ns: Some(cpu),
                process,
                tid: main,
                kind: RangeKind::Mark,
                name: mark,
                ..Range::default()
            });
            cpu += 20_000;
            step += 1;
        }
        let open = self.name("training");
        self.rec.ranges.push(Range {
            start_ns: BEGIN + 900_000,
            end_ns: None,
            process,
            tid: main,
            name: open,
            color: 0xff00_80ff,
            ..Range::default()
        });
    }

    fn python(&mut self, op: &Op, pass: &str) -> u32 {
        let torch = "/usr/lib/python3/dist-packages/torch/nn/functional.py";
        self.stack(&[
            ("cudaLaunchKernel", "/usr/lib/libcudart.so.13", "", 0),
            (
                "at::native::launch(at::Tensor const&)",
                "/usr/lib/libtorch_cuda.so",
                "",
                0,
            ),
            (
                "at::_ops::call(at::Tensor const&, at::Tensor const&)",
                "/usr/lib/libtorch_cpu.so",
                "",
                0,
            ),
            (op.function, "", torch, 120 + op.line),
            (op.layer, "", "/home/me/model.py", op.line),
            (
                pass,
                "",
                "/home/me/train.py",
                if pass == "forward" { 31 } else { 33 },
            ),
            ("<module>", "", "/home/me/train.py", 52),
        ])
    }

    /// A decoder in C++ that replays a graph.
    fn graphs(&mut self, process: u32, launches: usize) {
        let tid = 4100 + process;
        let stack = self.stack(&[
            ("cuGraphLaunch", "/usr/lib/libcuda.so.1", "", 0),
            (
                "decode_token(Model&, State&)",
                "/home/me/decoder",
                "/home/me/decoder.cpp",
                210,
            ),
            ("main", "/home/me/decoder", "/home/me/decoder.cpp", 338),
        ]);
        let mut cpu = BEGIN + 2_000_000;
        for token in 0..launches {
            cpu += 50_000;
            let launch = self.launch(process, tid, cpu, "cuGraphLaunch", stack);
            let mut start = cpu + 2_000;
            for node in 0..NODES {
                let op = &OPS[(node % 7) as usize];
                let name = self.name(op.kernel);
                let time = op.ns / 30 + self.dice.roll(300);
                self.kernel(
                    process,
                    STREAMS[(node % 2) as usize],
                    launch,
                    name,
                    start,
                    time,
                );
                let newest = self.rec.kernels.last_mut().unwrap();
                newest.graph_id = 5;
                newest.graph_node_id = 0x5_0000_0000 + node;
                start += time * 2 / 3;
            }
            self.range(process, tid, "token", cpu - 5_000, cpu + 1_000);
            cpu = cpu.max(start) + if token % 50 == 0 { 200_000 } else { 0 };
        }
    }

    fn kernel(&mut self, process: u32, stream: u32, launch: u32, name: u32, start: u64, ns: u64) {
        let correlation_id = self.rec.launches[launch as usize].correlation_id;
        self.rec.kernels.push(Kernel {
            start_ns: if ns == 0 { 0 } else { start },
            end_ns: if ns == 0 { 0 } else { start + ns },
            process,
            device: process % 2,
            context: 1,
            stream,
            correlation_id,
            grid: [132 * (1 + (name % 5) as i32), 1, 1],
            block: [128, 1, 1],
            registers: 168,
            static_shared_memory: 1024,
            dynamic_shared_memory: 49_152,
            name,
            launch: Some(launch),
            ..Kernel::default()
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

/// Names that would break out of any quoting, indices that lead nowhere, times that cannot be.
pub fn hostile() -> Recording {
    let mut maker = Maker::new();
    let names = [
        "</script><script>document.title='broken'</script>",
        "\"'`><img src=x onerror=\"document.title='broken'\">",
        "<!--<script>",
        "a;b;c 12\n34\r\0\u{1b}[31m\u{202e}\u{2028}]]>",
        "{{7*7}}${7*7}\\u003c",
    ];
    let stack = maker.stack(&[
        (names[0], names[1], names[2], 7),
        (names[3], "", names[4], 0),
    ]);
    let ids = names.map(|name| maker.name(name));
    let mut rec = maker.rec;
    rec.stacks.push(vec![0, 99, u32::MAX]);
    rec.about.command = names[1].to_owned();
    rec.about.kernel_release = names[0].to_owned();
    rec.processes.push(Process {
        pid: u32::MAX,
        comm: names[0].to_owned(),
        threads: BTreeMap::from([(1, names[1].to_owned())]),
        streams: BTreeMap::from([(0, names[0].to_owned())]),
        devices: BTreeMap::from([(
            0,
            Device {
                uuid: names[0].to_owned(),
                ..Device::default()
            },
        )]),
        losses: vec![(names[0].to_owned(), u64::MAX), (names[3].to_owned(), 2)],
        stall_reasons: vec![names[0].to_owned(), names[3].to_owned()],
        ..Process::default()
    });
    for (i, name) in ids.into_iter().enumerate() {
        let i = i as u64;
        rec.launches.push(Launch {
            time_ns: 5_000 + i,
            tid: 1,
            name,
            stack: stack + i as u32,
            ..Launch::default()
        });
        rec.kernels.push(Kernel {
            start_ns: 5_000 + 100 * i,
            end_ns: 5_400 + 100 * i,
            graph_id: i as u32,
            graph_node_id: u64::MAX,
            grid: [-1, i32::MIN, 0],
            name,
            launch: Some(i as u32),
            ..Kernel::default()
        });
        rec.pc_samples.push(PcSample {
            function: name,
            file: name,
            line: i as u32,
            reasons: vec![(0, 1), (1, 2), (u32::MAX, 3)],
            ..PcSample::default()
        });
        // They cross each other.
        rec.ranges.push(Range {
            start_ns: 5_000 + 100 * i,
            end_ns: Some(5_150 + 100 * i),
            tid: 1,
            domain: name,
            name,
            ..Range::default()
        });
        rec.ranges.push(Range {
            start_ns: 5_000 + 100 * i,
            end_ns: Some(5_150 + 100 * i),
            tid: 1,
            name,
            ..Range::default()
        });
    }
    let nowhere = u32::MAX;
    rec.kernels.extend([
        Kernel {
            start_ns: 9,
            end_ns: 8,
            name: nowhere,
            process: nowhere,
            ..Kernel::default()
        },
        Kernel {
            start_ns: 0,
            end_ns: u64::MAX,
            ..Kernel::default()
        },
        Kernel {
            start_ns: 6_000,
            end_ns: 6_001,
            launch: Some(nowhere),
            name: nowhere,
            process: nowhere,
            ..Kernel::default()
        },
    ]);
    rec.pc_samples.push(PcSample {
        process: nowhere,
        function: nowhere,
        reasons: vec![(nowhere, nowhere)],
        ..PcSample::default()
    });
    rec.ranges.push(Range {
        start_ns: 7_000,
        end_ns: Some(6_000),
        process: nowhere,
        name: nowhere,
        ..Range::default()
    });
    rec.errors.push(ErrorEvent {
        process: nowhere,
        component: names[0].to_owned(),
        message: names[1].to_owned(),
        ..ErrorEvent::default()
    });
    rec.truncated = true;
    rec
}
