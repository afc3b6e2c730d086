//! Metadata is told again for those that come late; once is enough for a reader.

use std::hash::{DefaultHasher, Hash, Hasher};

use parcagpu_abi::probe;

use super::{TOLD_MAX, Tracer};
use crate::events::{Body, Event};

impl Tracer {
    /// Whether this is metadata that was told before.
    pub(super) fn is_repeat(&mut self, event: &Event<'_>) -> bool {
        let h = event.header;
        let key = |what: &dyn Fn(&mut DefaultHasher)| {
            let mut hasher = DefaultHasher::new();
            what(&mut hasher);
            hasher.finish()
        };
        let hash = match &event.body {
            Body::StallReasons { names, .. } => key(&|s| names.hash(s)),
            Body::GpuConfig {
                device,
                sampling_factor,
                clock_khz,
                sm_count,
            } => key(&|s| (device, sampling_factor, clock_khz, sm_count).hash(s)),
            Body::CubinLoaded { crc, .. } => *crc,
            Body::CubinUnloaded { crc } => {
                let loaded = probe::ALL.iter().position(|p| *p == probe::CUBIN_LOADED);
                self.told
                    .remove(&(h.pid, h.start_ns, loaded.unwrap_or(0), *crc));
                return false;
            }
            Body::Error {
                code,
                message,
                component,
            } => key(&|s| (code, message.bytes, component).hash(s)),
            Body::ResourceName { kind, id, name } => key(&|s| (kind, id, name.bytes).hash(s)),
            _ => return false,
        };
        if self.told.len() >= TOLD_MAX {
            self.told.clear();
        }
        !self.told.insert((h.pid, h.start_ns, h.probe, hash))
    }
}
