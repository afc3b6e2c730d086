use super::*;
use crate::recording::format::{EVERYBODY, Note, UTC_OFFSET_ZERO};
use crate::recording::model::{Device, RangeKind};
use crate::recording::writer::{Beginning, Writer};

const OFFSET: i64 = 1_000_000;

/// A small recording with something of everything, and where its flushes ended.
fn sample() -> (Vec<u8>, Vec<usize>) {
    let about = Beginning {
        version: "1.2.3".to_owned(),
        command: "app --fast".to_owned(),
        kernel_release: "6.1".to_owned(),
        begin_ns: 50,
    };
    let mut ends = Vec::new();
    let mut w = Writer::new(Vec::new(), &about).unwrap();
    let mut flush = |w: &mut Writer<Vec<u8>>| {
        w.flush().unwrap();
        ends.push(usize::try_from(w.bytes()).unwrap());
    };
    w.clock(50, OFFSET, 40);
    let p = w.process(77, 5);
    w.note(p, Note::Comm, 0, 0, "app");
    w.note(p, Note::Thread, 78, 0, "worker");
    w.note(p, Note::Stream, 7, 0, "copies");
    w.note(p, Note::DeviceUuid, 1, 0, "GPU-1");
    w.note(p, Note::DeviceName, 1, 0, "the first");
    w.note(p, Note::DeviceModel, 1, 0, "NVIDIA H200");
    w.note(EVERYBODY, Note::Host, 0, 0, "node-7");
    w.note(EVERYBODY, Note::UtcOffset, 0, UTC_OFFSET_ZERO - 3600, "");
    w.note(p, Note::SamplingFactor, 1, 20, "");
    w.note(p, Note::Clock, 1, 1_980_000, "");
    w.note(p, Note::SmCount, 1, 132, "");
    w.note(p, Note::StallReason, 1, 0, "stall_wait");
    w.note(p, Note::Cubin, 0xabc, 9, "");
    w.note(p, Note::Cubin, 0xdef, 9, "");
    flush(&mut w);
    let kernel = w.name(b"_Z1kv", false);
    for i in 0..3u64 {
        w.launch([100 + i, p, 78, 5 + i, 614, kernel, 3]);
    }
    let main = w.name(b"main", false);
    let file = w.name(b"main.c", false);
    let frames = [w.frame([main, 0, file, 12]), w.frame([kernel, 0, 0, 0])];
    w.stack(3, &frames);
    w.same_stack(4, 3);
    w.launch([103, p, 78, 99, 614, kernel, 4]);
    flush(&mut w);
    for i in 0..3u64 {
        let mut row = [0; 19];
        row[..9].copy_from_slice(&[
            OFFSET.cast_unsigned() + 200 + i,
            10,
            p,
            1,
            2,
            7,
            5 + i,
            3,
            1 << 40,
        ]);
        row[9..].copy_from_slice(&[4, 5, 6, 32, 2, 1, 40, u32::MAX.into(), 12, kernel]);
        w.kernel(row);
    }
    w.pc_sample([300, p, 0xabc, 16, kernel, 5], &[(1, 40), (0, 2)]);
    w.pc_sample([301, p, 0xabc, 32, kernel, 0], &[]);
    let step = w.name(b"step", false);
    w.note(p, Note::Domain, 2, 0, "loader");
    w.nvtx([110, p, 78, 1, 2, 0, 0xff00, step]);
    w.nvtx([120, p, 78, 2, 2, 0, 0, 0]);
    let (component, message) = (w.name(b"cupti", false), w.name(b"broke", false));
    w.error([130, p, 9, component, message]);
    w.cubin(0xabc, 0, 9, b"\x7fELF ");
    w.cubin(0xabc, 5, 9, b"code");
    w.loss(p, 1, "launches given up", 0);
    w.note(p, Note::LaunchesSeen, 0, 1 + 4, "");
    w.clock(1_050, OFFSET + 100, 30);
    flush(&mut w);
    let file = w.finish(1_050).unwrap();
    (file, ends)
}

fn read_bytes(bytes: &[u8]) -> Result<Recording> {
    read_from(bytes, Limits::default())
}

