//! Takes the bytes of the ring buffer apart; twin of the structs in `bpf/parcagpu.bpf.c`.
//!
//! Nothing is trusted: a length that does not fit makes the event `None`, and the caller counts it.

use parcagpu_abi::pc_sample::{STALL_REASON_NAME_LEN, STALL_REASON_SLOTS};
use parcagpu_abi::probe;

use crate::events::{Body, Event, Header, Kernel, Registers, Stack, Text, TextState};

const HEADER: usize = 32;
const TEXT_MAX: usize = 256;
/// Among the flags of the text.
const STACK_COPIED: u32 = 8;

/// Reads numbers at fixed places; anything outside is `None`.
struct Fields<'a>(&'a [u8]);

impl<'a> Fields<'a> {
    fn bytes(&self, at: usize, n: usize) -> Option<&'a [u8]> {
        self.0.get(at..at.checked_add(n)?)
    }
    fn u16(&self, at: usize) -> Option<u16> {
        Some(u16::from_le_bytes(self.bytes(at, 2)?.try_into().ok()?))
    }
    fn u32(&self, at: usize) -> Option<u32> {
        Some(u32::from_le_bytes(self.bytes(at, 4)?.try_into().ok()?))
    }
    fn i32(&self, at: usize) -> Option<i32> {
        Some(self.u32(at)?.cast_signed())
    }
    fn u64(&self, at: usize) -> Option<u64> {
        Some(u64::from_le_bytes(self.bytes(at, 8)?.try_into().ok()?))
    }
    fn triple(&self, at: usize) -> Option<[i32; 3]> {
        Some([self.i32(at)?, self.i32(at + 4)?, self.i32(at + 8)?])
    }
    /// A text at `at` whose length stands at `len_at`.
    fn text(&self, len_at: usize, at: usize) -> Option<Text<'a>> {
        Some(Text {
            bytes: self.bytes(at, self.u32(len_at)? as usize)?,
            state: TextState::from_flags(self.u32(12)?),
        })
    }
}

/// Takes an event apart; `None` when the bytes are not one.
pub fn decode(bytes: &[u8]) -> Option<Event<'_>> {
    let f = Fields(bytes);
    let header = Header {
        probe: f.u32(0)? as usize,
        pid: f.u32(4)?,
        tid: f.u32(8)?,
        time_ns: f.u64(16)?,
        start_ns: f.u64(24)?,
    };
    let probe = probe::ALL.get(header.probe)?;
    let body = match *probe {
        probe::CUDA_CORRELATION => Body::Correlation {
            id: f.u32(HEADER)?,
            cbid: f.i32(HEADER + 4)?,
            name: f.text(HEADER + 8, HEADER + 16)?,
            stack: stack(&f)?,
        },
        probe::KERNEL_EXECUTED | probe::ACTIVITY_BATCH => Body::Kernel(kernel(&f)?),
        probe::PC_SAMPLE_BATCH => pc_sample(&f)?,
        probe::STALL_REASON_MAP => stall_reasons(&f)?,
        probe::GPU_CONFIG => Body::GpuConfig {
            device: f.u32(HEADER)?,
            sampling_factor: f.u32(HEADER + 4)?,
            clock_khz: f.u32(HEADER + 8)?,
            sm_count: f.u32(HEADER + 12)?,
        },
        probe::CUBIN_LOADED => Body::CubinLoaded {
            crc: f.u64(HEADER)?,
            address: f.u64(HEADER + 8)?,
            size: f.u64(HEADER + 16)?,
        },
        probe::CUBIN_UNLOADED => Body::CubinUnloaded {
            crc: f.u64(HEADER)?,
        },
        probe::ERROR => Body::Error {
            code: f.i32(HEADER)?,
            message: f.text(HEADER + 4, HEADER + 16)?,
            component: f.bytes(HEADER + 16 + TEXT_MAX, f.u32(HEADER + 8)? as usize)?,
        },
        probe::NVTX_EVENT_BATCH => Body::Nvtx {
            timestamp_ns: f.u64(HEADER)?,
            tid: f.u32(HEADER + 8)?,
            correlation_id: f.u32(HEADER + 12)?,
            domain: f.u32(HEADER + 16)?,
            kind: f.u16(HEADER + 20)?,
            flags: f.u16(HEADER + 22)?,
            color: f.u32(HEADER + 24)?,
            device: f.u32(HEADER + 28)?,
            payload: f.u64(HEADER + 32)?,
            range_id: f.u64(HEADER + 40)?,
            message: f.text(HEADER + 48, HEADER + 56)?,
        },
        probe::NVTX_RESOURCE_NAME => Body::ResourceName {
            id: f.u64(HEADER)?,
            kind: f.u32(HEADER + 8)?,
            name: f.text(HEADER + 12, HEADER + 16)?,
        },
        _ => return None,
    };
    Some(Event { header, body })
}

