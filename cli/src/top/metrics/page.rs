//! What one answer to a scrape says: families of series, written in the format that the scraper asks for.

use std::fmt;
use std::sync::Arc;

use prometheus_client::collector::Collector;
use prometheus_client::encoding::{DescriptorEncoder, MetricEncoder, NoLabelSet};
use prometheus_client::encoding::{prometheus_text, text};
use prometheus_client::metrics::MetricType;
use prometheus_client::registry::{Registry, Unit};

/// A name and a value.
pub type Label = (&'static str, Arc<str>);

/// A number of a series.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Value {
    /// Counts.
    Count(u64),
    /// Nanoseconds; written in seconds.
    Nanoseconds(u128),
}

/// One series.
#[derive(Clone, Debug)]
pub struct Series {
    /// Labels that it shares with others, such as those of a process.
    pub of: Arc<[Label]>,
    /// Its own labels.
    pub own: Vec<Label>,
    /// Its value.
    pub value: Value,
}

/// Series of one name.
#[derive(Debug)]
pub struct Family {
    /// Without prefix, unit and `_total`.
    pub name: &'static str,
    /// One sentence.
    pub help: &'static str,
    /// Whether it only grows.
    pub counter: bool,
    /// Whether it is a time.
    pub seconds: bool,
    /// Each with other labels.
    pub series: Vec<Series>,
}

/// All families.
#[derive(Debug, Default)]
pub struct Page(pub Vec<Family>);

/// A format of the answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Format {
    /// Prometheus's text format 0.0.4.
    Prometheus,
    /// OpenMetrics text, for those that ask for it.
    OpenMetrics,
}

impl Format {
    /// By the `Accept` header of a request.
    pub fn accepted(accept: &str) -> Self {
        match accept.contains("application/openmetrics-text") {
            true => Self::OpenMetrics,
            false => Self::Prometheus,
        }
    }

    /// The `Content-Type` of an answer.
    pub fn content_type(self) -> &'static str {
        match self {
            Self::Prometheus => prometheus_text::CONTENT_TYPE,
            Self::OpenMetrics => "application/openmetrics-text; version=1.0.0; charset=utf-8",
        }
    }

    /// Writes a page.
    pub fn write(self, page: Arc<Page>) -> Result<String, fmt::Error> {
        let mut registry = Registry::with_prefix("parcagpu");
        registry.register_collector(Box::new(page));
        let mut out = String::new();
        match self {
            Self::Prometheus => prometheus_text::encode(&mut out, &registry)?,
            Self::OpenMetrics => text::encode(&mut out, &registry)?,
        }
        Ok(out)
    }
}

impl Collector for Page {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> fmt::Result {
        for family in self.0.iter().filter(|f| !f.series.is_empty()) {
            let unit = family.seconds.then_some(&Unit::Seconds);
            let kind = match family.counter {
                true => MetricType::Counter,
                false => MetricType::Gauge,
            };
            let mut metric = encoder.encode_descriptor(family.name, family.help, unit, kind)?;
            for series in &family.series {
                let labels = (&series.of[..], series.own.as_slice());
                let metric = metric.encode_family(&labels)?;
                write_value(metric, family.counter, series.value)?;
            }
        }
        Ok(())
    }
}

fn write_value(mut metric: MetricEncoder<'_>, counter: bool, value: Value) -> fmt::Result {
    match (value, counter) {
        (Value::Count(n), true) => metric.encode_counter::<NoLabelSet, _, u64>(&n, None),
        (Value::Count(n), false) => metric.encode_gauge(&n),
        (Value::Nanoseconds(ns), _) => {
            #[expect(clippy::cast_precision_loss, reason = "the format has floats")]
            let seconds = ns as f64 / 1e9;
            metric.encode_counter::<NoLabelSet, _, u64>(&seconds, None)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn page() -> Arc<Page> {
        let process: Arc<[Label]> = [("pid", "7".into()), ("comm", "a\"b\\c\nd".into())].into();
        let time = Series {
            of: Arc::clone(&process),
            own: vec![("uuid", "GPU-1".into())],
            value: Value::Nanoseconds(1_500_000_000),
        };
        let family = |name, counter, seconds, series| Family {
            name,
            help: "Of a test.",
            counter,
            seconds,
            series,
        };
        let state = Series {
            own: vec![("state", "active".into())],
            value: Value::Count(1),
            ..time.clone()
        };
        Arc::new(Page(vec![
            family("gpu_time", true, true, vec![time]),
            family("state", false, false, vec![state]),
            family("nothing", true, false, vec![]),
        ]))
    }

    #[test]
    fn both_formats() {
        let labels = r#"{pid="7",comm="a\"b\\c\nd","#;
        let series = format!(
            "parcagpu_gpu_time_seconds_total{labels}uuid=\"GPU-1\"}} 1.5\n\
             # HELP parcagpu_state Of a test.\n# TYPE parcagpu_state gauge\n\
             parcagpu_state{labels}state=\"active\"}} 1\n"
        );
        let plain = Format::Prometheus.write(page()).unwrap();
        let head = "# HELP parcagpu_gpu_time_seconds_total Of a test.\n\
                    # TYPE parcagpu_gpu_time_seconds_total counter\n";
        assert_eq!(plain, head.to_owned() + &series);
        let open = Format::OpenMetrics.write(page()).unwrap();
        let head = "# HELP parcagpu_gpu_time_seconds Of a test.\n\
                    # TYPE parcagpu_gpu_time_seconds counter\n\
                    # UNIT parcagpu_gpu_time_seconds seconds\n";
        assert_eq!(open, head.to_owned() + &series + "# EOF\n");
    }

    #[test]
    fn the_format_that_was_asked_for() {
        let prometheus = "application/openmetrics-text;version=1.0.0;q=0.5,text/plain;q=0.2";
        assert_eq!(Format::accepted(prometheus), Format::OpenMetrics);
        assert_eq!(Format::accepted("*/*"), Format::Prometheus);
        assert_eq!(Format::accepted(""), Format::Prometheus);
    }
}