#[test]
fn everything_comes_back() {
    let r = read_bytes(&sample().0).unwrap();
    assert!(!r.truncated && r.damage.is_none() && r.losses.is_empty());
    assert_eq!(
        (r.about.version.as_str(), r.about.command.as_str()),
        ("1.2.3", "app --fast")
    );
    assert_eq!((r.about.begin_ns, r.about.end_ns), (1_000_050, 1_001_150));
    assert_eq!(
        (r.about.host.as_str(), r.about.utc_offset_s),
        ("node-7", Some(-3600))
    );
    assert_eq!(
        (
            r.clocks.offset_ns,
            r.clocks.drift_ns,
            r.clocks.uncertainty_ns
        ),
        (OFFSET, 100, 40)
    );
    let p = &r.processes[0];
    assert_eq!(
        (p.pid, p.comm.as_str(), p.threads[&78].as_str()),
        (77, "app", "worker")
    );
    assert_eq!(
        (p.stream_handles[&7].as_str(), p.stall_reasons[1].as_str()),
        ("copies", "stall_wait")
    );
    let device = Device {
        uuid: "GPU-1".to_owned(),
        model: "NVIDIA H200".to_owned(),
        name: "the first".to_owned(),
        sampling_factor: 20,
        clock_khz: 1_980_000,
        sm_count: 132,
    };
    assert_eq!(p.devices[&1], device);
    assert!(p.is_whole());
    assert_eq!((p.launches_sampled, p.launches_seen), (4, Some(4)));
    assert_eq!(
        (p.cubins[&0xabc].as_slice(), p.cubins[&0xdef].as_slice()),
        (&b"\x7fELF code"[..], &b""[..])
    );
    let name = |id: u32| r.names[id as usize].as_str();
    assert_eq!(r.launches.len(), 4);
    assert_eq!(r.launches[3].stack, r.launches[0].stack);
    // Five hundredths of the way between two readings that are 100 ns apart.
    assert_eq!(r.launches[0].time_ns, 1_000_105);
    assert_eq!(
        (
            r.launches[0].cbid,
            r.launches[0].tid,
            name(r.launches[0].name)
        ),
        (307, 78, "_Z1kv")
    );
    let stack: Vec<(&str, u32)> = r.stacks[r.launches[0].stack as usize]
        .iter()
        .map(|f| {
            (
                name(r.frames[*f as usize].function),
                r.frames[*f as usize].line,
            )
        })
        .collect();
    assert_eq!(stack, [("main", 12), ("_Z1kv", 0)]);
    let k = r.kernels[1];
    assert_eq!(
        (k.start_ns, k.end_ns, k.launch),
        (1_000_201, 1_000_211, Some(1))
    );
    assert_eq!(
        (k.grid, k.block, k.static_shared_memory),
        ([4, 5, 6], [32, 2, 1], -1)
    );
    assert_eq!((k.graph_id, k.graph_node_id, k.registers), (3, 1 << 40, 40));
    assert_eq!(r.pc_samples[0].reasons, [(1, 40), (0, 2)]);
    assert_eq!(r.pc_samples[1].reasons, []);
    let range = r.ranges[0];
    assert_eq!(
        (range.kind, name(range.domain), name(range.name)),
        (RangeKind::Pushed, "loader", "step")
    );
    assert_eq!(range.end_ns, Some(1_000_127));
    assert_eq!(
        (r.errors[0].code, r.errors[0].message.as_str()),
        (-5, "broke")
    );
}

#[test]
fn a_file_cut_anywhere_is_readable_up_to_there() {
    let (file, ends) = sample();
    for n in 0..file.len() {
        let Ok(r) = read_bytes(&file[..n]) else {
            assert!(n < ends[0], "cut at {n}");
            continue;
        };
        assert!(r.truncated && r.damage.is_none(), "cut at {n}");
        if n >= ends[0] {
            assert_eq!(r.processes[0].comm, "app");
        }
        if n >= ends[1] {
            assert_eq!((r.launches.len(), r.stacks.len()), (4, 2), "cut at {n}");
        }
        if n >= ends[2] {
            assert_eq!((r.kernels.len(), r.ranges.len()), (3, 1), "cut at {n}");
        }
        // Where the end is not told, it is that of the last event.
        if n >= ends[2] {
            assert_eq!(r.about.end_ns, 1_000_212);
        }
    }
}

#[test]
fn every_byte_that_changes_is_noticed() {
    let (file, ends) = sample();
    for at in 0..file.len() {
        let mut bytes = file.clone();
        bytes[at] ^= 0x41;
        match read_bytes(&bytes) {
            Err(_) => assert!(at < ends[0], "byte {at}"),
            Ok(r) => {
                assert!(r.truncated, "byte {at}");
                if at >= ends[1] {
                    assert_eq!(r.launches.len(), 4, "what stands before is kept");
                }
            }
        }
    }
}

