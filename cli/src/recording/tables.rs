//! The tables of a file as they are read, checked row by row, and what becomes of them.

use std::collections::{BTreeMap, HashMap};

use super::columns::{Malformed, unfold};
use super::format::{CUBIN_MAX, EVERYBODY, Note, UTC_OFFSET_ZERO};
use super::join;
use super::model::{Device, ErrorEvent, Frame, Kernel, Launch, PcSample, Process, Recording};

/// Grows as blocks are read; [`Tables::finish`] makes the recording of it.
#[derive(Debug)]
pub struct Tables {
    recording: Recording,
    /// Index in the recording of a stack in the file.
    stacks: HashMap<u64, u32>,
    clocks: Vec<[u64; 3]>,
    nvtx: Vec<[u64; 8]>,
    domains: BTreeMap<(u32, u32), String>,
    /// By process, `None`: everybody, and key.
    losses: BTreeMap<(Option<u32>, u64), (u64, u32)>,
    gaps: BTreeMap<u64, (u64, u32)>,
    /// Size and bytes so far, by checksum.
    cubins: BTreeMap<u64, (u64, Vec<u8>)>,
    /// Bytes that may still be used.
    left: u64,
}

type Checked<T> = Result<T, Malformed>;

fn small<T: TryFrom<u64>>(n: u64) -> Checked<T> {
    T::try_from(n).map_err(|_| Malformed("a number is too large for its place"))
}

fn signed(n: u64) -> Checked<i32> {
    i32::try_from(unfold(n)).map_err(|_| Malformed("a number is too large for its place"))
}

impl Tables {
    /// Empty, with the memory that may be used, in bytes.
    pub fn new(memory: u64) -> Self {
        let recording = Recording {
            names: vec![String::new()],
            stacks: vec![Vec::new()],
            ..Recording::default()
        };
        Self {
            recording,
            stacks: HashMap::new(),
            clocks: Vec::new(),
            nvtx: Vec::new(),
            domains: BTreeMap::new(),
            losses: BTreeMap::new(),
            gaps: BTreeMap::new(),
            cubins: BTreeMap::new(),
            left: memory,
        }
    }

    /// Accounts for things to be kept. Vectors have up to twice the room they need.
    fn spend<T>(&mut self, count: usize, more: usize) -> Checked<()> {
        let bytes = (count as u64).saturating_mul((2 * size_of::<T>() + more) as u64);
        self.left = self
            .left
            .checked_sub(bytes)
            .ok_or(Malformed("what follows needs more memory than is allowed"))?;
        Ok(())
    }

    fn name_id(&self, n: u64) -> Checked<u32> {
        small(n)
            .ok()
            .filter(|id: &u32| (*id as usize) < self.recording.names.len())
            .ok_or(Malformed("a name is used that is not there"))
    }

    fn text(&self, n: u64) -> Checked<&str> {
        Ok(&self.recording.names[self.name_id(n)? as usize])
    }

    fn process_index(&self, n: u64) -> Checked<u32> {
        small(n)
            .ok()
            .filter(|index: &u32| (*index as usize) < self.recording.processes.len())
            .ok_or(Malformed("a process is used that is not there"))
    }

    /// See [`super::format::Kind::About`].
    pub fn about(&mut self, version: &str, command: &str, release: &str, begin_ns: u64) {
        let about = &mut self.recording.about;
        version.clone_into(&mut about.version);
        command.clone_into(&mut about.command);
        release.clone_into(&mut about.kernel_release);
        (about.begin_ns, about.end_ns) = (begin_ns, begin_ns);
    }

    /// The moment of the end, `CLOCK_MONOTONIC` ns.
    pub fn end(&mut self, end_ns: u64) {
        self.recording.about.end_ns = end_ns;
    }

    /// A name.
    pub fn name(&mut self, name: &str) -> Checked<()> {
        self.spend::<String>(1, name.len() + 16)?;
        self.recording.names.push(name.to_owned());
        Ok(())
    }

    /// See [`super::format::Kind::Frames`].
    pub fn frames(&mut self, rows: &[[u64; 4]]) -> Checked<()> {
        self.spend::<Frame>(rows.len(), 0)?;
        for [function, module, file, line] in rows {
            let frame = Frame {
                function: self.name_id(*function)?,
                module: self.name_id(*module)?,
                file: self.name_id(*file)?,
                line: small(*line)?,
            };
            self.recording.frames.push(frame);
        }
        Ok(())
    }

