//! What a training run launches: the layers of its steps, and a decoder that replays a graph.

use parcagpu_cli::recording::model::{Range, RangeKind};

use super::maker::Maker;
use super::training::BEGIN;

const STREAMS: [u32; 4] = [7, 13, 14, 20];
/// Kernels of one launch of a graph.
pub const NODES: u64 = 12;

pub struct Op {
    layer: &'static str,
    function: &'static str,
    line: u32,
    pub kernel: &'static str,
    ns: u64,
}

pub const OPS: [Op; 7] = [
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

impl Maker {
    /// Forward passes on the main thread, backward on another, all-reduce on a stream of its own.
    pub fn steps(&mut self, process: u32, kernels: usize) {
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

    pub fn python(&mut self, op: &Op, pass: &str) -> u32 {
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
    pub fn graphs(&mut self, process: u32, launches: usize) {
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
}