#[test]
fn what_is_no_recording_is_told_so() {
    let message = |bytes: &[u8]| format!("{:#}", read_bytes(bytes).unwrap_err());
    for n in [0, 3, 8, 11, 15] {
        let wanted =
            format!("it ends after {n} bytes: the recorder ended before it had written anything");
        assert_eq!(message(&sample().0[..n]), wanted);
    }
    assert!(message(b"PARCADEC").starts_with("this is no recording of parcagpu;"));
    assert!(message(&[b'x'; 100]).starts_with("this is no recording of parcagpu;"));
    let mut newer = sample().0;
    newer[8] = 9;
    assert_eq!(
        message(&newer),
        "its format is version 9; this program reads version 1"
    );
    for n in [16, 20, 40] {
        let message = message(&sample().0[..n]);
        assert!(
            message.starts_with("it ends in its beginning: "),
            "{message}"
        );
    }
    let error = read(Path::new("/nowhere/file")).unwrap_err();
    assert!(format!("{error:#}").starts_with("cannot open /nowhere/file: "));
}

#[test]
fn losses_of_all_are_losses_of_each() {
    let mut w = Writer::new(Vec::new(), &Beginning::default()).unwrap();
    for pid in [1, 2] {
        w.process(pid, 0);
    }
    w.loss(EVERYBODY, 3, "events dropped", 4);
    w.loss(EVERYBODY, 3, "events dropped", 5);
    w.loss(1, 0, "mine", 1);
    w.gap(0, "names cut", 2);
    w.note(0, Note::LaunchesSeen, 0, 0, "");
    let r = read_bytes(&w.finish(0).unwrap()).unwrap();
    assert_eq!(r.losses, [("events dropped".to_owned(), 5)]);
    assert_eq!(
        (r.processes[0].losses.len(), r.processes[1].losses.len()),
        (1, 2)
    );
    assert_eq!(r.gaps, [("names cut".to_owned(), 2)]);
    assert_eq!(r.processes[1].losses[0], ("mine".to_owned(), 1));
    assert_eq!(r.processes[0].launches_seen, None);
}

/// A block of references to what is not there, and tables that unpack to far more than they take.
#[test]
fn well_formed_lies_are_refused_in_bounded_memory() {
    let mut w = Writer::new(Vec::new(), &Beginning::default()).unwrap();
    w.launch([1, 0, 1, 1, 0, 0, 0]);
    let r = read_bytes(&w.finish(0).unwrap()).unwrap();
    assert!(
        r.truncated
            && r.damage
                .unwrap()
                .contains("a process is used that is not there")
    );

    let mut w = Writer::new(Vec::new(), &Beginning::default()).unwrap();
    w.process(1, 1);
    for _ in 0..40_000 {
        w.kernel([0; 19]);
    }
    let file = w.finish(0).unwrap();
    assert!(file.len() < 1_000);
    assert_eq!(read_bytes(&file).unwrap().kernels.len(), 40_000);
    let r = read_from(&file[..], Limits { memory: 5_000_000 }).unwrap();
    assert_eq!(r.kernels.len(), 16_384);
    assert!(r.damage.unwrap().contains("more memory than is allowed"));
}

#[test]
fn tables_of_any_size_come_back() {
    let mut w = Writer::new(Vec::new(), &Beginning::default()).unwrap();
    let p = w.process(1, 1);
    for i in 0..100_000u64 {
        let name = w.name(format!("k{}", i % 30_000).as_bytes(), false);
        w.launch([i, p, 1, i, 0, name, i]);
        let frame = w.frame([name, 0, 0, i % 7]);
        w.stack(i, &[frame; 100][..(i % 100) as usize]);
        w.pc_sample([i, p, 1, 1, name, 0], &[(1, 1); 64][..(i % 64) as usize]);
    }
    let r = read_bytes(&w.finish(0).unwrap()).unwrap();
    assert!(!r.truncated, "{:?}", r.damage);
    for (i, launch) in r.launches.iter().enumerate() {
        assert_eq!(r.names[launch.name as usize], format!("k{}", i % 30_000));
        assert_eq!(r.stacks[launch.stack as usize].len(), i % 100);
        assert_eq!(r.pc_samples[i].reasons.len(), i % 64);
    }
}
