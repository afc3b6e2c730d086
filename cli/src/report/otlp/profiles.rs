//! The request: GPU time and kernels by CPU stack, PC samples by place, of each process.

use std::collections::BTreeMap;

use opentelemetry_proto::tonic::collector::profiles::v1development::ExportProfilesServiceRequest;
use opentelemetry_proto::tonic::common::v1::any_value::Value;
use opentelemetry_proto::tonic::common::v1::{AnyValue, InstrumentationScope, KeyValue};
use opentelemetry_proto::tonic::profiles::v1development::{
    Profile, ResourceProfiles, Sample, ScopeProfiles,
};
use opentelemetry_proto::tonic::resource::v1::Resource;

use super::dictionary::Dictionary;
use crate::demangle::clean;
use crate::recording::model::{ProcessIndex, Recording};
use crate::report::stalls::{by_process, states};
use crate::report::sums::launched;
use crate::report::view::View;

/// What a request has in it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Totals {
    /// Profiles.
    pub profiles: u64,
    /// Kernel records, with and without times.
    pub kernels: u64,
    /// GPU time, ns.
    pub gpu_ns: u128,
    /// PC samples.
    pub pc_samples: u64,
}

/// Samples of one process, by the kind of their values.
#[derive(Default)]
struct Samples {
    gpu_time: Vec<Sample>,
    kernels: Vec<Sample>,
    pc_samples: Vec<Sample>,
}

/// Makes a request of a recording.
pub fn request(view: &View<'_>) -> (ExportProfilesServiceRequest, Totals) {
    let rec = view.rec;
    let mut dictionary = Dictionary::new(view);
    let mut totals = Totals::default();
    let mut processes: BTreeMap<ProcessIndex, Samples> = BTreeMap::new();
    for ((process, stack, kernel), sum) in launched(view) {
        let of = processes.entry(process).or_default();
        let stack_index = dictionary.launched(kernel, stack);
        totals.kernels += sum.calls;
        totals.gpu_ns += sum.total_ns;
        of.kernels
            .push(sample(stack_index, sum.calls.into(), vec![]));
        if sum.no_time < sum.calls {
            of.gpu_time.push(sample(stack_index, sum.total_ns, vec![]));
        }
    }
    for (process, stalls) in by_process(view) {
        let of = processes.entry(process).or_default();
        for row in stalls.places {
            let stack_index = dictionary.place(row.place);
            for (reason, n) in states(&row.tally) {
                totals.pc_samples += n;
                let label = dictionary.label("stall_reason", &reason);
                of.pc_samples
                    .push(sample(stack_index, n.into(), vec![label]));
            }
        }
    }
    let comment = dictionary.texts("pprof.profile.comment", &view.notes());
    let resource_profiles: Vec<ResourceProfiles> = processes
        .into_iter()
        .map(|(process, samples)| {
            let profiles = profiles(rec, &mut dictionary, comment, samples);
            totals.profiles += profiles.len() as u64;
            ResourceProfiles {
                resource: Some(resource(rec, process)),
                scope_profiles: vec![ScopeProfiles {
                    scope: Some(InstrumentationScope {
                        name: "parcagpu".to_owned(),
                        version: rec.about.version.clone(),
                        ..InstrumentationScope::default()
                    }),
                    profiles,
                    schema_url: String::new(),
                }],
                schema_url: String::new(),
            }
        })
        .collect();
    let request = ExportProfilesServiceRequest {
        resource_profiles,
        dictionary: Some(dictionary.finish()),
    };
    (request, totals)
}

fn sample(stack_index: i32, value: u128, attribute_indices: Vec<i32>) -> Sample {
    Sample {
        stack_index,
        attribute_indices,
        values: vec![i64::try_from(value).unwrap_or(i64::MAX)],
        ..Sample::default()
    }
}

/// GPU time first: what is shown by default. Empty ones are left out.
fn profiles(
    rec: &Recording,
    dictionary: &mut Dictionary<'_, '_>,
    comment: i32,
    samples: Samples,
) -> Vec<Profile> {
    let kinds = [
        ("gpu_time", "nanoseconds", samples.gpu_time),
        ("kernels", "count", samples.kernels),
        ("pc_samples", "count", samples.pc_samples),
    ];
    let about = &rec.about;
    let there = kinds.into_iter().filter(|(_, _, s)| !s.is_empty());
    there
        .map(|(kind, unit, samples)| Profile {
            sample_type: Some(dictionary.value_type(kind, unit)),
            samples,
            time_unix_nano: about.begin_ns,
            duration_nano: about.end_ns.saturating_sub(about.begin_ns),
            attribute_indices: vec![comment],
            ..Profile::default()
        })
        .collect()
}

fn resource(rec: &Recording, process: ProcessIndex) -> Resource {
    let known = rec.processes.get(process as usize);
    let comm = known.map_or("", |p| &p.comm);
    let name = match comm {
        "" => "unknown_service".to_owned(),
        comm => clean(comm),
    };
    let mut attributes = vec![attribute("service.name", Value::StringValue(name))];
    if let Some(known) = known {
        attributes.push(attribute("process.pid", Value::IntValue(known.pid.into())));
    }
    if !rec.about.host.is_empty() {
        let host = Value::StringValue(clean(&rec.about.host));
        attributes.push(attribute("host.name", host));
    }
    attributes.push(attribute("os.type", Value::StringValue("linux".to_owned())));
    Resource {
        attributes,
        ..Resource::default()
    }
}

fn attribute(key: &str, value: Value) -> KeyValue {
    KeyValue {
        key: key.to_owned(),
        value: Some(AnyValue { value: Some(value) }),
        ..KeyValue::default()
    }
}
