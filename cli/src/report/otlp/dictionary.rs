//! The tables that all profiles of a request share: each thing once, at index 0 of each table nothing.

use std::collections::HashMap;
use std::hash::Hash;

use opentelemetry_proto::tonic::common::v1::any_value::Value;
use opentelemetry_proto::tonic::common::v1::{AnyValue, ArrayValue};
use opentelemetry_proto::tonic::profiles::v1development::{
    Function, KeyValueAndUnit, Line, Link, Location, Mapping, ProfilesDictionary, Stack, ValueType,
};

use crate::recording::model::{Frame, NameId};
use crate::report::stalls::Place;
use crate::report::view::{NO_STACK, View};

/// Numbers of things, by the order of their coming; 0 is nobody's.
struct Numbers<K>(HashMap<K, i32>);

impl<K: Eq + Hash> Numbers<K> {
    /// The number, and whether it is new.
    fn of(&mut self, key: K) -> (i32, bool) {
        // More than 2^31 entries fit into no request.
        let next = i32::try_from(self.0.len() + 1).unwrap_or(i32::MAX);
        let number = *self.0.entry(key).or_insert(next);
        (number, number == next)
    }
}

impl<K> Default for Numbers<K> {
    fn default() -> Self {
        Self(HashMap::new())
    }
}

/// See the module.
pub struct Dictionary<'v, 'r> {
    view: &'v View<'r>,
    strings: HashMap<String, i32>,
    functions: Numbers<(i32, i32, i32)>,
    locations: Numbers<(i32, i32, i64, u64)>,
    mappings: Numbers<i32>,
    stacks: Numbers<Vec<i32>>,
    labels: Numbers<(i32, String)>,
    tables: ProfilesDictionary,
}

impl<'v, 'r> Dictionary<'v, 'r> {
    /// An empty one.
    pub fn new(view: &'v View<'r>) -> Self {
        Self {
            view,
            strings: HashMap::from([(String::new(), 0)]),
            functions: Numbers::default(),
            locations: Numbers::default(),
            mappings: Numbers::default(),
            stacks: Numbers::default(),
            labels: Numbers::default(),
            tables: ProfilesDictionary {
                mapping_table: vec![Mapping::default()],
                location_table: vec![Location::default()],
                function_table: vec![Function::default()],
                link_table: vec![Link::default()],
                string_table: vec![String::new()],
                attribute_table: vec![KeyValueAndUnit::default()],
                stack_table: vec![Stack::default()],
            },
        }
    }

    /// As it is sent.
    pub fn finish(self) -> ProfilesDictionary {
        self.tables
    }

    fn string(&mut self, text: &str) -> i32 {
        if let Some(known) = self.strings.get(text) {
            return *known;
        }
        let table = &mut self.tables.string_table;
        let index = i32::try_from(table.len()).unwrap_or(i32::MAX);
        table.push(text.to_owned());
        self.strings.insert(text.to_owned(), index);
        index
    }

    /// Kind and unit of values.
    pub fn value_type(&mut self, kind: &str, unit: &str) -> ValueType {
        ValueType {
            type_strindex: self.string(kind),
            unit_strindex: self.string(unit),
        }
    }

    /// An attribute that is a text.
    pub fn label(&mut self, key: &str, text: &str) -> i32 {
        let key = self.string(key);
        let (number, new) = self.labels.of((key, text.to_owned()));
        if new {
            self.attribute(key, Value::StringValue(text.to_owned()));
        }
        number
    }

    /// An attribute that is several texts.
    pub fn texts(&mut self, key: &str, texts: &[String]) -> i32 {
        let key = self.string(key);
        let (number, new) = self.labels.of((key, texts.join("\n")));
        if new {
            let values = texts.iter().map(|text| AnyValue {
                value: Some(Value::StringValue(text.clone())),
            });
            let values = values.collect();
            self.attribute(key, Value::ArrayValue(ArrayValue { values }));
        }
        number
    }

    fn attribute(&mut self, key_strindex: i32, value: Value) {
        let value = Some(AnyValue { value: Some(value) });
        self.tables.attribute_table.push(KeyValueAndUnit {
            key_strindex,
            value,
            unit_strindex: 0,
        });
    }

    /// A kernel under the CPU stack that launched it.
    pub fn launched(&mut self, kernel: NameId, stack: u32) -> i32 {
        let mut locations = vec![self.kernel(kernel)];
        let frames: Vec<&Frame> = self.view.stack(stack).collect();
        if frames.is_empty() {
            let mapping = self.mapping("CPU");
            let function = self.function(NO_STACK, "", "");
            locations.push(self.location(mapping, function, 0, 0));
        }
        locations.extend(frames.into_iter().map(|frame| self.frame(frame)));
        self.stack(locations)
    }

    /// A place in GPU code.
    pub fn place(&mut self, place: Place) -> i32 {
        let view = self.view;
        let mapping = self.mapping("GPU");
        let system = view.system_name(place.function);
        let name = view.kernel_name(place.function);
        let function = self.function(name, &system, view.name(place.file));
        let address = place.instruction.map_or(0, |(pc, _)| pc);
        let location = self.location(mapping, function, place.line.into(), address);
        self.stack(vec![location])
    }

    fn stack(&mut self, location_indices: Vec<i32>) -> i32 {
        let (number, new) = self.stacks.of(location_indices.clone());
        if new {
            self.tables.stack_table.push(Stack { location_indices });
        }
        number
    }

    fn kernel(&mut self, name: NameId) -> i32 {
        let view = self.view;
        let mapping = self.mapping("GPU");
        let function = self.function(view.kernel_name(name), &view.system_name(name), "");
        self.location(mapping, function, 0, 0)
    }

    fn frame(&mut self, frame: &Frame) -> i32 {
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

    fn mapping(&mut self, file: &str) -> i32 {
        let filename_strindex = self.string(file);
        let (number, new) = self.mappings.of(filename_strindex);
        if new {
            self.tables.mapping_table.push(Mapping {
                filename_strindex,
                ..Mapping::default()
            });
        }
        number
    }

    fn function(&mut self, name: &str, system: &str, file: &str) -> i32 {
        let key = (self.string(name), self.string(system), self.string(file));
        let (number, new) = self.functions.of(key);
        if new {
            self.tables.function_table.push(Function {
                name_strindex: key.0,
                system_name_strindex: key.1,
                filename_strindex: key.2,
                start_line: 0,
            });
        }
        number
    }

    fn location(
        &mut self,
        mapping_index: i32,
        function_index: i32,
        line: i64,
        address: u64,
    ) -> i32 {
        let key = (mapping_index, function_index, line, address);
        let (number, new) = self.locations.of(key);
        if new {
            self.tables.location_table.push(Location {
                mapping_index,
                address,
                lines: vec![Line {
                    function_index,
                    line,
                    column: 0,
                }],
                attribute_indices: Vec::new(),
            });
        }
        number
    }
}