fn stack<'a>(f: &Fields<'a>) -> Option<Stack<'a>> {
    let at = HEADER + 16 + TEXT_MAX;
    Some(match usize::try_from(f.i32(HEADER + 12)?) {
        Ok(0) if f.u32(12)? & STACK_COPIED == 0 => Stack::NotTaken,
        Ok(0) => Stack::Failed,
        Ok(n) if f.u32(12)? & STACK_COPIED != 0 => Stack::Copied {
            registers: Registers {
                ip: f.u64(at)?,
                sp: f.u64(at + 8)?,
                fp: f.u64(at + 16)?,
                link: f.u64(at + 24)?,
            },
            bytes: f.bytes(at + 32, n)?,
        },
        Ok(n) => Stack::Taken(f.bytes(at, n)?),
        Err(_) => Stack::Failed,
    })
}

fn kernel<'a>(f: &Fields<'a>) -> Option<Kernel<'a>> {
    // Record bytes 0..8, 16..96 and 144..160 stand one after another, then the name.
    let body = |offset: usize| HEADER + 8 + offset - 16;
    let graph = HEADER + 8 + 80;
    let name = f.0.get(graph + 16..)?;
    let name_len = name.iter().position(|b| *b == 0).unwrap_or(name.len());
    Some(Kernel {
        kind: f.u32(HEADER)?,
        registers: f.u16(HEADER + 6)?,
        start: f.u64(body(16))?,
        end: f.u64(body(24))?,
        device: f.u32(body(40))?,
        context: f.u32(body(44))?,
        stream: f.u32(body(48))?,
        grid: f.triple(body(52))?,
        block: f.triple(body(64))?,
        static_shared_memory: f.i32(body(76))?,
        dynamic_shared_memory: f.i32(body(80))?,
        correlation_id: f.u32(body(92))?,
        graph_node_id: f.u64(graph)?,
        graph_id: f.u32(graph + 12)?,
        name: Text {
            bytes: &name[..name_len],
            state: TextState::from_flags(f.u32(12)?),
        },
    })
}

fn pc_sample<'a>(f: &Fields<'a>) -> Option<Body<'a>> {
    let reason_count = f.u64(HEADER + 16)?;
    let readable = f.u32(HEADER + 36)? != 0;
    let n = reason_count.min(STALL_REASON_SLOTS as u64) as usize;
    let reasons = (0..if readable { n } else { 0 })
        .map(|i| Some((f.u32(HEADER + 40 + 8 * i)?, f.u32(HEADER + 44 + 8 * i)?)))
        .collect::<Option<_>>()?;
    Some(Body::PcSample {
        crc: f.u64(HEADER)?,
        pc_offset: f.u64(HEADER + 8)?,
        reason_count,
        function_index: f.u32(HEADER + 24)?,
        correlation_id: f.u32(HEADER + 28)?,
        name: f.text(HEADER + 32, HEADER + 40 + 8 * STALL_REASON_SLOTS)?,
        reasons,
    })
}

