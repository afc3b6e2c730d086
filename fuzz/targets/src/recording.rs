//! A file that somebody says is a recording.

use parcagpu_cli::demangle::plays_tricks;
use parcagpu_cli::recording::block::put;
use parcagpu_cli::recording::format::{Kind, MAGIC, VERSION};
use parcagpu_cli::recording::model::Recording;
use parcagpu_cli::recording::reader::{Limits, read_from};
use parcagpu_cli::report::{Format, write};

use crate::Bytes;

/// Blocks, each as its kind (u8), the length of its payload (u16) and the payload: checksums are put in here,
/// since no mutation would ever get them right. What begins as a file does is read as it is.
fn read(data: &[u8]) -> Option<Recording> {
    let mut file = Vec::new();
    if data.starts_with(&MAGIC) {
        file.extend_from_slice(data);
    } else {
        file.extend(MAGIC);
        file.extend(VERSION.to_le_bytes());
        file.extend([0; 4]);
        let mut data = Bytes(data);
        while !data.0.is_empty() {
            let kind = Kind::from_u8(data.u8()).unwrap_or(Kind::Names);
            let len = usize::from(data.u16());
            put(&mut file, kind, data.take(len));
        }
    }
    let limits = Limits { memory: 16 << 20 };
    read_from(&file[..], limits).ok()
}

/// The file alone.
pub fn recording(data: &[u8]) {
    if let Some(recording) = read(data) {
        check(&recording);
    }
}

/// Everything that is drawn from it.
pub fn report(data: &[u8]) {
    let Some(recording) = read(data) else {
        return;
    };
    outputs(&recording);
}

/// Whatever a recording says, each output can be made of it, in text that is text.
fn outputs(recording: &Recording) {
    for format in Format::ALL {
        let mut out = Vec::new();
        write(recording, format, 0, &mut out).expect("memory takes all");
        if format.is_lines() {
            let text = String::from_utf8(out).expect("UTF-8");
            // JSON has its own escapes.
            let tricky = |c| plays_tricks(c) && c != '\n';
            assert!(format == Format::Jsonl || !text.chars().any(tricky));
        }
    }
}

/// What outputs rely on: every index leads somewhere, and times do not run backwards.
fn check(r: &Recording) {
    assert!(r.names[0].is_empty() && r.stacks[0].is_empty());
    let name = |id: u32| assert!((id as usize) < r.names.len());
    let process = |id: u32| assert!((id as usize) < r.processes.len());
    for frame in &r.frames {
        [frame.function, frame.module, frame.file]
            .into_iter()
            .for_each(name);
    }
    for frame in r.stacks.iter().flatten() {
        assert!((*frame as usize) < r.frames.len());
    }
    for launch in &r.launches {
        process(launch.process);
        name(launch.name);
        assert!((launch.stack as usize) < r.stacks.len());
    }
    for kernel in &r.kernels {
        process(kernel.process);
        name(kernel.name);
        assert!(kernel.end_ns >= kernel.start_ns);
        if let Some(index) = kernel.launch {
            let launch = &r.launches[index as usize];
            assert_eq!(launch.process, kernel.process);
            assert_eq!(launch.correlation_id, kernel.correlation_id);
        }
    }
    for sample in &r.pc_samples {
        process(sample.process);
        [sample.function, sample.file, sample.mnemonic]
            .into_iter()
            .for_each(name);
    }
    for range in &r.ranges {
        process(range.process);
        [range.domain, range.name].into_iter().for_each(name);
        assert!(range.end_ns.is_none_or(|end| end >= range.start_ns));
    }
    for error in &r.errors {
        process(error.process);
    }
    assert!(r.launches.is_sorted_by_key(|launch| launch.time_ns));
    assert!(r.kernels.is_sorted_by_key(|kernel| kernel.start_ns));
    assert!(r.ranges.is_sorted_by_key(|range| range.start_ns));
}