    /// See [`super::format::Kind::Stacks`].
    pub fn stacks(&mut self, rows: &[[u64; 3]], frames: &[[u64; 1]]) -> Checked<()> {
        self.spend::<(Vec<u32>, u64, u32)>(rows.len(), 64)?;
        self.spend::<u32>(frames.len(), 0)?;
        let known = self.recording.frames.len() as u64;
        let mut rest = frames;
        for [id, earlier, count] in rows {
            let (mine, others) = part(rest, *count)?;
            rest = others;
            if *earlier != 0 {
                let index = self.stacks.get(earlier).copied();
                let index = index.ok_or(Malformed("a stack is used that is not there"))?;
                self.stacks.insert(*id, index);
                continue;
            }
            if mine.iter().any(|[frame]| *frame >= known) {
                return Err(Malformed("a frame is used that is not there"));
            }
            let stack = mine.iter().map(|[f]| small(*f)).collect::<Checked<_>>()?;
            let index = small(self.recording.stacks.len() as u64)?;
            self.recording.stacks.push(stack);
            self.stacks.insert(*id, index);
        }
        Ok(())
    }

    /// See [`super::format::Kind::Processes`].
    pub fn processes(&mut self, rows: &[[u64; 2]]) -> Checked<()> {
        self.spend::<Process>(rows.len(), 64)?;
        for [pid, _start] in rows {
            self.recording.processes.push(Process {
                pid: small(*pid)?,
                ..Process::default()
            });
        }
        Ok(())
    }

    /// See [`super::format::Kind::Notes`].
    pub fn notes(&mut self, rows: &[[u64; 5]]) -> Checked<()> {
        for row in rows {
            self.note(*row)?;
        }
        Ok(())
    }

    fn note(&mut self, [process, note, key, value, text]: [u64; 5]) -> Checked<()> {
        let Some(note) = Note::from_u64(note) else {
            return Ok(());
        };
        self.spend::<String>(1, 64 + self.text(text)?.len())?;
        let name = self.name_id(text)?;
        if process == EVERYBODY {
            match note {
                Note::Loss => self.losses.insert((None, key), (value, name)),
                Note::Gap => self.gaps.insert(key, (value, name)),
                Note::Host => {
                    let host = &self.recording.names[name as usize];
                    self.recording.about.host.clone_from(host);
                    None
                }
                Note::UtcOffset => {
                    let offset = i64::try_from(value).unwrap_or(i64::MAX);
                    let offset = i32::try_from(offset.saturating_sub(UTC_OFFSET_ZERO as i64)).ok();
                    // Nowhere is further from Greenwich than a day.
                    let offset = offset.filter(|s| s.abs() <= 86_400);
                    self.recording.about.utc_offset_s = offset;
                    None
                }
                _ => None,
            };
            return Ok(());
        }
        let index = self.process_index(process)?;
        if note == Note::Loss {
            self.losses.insert((Some(index), key), (value, name));
            return Ok(());
        }
        let text = self.recording.names[name as usize].clone();
        let process = &mut self.recording.processes[index as usize];
        match note {
            Note::Comm => process.comm = text,
            Note::LaunchesSeen => process.launches_seen = value.checked_sub(1),
            Note::Cubin => {
                process.cubins.entry(key).or_default();
            }
            Note::StallReason => {
                let at = usize::try_from(key)
                    .ok()
                    .filter(|at| *at < 1024)
                    .ok_or(Malformed("a stall reason has too large a number"))?;
                if process.stall_reasons.len() <= at {
                    process.stall_reasons.resize(at + 1, String::new());
                    self.spend::<String>(at, 0)?;
                }
                self.recording.processes[index as usize].stall_reasons[at] = text;
            }
            Note::Domain => {
                self.domains.insert((index, small(key)?), text);
            }
            Note::Thread => {
                process.threads.insert(small(key)?, text);
            }
            Note::Stream => {
                process.stream_handles.insert(key, text);
            }
            Note::DeviceUuid
            | Note::DeviceName
            | Note::DeviceModel
            | Note::SamplingFactor
            | Note::Clock
            | Note::SmCount => {
                self.spend::<Device>(1, 64)?;
                let process = &mut self.recording.processes[index as usize];
                let device = process.devices.entry(small(key)?).or_default();
                match note {
                    Note::DeviceUuid => device.uuid = text,
                    Note::DeviceName => device.name = text,
                    Note::DeviceModel => device.model = text,
                    Note::SamplingFactor => device.sampling_factor = small(value)?,
                    Note::Clock => device.clock_khz = small(value)?,
                    _ => device.sm_count = small(value)?,
                }
            }
            Note::Loss | Note::Gap | Note::Host | Note::UtcOffset => {}
        }
        Ok(())
    }

