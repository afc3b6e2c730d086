//! A reader of Perfetto's traces.

use std::collections::HashMap;

use parcagpu_cli::recording::model::Recording;
use parcagpu_cli::report::Format;

use super::outputs::made;
use super::protobuf::{self, all, field};

/// What a Perfetto trace says, checked for what its reader takes for granted.
#[derive(Default)]
pub struct Trace {
    /// By category.
    pub time: HashMap<String, u128>,
    pub slices: HashMap<String, u64>,
    /// Ends of arrows by number: (category, time), in order.
    pub arrows: HashMap<u64, Vec<(String, u64)>>,
    pub texts: Vec<String>,
}

/// Reads the trace of a recording.
pub fn trace(rec: &Recording) -> Trace {
    let bytes = made(rec, Format::Perfetto);
    let mut trace = Trace::default();
    let mut names: HashMap<(u64, u64), String> = HashMap::new();
    let mut tracks: HashMap<u64, Vec<(String, u64)>> = HashMap::new();
    let mut last = 0;
    for packet in all(&bytes, 1) {
        let packet = packet.bytes();
        if let Some(interned) = field(packet, 12) {
            for (kind, text) in protobuf::fields(interned.bytes()) {
                let iid = field(text.bytes(), 1).unwrap().number();
                let text = field(text.bytes(), 2).unwrap().text().to_owned();
                trace.texts.push(text.clone());
                assert!(names.insert((kind, iid), text).is_none(), "told twice");
            }
        }
        if let Some(descriptor) = field(packet, 60) {
            let uuid = field(descriptor.bytes(), 1).unwrap().number();
            if let Some(parent) = field(descriptor.bytes(), 5) {
                assert!(
                    tracks.contains_key(&parent.number()),
                    "a track before its parent"
                );
            }
            assert!(tracks.insert(uuid, Vec::new()).is_none());
        }
        let Some(event) = field(packet, 11).map(protobuf::Value::bytes) else {
            continue;
        };
        let time = field(packet, 8).unwrap().number();
        assert!(time >= last, "events in order of time");
        last = time;
        let track = field(event, 11).unwrap().number();
        let open = tracks.get_mut(&track).expect("a described track");
        match field(event, 9).unwrap().number() {
            2 => {
                let (category, start) = open.pop().expect("an end has a begin");
                *trace.time.entry(category).or_default() += u128::from(time - start);
            }
            kind => {
                let category = names[&(1, field(event, 3).unwrap().number())].clone();
                assert!(names.contains_key(&(2, field(event, 10).unwrap().number())));
                for note in all(event, 4) {
                    let note = note.bytes();
                    assert!(names.contains_key(&(3, field(note, 1).unwrap().number())));
                    if let Some(iid) = field(note, 17) {
                        assert!(names.contains_key(&(29, iid.number())));
                    }
                }
                for flow in all(event, 47) {
                    let ends = trace.arrows.entry(flow.number()).or_default();
                    ends.push((category.clone(), time));
                }
                if category.ends_with("kernel") || category == "launch" {
                    assert!(
                        open.is_empty(),
                        "{category} slices of a track do not overlap"
                    );
                }
                *trace.slices.entry(category.clone()).or_default() += 1;
                if kind == 1 {
                    open.push((category, time));
                }
            }
        }
    }
    for open in tracks.into_values().flatten() {
        assert_eq!(open.0, "nvtx", "only ranges stay open");
    }
    trace
}
