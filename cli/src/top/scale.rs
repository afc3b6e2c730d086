//! From the sample to the whole: what a process's numbers mean.

use parcagpu_abi::status::Counter;

use crate::accounts::{ProcessAccount, Row};
use crate::ledger::Entry;
use crate::text::duration;

/// How far a number can be trusted.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Amount {
    /// All of it was seen.
    Whole(f64),
    /// Worked out from a sample.
    Estimate(f64),
    /// Not known.
    Unknown,
}

impl Amount {
    /// The number, for sorting; what is not known comes last.
    pub fn value(self) -> f64 {
        match self {
            Self::Whole(n) | Self::Estimate(n) => n,
            Self::Unknown => -1.0,
        }
    }

    /// The sum: an estimate if one of them is; unknown if one of them is.
    pub fn plus(self, other: Self) -> Self {
        match (self, other) {
            (Self::Unknown, _) | (_, Self::Unknown) => Self::Unknown,
            (Self::Whole(a), Self::Whole(b)) => Self::Whole(a + b),
            (a, b) => Self::Estimate(a.value() + b.value()),
        }
    }

    /// For people: `-` for what is not known, `~` before what is an estimate.
    pub fn shown(self, show: impl Fn(f64) -> String) -> String {
        match self {
            Self::Whole(n) => show(n),
            Self::Estimate(n) => format!("~{}", show(n)),
            Self::Unknown => "-".to_owned(),
        }
    }

    /// As a time, ns.
    pub fn time(self) -> String {
        #[expect(
            clippy::cast_possible_truncation,
            clippy::cast_sign_loss,
            reason = "a time that fits, not below 0"
        )]
        self.shown(|ns| duration(ns as u128))
    }
}

/// By how much the sample of a process has to be multiplied.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub enum Scale {
    /// All launches were sampled and nothing was lost.
    Whole,
    /// Launches seen to launches sampled, eager and graph.
    Factors(f64, f64),
    /// How many launches there were is not known.
    #[default]
    Unknown,
}

impl Scale {
    /// Of a process. `dropped`: events were lost on the way to us, whose nobody knows.
    pub fn of(account: Option<&ProcessAccount>, entry: Option<&Entry>, dropped: u64) -> Self {
        let Some(entry) = entry else {
            return Self::Unknown;
        };
        let since = |c: Counter| entry.since(c);
        let (Some(eager), Some(eager_sampled), Some(graph), Some(graph_sampled)) = (
            since(Counter::EagerSeen),
            since(Counter::EagerSampled),
            since(Counter::GraphSeen),
            since(Counter::GraphSampled),
        ) else {
            return Self::Unknown;
        };
        let told = account.map_or(0, |a| a.launches);
        let overflow = account.is_some_and(|a| a.outstanding_overflow);
        // What was announced since the last look at the counters is on top.
        let all_came = told >= eager_sampled.saturating_add(graph_sampled) && !overflow;
        let all_sampled = eager_sampled >= eager && graph_sampled >= graph;
        if all_came && all_sampled && dropped == 0 && entry.library_losses().is_empty() {
            return Self::Whole;
        }
        let factor = |seen: u64, sampled: u64| match (seen, sampled) {
            (_, 0) => 1.0,
            (seen, sampled) => (seen as f64 / sampled as f64).max(1.0),
        };
        // Launches of which no sample came have no time that could be multiplied.
        if (eager > 0 && eager_sampled == 0) || (graph > 0 && graph_sampled == 0) {
            return Self::Unknown;
        }
        // Announced to nobody, or lost on the way.
        let sampled = eager_sampled.saturating_add(graph_sampled);
        let lost = if told == 0 {
            1.0
        } else {
            (sampled as f64 / told as f64).max(1.0)
        };
        Self::Factors(
            factor(eager, eager_sampled) * lost,
            factor(graph, graph_sampled) * lost,
        )
    }

    /// The time of all launches of which these are the sampled ones.
    pub fn time(self, row: &Row) -> Amount {
        let (eager, graph) = ((row.total_ns - row.graph_ns) as f64, row.graph_ns as f64);
        match self {
            Self::Whole => Amount::Whole(eager + graph),
            Self::Factors(e, g) => Amount::Estimate(eager * e + graph * g),
            Self::Unknown => Amount::Unknown,
        }
    }

    /// For ordering and shares: the sample itself where nothing better is known.
    pub fn weight(self, row: &Row) -> f64 {
        match self.time(row) {
            Amount::Unknown => row.total_ns as f64,
            known => known.value(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn amounts_say_what_they_are() {
        assert_eq!(Amount::Whole(1_000.0).time(), "1.00 us");
        assert_eq!(Amount::Estimate(1_000.0).time(), "~1.00 us");
        assert_eq!(Amount::Unknown.time(), "-");
        let whole = Amount::Whole(1.0);
        assert_eq!(whole.plus(whole), Amount::Whole(2.0));
        assert_eq!(whole.plus(Amount::Estimate(2.0)), Amount::Estimate(3.0));
        assert_eq!(whole.plus(Amount::Unknown), Amount::Unknown);
    }

    #[test]
    fn eager_and_graph_times_are_scaled_apart() {
        let row = Row {
            calls: 3,
            no_time: 0,
            total_ns: 300,
            graph_ns: 100,
        };
        assert_eq!(Scale::Whole.time(&row), Amount::Whole(300.0));
        assert_eq!(
            Scale::Factors(10.0, 2.0).time(&row),
            Amount::Estimate(2_200.0)
        );
        assert_eq!(Scale::Unknown.time(&row), Amount::Unknown);
        assert_eq!(Scale::Unknown.weight(&row), 300.0);
        assert_eq!(Scale::of(None, None, 0), Scale::Unknown);
    }
}
