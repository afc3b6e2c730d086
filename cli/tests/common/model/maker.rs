//! What recordings are put together from.

use std::collections::HashMap;

use parcagpu_cli::recording::model::{Frame, Kernel, Launch, Range, Recording};

/// Numbers that only look random.
pub struct Dice(u64);

impl Dice {
    pub fn roll(&mut self, below: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0 % below
    }
}

/// Names, frames and stacks as they come.
pub struct Maker {
    pub rec: Recording,
    pub known: HashMap<String, u32>,
    stacks: HashMap<Vec<u32>, u32>,
    pub dice: Dice,
}

impl Maker {
    pub fn new() -> Self {
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

    pub fn name(&mut self, text: &str) -> u32 {
        let next = self.rec.names.len() as u32;
        let names = &mut self.rec.names;
        *self.known.entry(text.to_owned()).or_insert_with(|| {
            names.push(text.to_owned());
            next
        })
    }

    /// Frames given leaf first as (function, module, file, line).
    pub fn stack(&mut self, frames: &[(&str, &str, &str, u32)]) -> u32 {
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

    pub fn launch(&mut self, process: u32, tid: u32, time_ns: u64, name: &str, stack: u32) -> u32 {
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

    pub fn range(&mut self, process: u32, tid: u32, name: &str, start_ns: u64, end_ns: u64) {
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

    pub fn kernel(
        &mut self,
        process: u32,
        stream: u32,
        launch: u32,
        name: u32,
        start: u64,
        ns: u64,
    ) {
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
}
