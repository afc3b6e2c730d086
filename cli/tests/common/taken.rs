//! A request of OTLP profiles, taken apart.

use std::collections::BTreeMap;

use opentelemetry_proto::tonic::collector::profiles::v1development::ExportProfilesServiceRequest;
use opentelemetry_proto::tonic::common::v1::any_value::Value as Any;
use opentelemetry_proto::tonic::profiles::v1development::{Profile, ProfilesDictionary, Sample};

/// A request, taken apart; every index leads somewhere.
pub struct Taken(pub ExportProfilesServiceRequest);

/// `table[index]` for an index of the wire.
pub fn at<T>(table: &[T], index: i32) -> &T {
    &table[usize::try_from(index).unwrap()]
}

impl Taken {
    pub fn dictionary(&self) -> &ProfilesDictionary {
        self.0.dictionary.as_ref().unwrap()
    }

    pub fn text(&self, index: i32) -> &str {
        at::<String>(&self.dictionary().string_table, index)
    }

    /// (resource's pid, kind, profile)
    pub fn profiles(&self) -> Vec<(Option<i64>, &str, &Profile)> {
        let mut all = Vec::new();
        for of in &self.0.resource_profiles {
            let attributes = &of.resource.as_ref().unwrap().attributes;
            let pid = attributes.iter().find(|a| a.key == "process.pid");
            let pid = pid.and_then(|a| match a.value.as_ref()?.value.as_ref()? {
                Any::IntValue(pid) => Some(*pid),
                _ => None,
            });
            assert!(attributes.iter().any(|a| a.key == "service.name"));
            for scope in &of.scope_profiles {
                assert_eq!(scope.scope.as_ref().unwrap().name, "parcagpu");
                for profile in &scope.profiles {
                    let kind = profile.sample_type.as_ref().unwrap().type_strindex;
                    all.push((pid, self.text(kind), profile));
                }
            }
        }
        all
    }

    /// Names of a sample's frames, leaf first.
    pub fn frames(&self, sample: &Sample) -> Vec<&str> {
        let tables = self.dictionary();
        let stack = at(&tables.stack_table, sample.stack_index);
        let frames = stack.location_indices.iter().map(|location| {
            let location = at(&tables.location_table, *location);
            let mapping = at(&tables.mapping_table, location.mapping_index);
            assert!(!self.text(mapping.filename_strindex).is_empty());
            let function = at(&tables.function_table, location.lines[0].function_index);
            self.text(function.filename_strindex);
            self.text(function.system_name_strindex);
            self.text(function.name_strindex)
        });
        frames.collect()
    }

    /// An attribute that is a text, of a sample.
    pub fn label(&self, sample: &Sample, key: &str) -> Option<&str> {
        let table = &self.dictionary().attribute_table;
        let mut all = sample.attribute_indices.iter().map(|i| at(table, *i));
        let found = all.find(|a| self.text(a.key_strindex) == key)?;
        match found.value.as_ref()?.value.as_ref()? {
            Any::StringValue(text) => Some(text),
            _ => None,
        }
    }

    pub fn sums(&self) -> BTreeMap<(Option<i64>, &str), i128> {
        let mut sums = BTreeMap::new();
        for (pid, kind, profile) in self.profiles() {
            for sample in &profile.samples {
                let [value] = sample.values[..] else {
                    panic!("{sample:?}")
                };
                *sums.entry((pid, kind)).or_default() += i128::from(value);
                for name in self.frames(sample) {
                    assert!(!name.is_empty() && !name.contains('\n'));
                }
            }
        }
        sums
    }

    pub fn sum(&self, wanted: &str) -> i128 {
        let sums = self.sums();
        let of = sums.iter().filter(|((_, kind), _)| *kind == wanted);
        of.map(|(_, n)| n).sum()
    }
}