    /// See [`super::format::Kind::Clocks`].
    pub fn clocks(&mut self, rows: &[[u64; 3]]) -> Checked<()> {
        self.spend::<[u64; 3]>(rows.len(), 0)?;
        self.clocks.extend_from_slice(rows);
        Ok(())
    }

    /// See [`super::format::Kind::Launches`].
    pub fn launches(&mut self, rows: &[[u64; 7]]) -> Checked<()> {
        self.spend::<Launch>(rows.len(), 8)?;
        for [time, process, tid, id, cbid, name, stack] in rows {
            let launch = Launch {
                time_ns: *time,
                process: self.process_index(*process)?,
                tid: small(*tid)?,
                correlation_id: small(*id)?,
                cbid: signed(*cbid)?,
                name: self.name_id(*name)?,
                // The number in the file, until all stacks are known.
                stack: small(*stack)?,
            };
            self.recording.launches.push(launch);
        }
        Ok(())
    }

    /// See [`super::format::Kind::Kernels`].
    pub fn kernels(&mut self, rows: &[[u64; 19]]) -> Checked<()> {
        self.spend::<Kernel>(rows.len(), 0)?;
        for row in rows {
            // Lengths are bit patterns of what the process says.
            let raw = |n: u64| small::<u32>(n).map(u32::cast_signed);
            let triple = |at: usize| Ok([raw(row[at])?, raw(row[at + 1])?, raw(row[at + 2])?]);
            let kernel = Kernel {
                start_ns: row[0],
                end_ns: row[0]
                    .checked_add(row[1])
                    .ok_or(Malformed("a kernel ends after the end of time"))?,
                process: self.process_index(row[2])?,
                device: small(row[3])?,
                context: small(row[4])?,
                stream: small(row[5])?,
                correlation_id: small(row[6])?,
                graph_id: small(row[7])?,
                graph_node_id: row[8],
                grid: triple(9)?,
                block: triple(12)?,
                registers: small(row[15])?,
                static_shared_memory: raw(row[16])?,
                dynamic_shared_memory: raw(row[17])?,
                name: self.name_id(row[18])?,
                launch: None,
            };
            self.recording.kernels.push(kernel);
        }
        Ok(())
    }

    /// See [`super::format::Kind::PcSamples`].
    pub fn pc_samples(&mut self, rows: &[[u64; 7]], reasons: &[[u64; 2]]) -> Checked<()> {
        self.spend::<PcSample>(rows.len(), 32)?;
        self.spend::<[u32; 2]>(reasons.len(), 0)?;
        let mut rest = reasons;
        for [time, process, crc, pc_offset, function, id, count] in rows {
            let (mine, others) = part(rest, *count)?;
            rest = others;
            let reasons = mine.iter().map(|[i, n]| Ok((small(*i)?, small(*n)?)));
            let sample = PcSample {
                time_ns: *time,
                process: self.process_index(*process)?,
                crc: *crc,
                pc_offset: *pc_offset,
                function: self.name_id(*function)?,
                correlation_id: small(*id)?,
                reasons: reasons.collect::<Checked<_>>()?,
                ..PcSample::default()
            };
            self.recording.pc_samples.push(sample);
        }
        Ok(())
    }

    /// See [`super::format::Kind::Nvtx`].
    pub fn nvtx(&mut self, rows: &[[u64; 8]]) -> Checked<()> {
        // The event, and the range it may become.
        self.spend::<[u64; 16]>(rows.len(), 0)?;
        for [_, process, tid, kind, domain, _, color, name] in rows {
            self.process_index(*process)?;
            self.name_id(*name)?;
            small::<u32>(*tid)?;
            small::<u16>(*kind)?;
            small::<u32>(*domain)?;
            small::<u32>(*color)?;
        }
        self.nvtx.extend_from_slice(rows);
        Ok(())
    }

    /// See [`super::format::Kind::Errors`].
    pub fn errors(&mut self, rows: &[[u64; 5]]) -> Checked<()> {
        for [time, process, code, component, message] in rows {
            let (component, message) = (self.text(*component)?, self.text(*message)?);
            let error = ErrorEvent {
                time_ns: *time,
                process: self.process_index(*process)?,
                code: signed(*code)?,
                component: component.to_owned(),
                message: message.to_owned(),
            };
            self.spend::<ErrorEvent>(1, error.component.len() + error.message.len())?;
            self.recording.errors.push(error);
        }
        Ok(())
    }

