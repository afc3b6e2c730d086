//! Tracks: what there is, under what, and what it is called.

use anyhow::Result;

use super::Builder;
use super::proto::{ProcessDescriptor, ThreadDescriptor, TrackDescriptor};

/// What a track is of; children are found by these words.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) enum Track {
    Recording,
    Process(u32),
    Thread(u32, u32),
    Device(u32, u32),
    Stream(u32, u32, u32, u32, usize),
    Graph(u32, u32, usize),
    Launches(u32, u32),
    Domain(u32, u32, u32),
    Ranges(u32, u32, usize),
}

impl Builder<'_, '_, '_> {
    /// The track's number; describes it, and those above it, when it is new.
    pub(super) fn track(&mut self, track: Track) -> Result<u64> {
        if let Some(known) = self.tracks.get(&track) {
            return Ok(*known);
        }
        let parent = match track {
            Track::Recording | Track::Process(_) => None,
            Track::Thread(p, _)
            | Track::Device(p, _)
            | Track::Graph(p, ..)
            | Track::Ranges(p, ..) => Some(Track::Process(p)),
            Track::Stream(p, device, ..) => Some(Track::Device(p, device)),
            Track::Launches(p, tid) | Track::Domain(p, tid, _) => Some(Track::Thread(p, tid)),
        };
        let parent_uuid = match parent {
            Some(parent) => Some(self.track(parent)?),
            None => None,
        };
        self.last_track += 1;
        let mut descriptor = TrackDescriptor {
            uuid: Some(self.last_track),
            parent_uuid,
            ..TrackDescriptor::default()
        };
        self.describe(&track, &mut descriptor);
        self.packets.describe(descriptor)?;
        self.tracks.insert(track, self.last_track);
        Ok(self.last_track)
    }

    fn describe(&self, track: &Track, descriptor: &mut TrackDescriptor) {
        let view = self.view;
        let process = |p: u32| view.rec.processes.get(p as usize);
        let pid = |p: u32| i32::try_from(view.pid(p)).ok();
        let lane = |lane: usize| match lane {
            0 => String::new(),
            n => format!(" ({})", n + 1),
        };
        let name = match *track {
            Track::Recording => "parcagpu".to_owned(),
            Track::Process(p) => {
                let comm = process(p).map_or("?", |p| &p.comm);
                descriptor.process = Some(ProcessDescriptor {
                    pid: pid(p),
                    process_name: Some(crate::demangle::clean(comm)),
                });
                return;
            }
            Track::Thread(p, tid) => {
                let named = process(p).and_then(|p| p.threads.get(&tid));
                descriptor.thread = Some(ThreadDescriptor {
                    pid: pid(p),
                    tid: Some(tid.into()),
                    thread_name: named.map(|name| crate::demangle::clean(name)),
                });
                return;
            }
            Track::Device(p, device) => view.device(p, device),
            Track::Stream(p, device, context, stream, n) => {
                view.stream(p, device, context, stream) + &lane(n)
            }
            Track::Graph(_, graph, n) => format!("graph {graph}{}", lane(n)),
            Track::Launches(..) => "launches".to_owned(),
            Track::Domain(_, _, domain) => match view.name(domain) {
                "" => "NVTX".to_owned(),
                domain => format!("NVTX {domain}"),
            },
            Track::Ranges(_, domain, n) => match view.name(domain) {
                "" => format!("NVTX ranges across threads{}", lane(n)),
                domain => format!("NVTX {domain} ranges across threads{}", lane(n)),
            },
        };
        descriptor.name = Some(name);
    }
}