fn stall_reasons<'a>(f: &Fields<'a>) -> Option<Body<'a>> {
    let count = f.u32(HEADER)?;
    let readable = f.u32(HEADER + 4)? != 0;
    let n = if readable {
        (count as usize).min(STALL_REASON_SLOTS)
    } else {
        0
    };
    let names = (0..n)
        .map(|i| {
            let name = f.bytes(
                HEADER + 8 + i * STALL_REASON_NAME_LEN,
                STALL_REASON_NAME_LEN,
            )?;
            let end = name.iter().position(|b| *b == 0).unwrap_or(name.len());
            Some(String::from_utf8_lossy(&name[..end]).into_owned())
        })
        .collect::<Option<_>>()?;
    Some(Body::StallReasons { count, names })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn header(probe: u32, flags: u32) -> Vec<u8> {
        let mut bytes = Vec::new();
        for n in [probe, 10, 11, flags] {
            bytes.extend(n.to_le_bytes());
        }
        for n in [1_000u64, 2_000] {
            bytes.extend(n.to_le_bytes());
        }
        bytes
    }

    #[test]
    fn correlation_with_a_cut_name() {
        let mut bytes = header(0, 1);
        for n in [7u32, (-307i32).cast_unsigned(), 3, 0] {
            bytes.extend(n.to_le_bytes());
        }
        bytes.extend(b"abc");
        let event = decode(&bytes).unwrap();
        assert_eq!((event.header.pid, event.header.tid), (10, 11));
        let name = Text {
            bytes: b"abc",
            state: TextState::Cut,
        };
        assert_eq!(
            event.body,
            Body::Correlation {
                id: 7,
                cbid: -307,
                name,
                stack: Stack::NotTaken,
            }
        );
    }

    #[test]
    fn a_stack_follows_the_room_for_the_name() {
        let launch = |stack_bytes: i32| {
            let mut bytes = header(0, 0);
            for n in [7u32, 1, 1, stack_bytes.cast_unsigned()] {
                bytes.extend(n.to_le_bytes());
            }
            bytes.push(b'k');
            bytes.resize(HEADER + 16 + TEXT_MAX, 0);
            for n in [0x1000u64, 0x2000] {
                bytes.extend(n.to_le_bytes());
            }
            bytes
        };
        let stack = |bytes: &[u8]| match decode(bytes)?.body {
            Body::Correlation { stack, .. } => {
                Some((stack == Stack::Failed, stack.addresses().collect()))
            }
            _ => None,
        };
        assert_eq!(stack(&launch(16)), Some((false, vec![0x1000u64, 0x2000])));
        assert_eq!(stack(&launch(8)), Some((false, vec![0x1000])));
        assert_eq!(stack(&launch(-14)), Some((true, vec![])));
        assert_eq!(stack(&launch(24)), None);
    }

    #[test]
    fn a_copied_stack_has_registers_before_it() {
        let launch = |stack_bytes: i32| {
            let mut bytes = header(0, STACK_COPIED | 1);
            for n in [7u32, 1, 1, stack_bytes.cast_unsigned()] {
                bytes.extend(n.to_le_bytes());
            }
            bytes.push(b'k');
            bytes.resize(HEADER + 16 + TEXT_MAX, 0);
            for n in [1u64, 2, 3, 4, 5] {
                bytes.extend(n.to_le_bytes());
            }
            bytes
        };
        let bytes = launch(8);
        let Some(Body::Correlation { name, stack, .. }) = decode(&bytes).map(|e| e.body) else {
            panic!("not a launch")
        };
        let registers = Registers {
            ip: 1,
            sp: 2,
            fp: 3,
            link: 4,
        };
        let bytes = &5u64.to_le_bytes();
        assert_eq!(stack, Stack::Copied { registers, bytes });
        assert_eq!(name.state, TextState::Cut);
        assert!(decode(&launch(16)).is_none());
        let bytes = launch(0);
        let Some(Body::Correlation { stack, .. }) = decode(&bytes).map(|e| e.body) else {
            panic!("not a launch")
        };
        assert_eq!(stack, Stack::Failed);
    }

    #[test]
    fn a_length_beyond_the_event_is_refused() {
        let mut bytes = header(0, 0);
        for n in [7u32, 1, 4, 0] {
            bytes.extend(n.to_le_bytes());
        }
        bytes.extend(b"abc");
        assert_eq!(decode(&bytes), None);
    }

    #[test]
    fn any_bytes_decode_or_are_refused() {
        for probe in 0..12 {
            for fill in [0u8, 1, 0x7f, 0xff] {
                for n in [0usize, 1, 31, 32, 40, 64, 200, 416, 712, 4200] {
                    let mut bytes = header(probe, u32::from(fill));
                    bytes.resize(HEADER + n, fill);
                    bytes.truncate(n.max(1));
                    if let Some(event) = decode(&bytes) {
                        assert_eq!(event.header.probe, probe as usize);
                    }
                }
            }
        }
        assert_eq!(decode(&header(11, 0)), None);
        assert_eq!(decode(&header(u32::MAX, 0)), None);
    }

    #[test]
    fn times_of_zero_or_backwards_have_no_duration() {
        let mut bytes = header(2, 2);
        bytes.resize(HEADER + 8 + 80 + 16, 0);
        let Body::Kernel(mut kernel) = decode(&bytes).unwrap().body else {
            panic!("not a kernel");
        };
        assert_eq!(kernel.name.state, TextState::Null);
        assert_eq!(kernel.duration(), None);
        (kernel.start, kernel.end) = (5, 3);
        assert_eq!(kernel.duration(), None);
        (kernel.start, kernel.end) = (5, 5);
        assert_eq!(kernel.duration(), Some(0));
    }
}