    /// A part of a cubin.
    pub fn cubin(&mut self, crc: u64, offset: u64, size: u64, part: &[u8]) -> Checked<()> {
        self.spend::<u8>(part.len(), 0)?;
        self.spend::<[u64; 8]>(1, 0)?;
        if offset == 0 {
            // The process that had it first may have gone in the middle.
            self.cubins.remove(&crc);
        }
        let (whole, bytes) = self.cubins.entry(crc).or_insert_with(|| (size, Vec::new()));
        let fits = bytes.len() as u64 == offset && *whole == size && size <= CUBIN_MAX;
        if !fits || part.len() as u64 > size - offset {
            return Err(Malformed("parts of a cubin do not fit together"));
        }
        bytes.extend_from_slice(part);
        Ok(())
    }

    /// Puts everything on one axis, in order, and joins what belongs together.
    pub fn finish(mut self) -> Recording {
        self.spread_losses();
        self.hand_out_cubins();
        let mut r = self.recording;
        let axis = join::Axis::new(self.clocks);
        r.clocks = axis.clocks();
        let ends_unknown = r.about.end_ns == r.about.begin_ns;
        for launch in &mut r.launches {
            launch.time_ns = axis.realtime(launch.time_ns);
            launch.stack = self
                .stacks
                .get(&u64::from(launch.stack))
                .copied()
                .unwrap_or(0);
            let process = &mut r.processes[launch.process as usize];
            process.launches_sampled += 1;
        }
        for time in [&mut r.about.begin_ns, &mut r.about.end_ns] {
            *time = axis.realtime(*time);
        }
        r.pc_samples
            .iter_mut()
            .for_each(|s| s.time_ns = axis.realtime(s.time_ns));
        r.errors
            .iter_mut()
            .for_each(|e| e.time_ns = axis.realtime(e.time_ns));
        r.launches.sort_by_key(|l| l.time_ns);
        r.kernels.sort_by_key(|k| k.start_ns);
        r.pc_samples.sort_by_key(|s| s.time_ns);
        join::kernels(&mut r.kernels, &r.launches);
        let mut names = std::mem::take(&mut r.names);
        r.ranges = join::ranges(&self.nvtx, &axis, &self.domains, &mut names);
        r.names = names;
        if ends_unknown {
            let launches = r.launches.last().map_or(0, |l| l.time_ns);
            let last = r.kernels.iter().map(|k| k.end_ns).max().unwrap_or(0);
            r.about.end_ns = r.about.end_ns.max(launches).max(last);
        }
        r
    }

    /// Each process gets the bytes of its cubins, as far as memory allows.
    fn hand_out_cubins(&mut self) {
        for process in &mut self.recording.processes {
            for (crc, bytes) in &mut process.cubins {
                let Some((size, whole)) = self.cubins.get(crc) else {
                    continue;
                };
                // The last one may have been cut.
                let is_whole = whole.len() as u64 == *size;
                if let Some(left) = self.left.checked_sub(*size).filter(|_| is_whole) {
                    self.left = left;
                    bytes.clone_from(whole);
                }
            }
        }
    }

    /// What belongs to no process alone may have hit any of them.
    fn spread_losses(&mut self) {
        let names = &self.recording.names;
        let said = |(count, name): &(u64, u32)| (names[*name as usize].clone(), *count);
        let of = |who: Option<u32>| {
            let losses = self.losses.range((who, 0)..=(who, u64::MAX));
            losses.map(|(_, loss)| said(loss)).collect::<Vec<_>>()
        };
        let common = of(None);
        let sum = common
            .iter()
            .fold(0u64, |sum, loss| sum.saturating_add(loss.1));
        for (index, process) in (0..).zip(&mut self.recording.processes) {
            process.losses = of(Some(index));
            if sum > 0 {
                process.losses.push((ANY.to_owned(), sum));
            }
        }
        self.recording.gaps = self.gaps.values().map(said).collect();
        self.recording.losses = common;
    }
}

/// How the losses of [`Recording::losses`], added up, are called in each process.
pub const ANY: &str = "events between all processes and the recorder";

type Rows<'a, const N: usize> = &'a [[u64; N]];

/// The first `count` rows and the rest.
fn part<const N: usize>(rows: Rows<'_, N>, count: u64) -> Checked<(Rows<'_, N>, Rows<'_, N>)> {
    usize::try_from(count)
        .ok()
        .and_then(|n| rows.split_at_checked(n))
        .ok_or(Malformed("fewer rows than were announced"))
}

impl Default for Tables {
    fn default() -> Self {
        Self::new(u64::MAX)
    }
}
