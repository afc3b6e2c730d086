//! What comes out of the ring buffer, through everything that takes events; and names of kernels.

use std::io::sink;

use parcagpu_cli::accounts::Accounts;
use parcagpu_cli::decode::decode;
use parcagpu_cli::demangle::demangle;
use parcagpu_cli::nvtx::Ranges;
use parcagpu_cli::session::Sink;
use parcagpu_cli::trace::{Style, Tracer};

use crate::Bytes;

/// Events one after another, each with its length (u16) before it.
pub fn events(data: &[u8]) {
    let style = |json| Style {
        json,
        ..Style::default()
    };
    let json = Tracer::new(Box::new(sink()), style(true));
    let text = Tracer::new(Box::new(sink()), style(false));
    let (mut accounts, mut ranges) = (Accounts::default(), Ranges::default());
    let mut data = Bytes(data);
    let mut decoded = 0;
    while !data.0.is_empty() {
        let len = usize::from(data.u16());
        let Some(event) = decode(data.take(len)) else {
            continue;
        };
        decoded += 1;
        json.borrow_mut().event(&event);
        text.borrow_mut().event(&event);
        accounts.event(&event);
        ranges.event(&event);
    }
    assert_eq!(json.borrow().events(), decoded);
    ranges.finish();
    let rows = ranges.processes.values().map(|p| p.rows().len());
    assert!(rows.sum::<usize>() <= data_bound(decoded));
    for account in accounts.processes.values() {
        account.total_ns();
        for (name, row) in account.kernels(false) {
            assert!(!name.is_empty());
            row.mean_ns();
        }
    }
}

/// Rows that so many events can make.
fn data_bound(events: u64) -> usize {
    usize::try_from(events).expect("few")
}

/// The name of a kernel: short, so that what comes out is bounded too.
pub fn names(data: &[u8]) {
    for cut in [false, true] {
        let text = demangle(data, cut);
        assert!(!text.chars().any(char::is_control));
        assert!(!cut || text.ends_with('…'));
    }
}
