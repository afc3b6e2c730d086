//! pprof: GPU time by CPU stack and kernel, and PC samples by source line, in one profile.
//!
//! Three values per sample: kernels, GPU time, PC samples. Labels: `process`, and for PC samples
//! `stall_reason`. What share was sampled stands where pprof's own reports show it, in the name of the first
//! mapping (`File: ...`), and in the comments.

use std::collections::HashMap;
use std::io::Write;

use anyhow::{Context, Result};
use flate2::Compression;
use flate2::write::GzEncoder;
use prost::Message;

use super::pprof_proto::{Function, Label, Line, Location, Mapping, Profile, Sample, ValueType};
use super::stalls::{Place, stalls, states};
use super::sums::launched;
use super::view::{NO_STACK, View};
use crate::recording::model::{Frame, NameId};

/// Writes the profile, gzipped as pprof wants it.
pub fn write(view: &View<'_>, out: &mut dyn Write) -> Result<()> {
    let profile = profile(view);
    let mut gz = GzEncoder::new(out, Compression::default());
    gz.write_all(&profile.encode_to_vec())?;
    gz.finish().context("failed to compress the profile")?;
    Ok(())
}

fn profile(view: &View<'_>) -> Profile {
    let mut tables = Tables::new(view);
    let mut samples = Vec::new();
    for ((process, stack, kernel), sum) in launched(view) {
        let mut location_id = vec![tables.kernel(kernel)];
        let frames: Vec<&Frame> = view.stack(stack).collect();
        if frames.is_empty() {
            location_id.push(tables.no_stack());
        }
        location_id.extend(frames.into_iter().map(|f| tables.frame(f)));
        samples.push(Sample {
            location_id,
            value: vec![value(sum.calls.into()), value(sum.total_ns), 0],
            label: vec![tables.label("process", &view.process_name(process))],
        });
    }
    for row in stalls(view).places {
        let location = tables.place(row.place);
        for (reason, n) in states(&row.tally) {
            samples.push(Sample {
                location_id: vec![location],
                value: vec![0, 0, value(n.into())],
                label: vec![tables.label("stall_reason", &reason)],
            });
        }
    }
    tables.finish(samples)
}

fn value(n: u128) -> i64 {
    i64::try_from(n).unwrap_or(i64::MAX)
}

/// Strings, functions, locations and mappings, each once.
struct Tables<'v, 'r> {
    view: &'v View<'r>,
    strings: HashMap<String, i64>,
    list: Vec<String>,
    functions: HashMap<(i64, i64, i64), u64>,
    locations: HashMap<(u64, u64, i64, u64), u64>,
    mappings: HashMap<String, u64>,
    profile: Profile,
}

impl<'v, 'r> Tables<'v, 'r> {
    fn new(view: &'v View<'r>) -> Self {
        let mut tables = Self {
            view,
            strings: HashMap::new(),
            list: Vec::new(),
            functions: HashMap::new(),
            locations: HashMap::new(),
            mappings: HashMap::new(),
            profile: Profile::default(),
        };
        tables.string("");
        // The first mapping is what pprof calls the file of the profile.
        tables.gpu();
        tables
    }

    fn string(&mut self, text: &str) -> i64 {
        if let Some(known) = self.strings.get(text) {
            return *known;
        }
        // Tables of 2^63 texts do not fit into any memory.
        let index = self.list.len() as i64;
        self.list.push(text.to_owned());
        self.strings.insert(text.to_owned(), index);
        index
    }

    fn label(&mut self, key: &str, text: &str) -> Label {
        Label {
            key: self.string(key),
            str: self.string(text),
        }
    }

    fn mapping(&mut self, file: &str) -> u64 {
        if let Some(known) = self.mappings.get(file) {
            return *known;
        }
        let id = self.mappings.len() as u64 + 1;
        self.mappings.insert(file.to_owned(), id);
        let filename = self.string(file);
        self.profile.mapping.push(Mapping {
            id,
            filename,
            // Nothing is left for pprof to symbolise.
            has_functions: true,
            has_filenames: true,
            has_line_numbers: true,
        });
        id
    }

    fn gpu(&mut self) -> u64 {
        let name = format!("GPU, {}", self.view.coverage.sentence()).replace('/', " ");
        self.mapping(&name)
    }

    fn function(&mut self, name: &str, system: &str, file: &str) -> u64 {
        let key = (self.string(name), self.string(system), self.string(file));
        if let Some(known) = self.functions.get(&key) {
            return *known;
        }
        let id = self.functions.len() as u64 + 1;
        self.functions.insert(key, id);
        self.profile.function.push(Function {
            id,
            name: key.0,
            system_name: key.1,
            filename: key.2,
        });
        id
    }

