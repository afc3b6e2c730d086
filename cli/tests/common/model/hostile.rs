//! Names that would break out of any quoting, indices that lead nowhere, times that cannot be.

use std::collections::BTreeMap;

use parcagpu_cli::recording::model::{
    Device, ErrorEvent, Kernel, Launch, PcSample, Process, Range, Recording,
};

use super::maker::Maker;

/// Every name and number is hostile.
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