    fn location(&mut self, mapping_id: u64, function_id: u64, line: i64, address: u64) -> u64 {
        let key = (mapping_id, function_id, line, address);
        if let Some(known) = self.locations.get(&key) {
            return *known;
        }
        let id = self.locations.len() as u64 + 1;
        self.locations.insert(key, id);
        self.profile.location.push(Location {
            id,
            mapping_id,
            address,
            line: vec![Line { function_id, line }],
        });
        id
    }

    fn kernel(&mut self, name: NameId) -> u64 {
        let view = self.view;
        let mapping = self.gpu();
        let system = view.system_name(name);
        let function = self.function(view.kernel_name(name), &system, "");
        self.location(mapping, function, 0, 0)
    }

    fn no_stack(&mut self) -> u64 {
        let mapping = self.mapping("CPU");
        let function = self.function(NO_STACK, "", "");
        self.location(mapping, function, 0, 0)
    }

    fn frame(&mut self, frame: &Frame) -> u64 {
        let view = self.view;
        let module = match view.name(frame.module) {
            "" => "CPU",
            module => module,
        };
        let mapping = self.mapping(module);
        let system = view.system_name(frame.function);
        let name = view.kernel_name(frame.function);
        let function = self.function(name, &system, view.name(frame.file));
        self.location(mapping, function, frame.line.into(), 0)
    }

    fn place(&mut self, place: Place) -> u64 {
        let view = self.view;
        let mapping = self.gpu();
        let system = view.system_name(place.function);
        let name = view.kernel_name(place.function);
        let function = self.function(name, &system, view.name(place.file));
        let address = place.instruction.map_or(0, |(pc, _)| pc);
        self.location(mapping, function, place.line.into(), address)
    }

    fn finish(mut self, samples: Vec<Sample>) -> Profile {
        let types = [
            ("kernels", "count"),
            ("gpu_time", "nanoseconds"),
            ("pc_samples", "count"),
        ];
        let sample_type = types.map(|(r#type, unit)| ValueType {
            r#type: self.string(r#type),
            unit: self.string(unit),
        });
        let comment = self.view.notes().iter().map(|n| self.string(n)).collect();
        let about = &self.view.rec.about;
        Profile {
            sample_type: sample_type.into(),
            sample: samples,
            comment,
            default_sample_type: self.string("gpu_time"),
            time_nanos: value(about.begin_ns.into()),
            duration_nanos: value(about.end_ns.saturating_sub(about.begin_ns).into()),
            string_table: self.list,
            ..self.profile
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::recording::model::{Kernel, Launch, PcSample, Process, Recording};

    #[test]
    fn every_index_leads_somewhere_and_sums_are_kept() {
        let rec = Recording {
            names: ["", "k\n", "main", "a.cu"].map(str::to_owned).to_vec(),
            frames: vec![Frame {
                function: 2,
                line: 3,
                ..Frame::default()
            }],
            stacks: vec![vec![], vec![0, 0, 99]],
            processes: vec![Process::default()],
            launches: vec![Launch {
                stack: 1,
                ..Launch::default()
            }],
            kernels: vec![
                Kernel {
                    start_ns: 5,
                    end_ns: 12,
                    name: 1,
                    launch: Some(0),
                    ..Kernel::default()
                },
                Kernel {
                    name: 1,
                    ..Kernel::default()
                },
            ],
            pc_samples: vec![PcSample {
                function: 1,
                file: 3,
                line: 8,
                reasons: vec![(0, 4)],
                ..PcSample::default()
            }],
            ..Recording::default()
        };
        let view = View::new(&rec);
        let mut bytes = Vec::new();
        write(&view, &mut bytes).unwrap();
        assert_eq!(bytes[..2], [0x1f, 0x8b]);
        let profile = profile(&view);
        let text = |i: i64| profile.string_table[usize::try_from(i).unwrap()].as_str();
        let sums: Vec<i64> = (0..3)
            .map(|i| profile.sample.iter().map(|s| s.value[i]).sum())
            .collect();
        assert_eq!(sums, [2, 7, 4]);
        assert_eq!(text(0), "");
        assert_eq!(text(profile.default_sample_type), "gpu_time");
        assert!(text(profile.mapping[0].filename).contains("sampled"));
        for sample in &profile.sample {
            for id in &sample.location_id {
                let location = profile.location.iter().find(|l| l.id == *id).unwrap();
                assert!(profile.mapping.iter().any(|m| m.id == location.mapping_id));
                let function = location.line[0].function_id;
                let function = profile.function.iter().find(|f| f.id == function).unwrap();
                assert!(!text(function.name).is_empty());
                assert!(!text(function.name).contains('\n'));
            }
        }
    }
}
