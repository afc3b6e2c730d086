use super::*;
use crate::events::{Header, Stack};

const SECOND: u64 = 1_000_000_000;

fn header(tid: u32, time_ns: u64) -> Header {
    Header {
        probe: 0,
        // No process has this number, so threads keep theirs.
        pid: u32::MAX,
        tid,
        time_ns,
        start_ns: 1,
    }
}

fn text(name: &str) -> Text<'_> {
    Text {
        bytes: name.as_bytes(),
        state: TextState::Whole,
    }
}

/// An NVTX event of thread `tid` at `time`, told late by another thread.
fn said(kind: u16, tid: u32, time: u64, range_id: u64, name: &str) -> Event<'_> {
    Event {
        header: header(999, time + SECOND / 2),
        body: Body::Nvtx {
            timestamp_ns: time,
            tid,
            correlation_id: 0,
            domain: if name.starts_with("d.") { 1 } else { 0 },
            kind,
            flags: 0,
            color: 0,
            device: 0,
            payload: 0,
            range_id,
            message: text(name),
        },
    }
}

fn launch<'a>(tid: u32, time: u64, id: u32) -> Event<'a> {
    Event {
        header: header(tid, time),
        body: Body::Correlation {
            id,
            cbid: -307,
            name: text("k"),
            stack: Stack::NotTaken,
        },
    }
}

fn kernel<'a>(time: u64, id: u32, ns: u64) -> Event<'a> {
    let end = if ns == 0 { 0 } else { 100 + ns };
    Event {
        header: header(1000, time),
        body: Body::Kernel(Kernel {
            kind: 10,
            registers: 0,
            start: 100,
            end,
            device: 0,
            context: 0,
            stream: 0,
            grid: [1; 3],
            block: [1; 3],
            static_shared_memory: 0,
            dynamic_shared_memory: 0,
            correlation_id: id,
            graph_id: 0,
            graph_node_id: 0,
            name: text("k"),
        }),
    }
}

/// The rows after all events were told in the order given.
fn rows(events: &[Event<'_>]) -> (HashMap<String, Row>, u64) {
    let mut ranges = Ranges::default();
    for event in events {
        ranges.event(event);
    }
    ranges.finish();
    let process = ranges.processes.values().next().expect("one process");
    let rows = process.rows().into_iter();
    (
        rows.map(|(key, row)| (key.name.clone(), row)).collect(),
        process.unmatched_ends,
    )
}

fn row(count: u64, total_ns: u128, kernels: u64, gpu_ns: u128) -> Row {
    Row {
        count,
        total_ns,
        kernels,
        gpu_ns,
        ..Row::default()
    }
}

#[test]
fn kernels_belong_to_every_range_around_their_launch() {
    // The launches and the first kernel are told before the ranges around them.
    let (rows, unmatched) = rows(&[
        launch(7, 150, 1),
        launch(7, 250, 2),
        launch(8, 160, 3),
        kernel(300, 1, 10),
        said(1, 7, 100, 0, "outer"),
        said(1, 7, 120, 0, "inner"),
        said(2, 7, 200, 0, ""),
        said(2, 7, 300, 0, ""),
        said(1, 7, 400, 0, "inner"),
        said(2, 7, 500, 0, ""),
        kernel(5 * SECOND, 2, 20),
        kernel(5 * SECOND, 3, 40),
    ]);
    assert_eq!(unmatched, 0);
    assert_eq!(rows["outer"], row(1, 200, 2, 30));
    assert_eq!(rows["inner"], row(2, 180, 1, 10));
}

#[test]
fn batches_of_a_process_that_was_stopped_are_waited_for() {
    let begin = 10 * SECOND;
    let go_on = begin + 4 * SECOND;
    let of_another = |time| {
        let mut event = kernel(time, 9, 1);
        event.header.start_ns = 2;
        event
    };
    let late = |kind, time, name| {
        let mut event = said(kind, 7, time, 0, name);
        event.header.time_ns = go_on + 2;
        event
    };
    let (rows, unmatched) = rows(&[
        kernel(begin, 8, 1),
        launch(7, begin + 2, 1),
        of_another(begin + 2 * SECOND),
        of_another(begin + 3 * SECOND),
        // Its own thread comes before the one that tells batches.
        launch(7, go_on, 2),
        late(1, begin + 1, "r"),
        late(2, begin + 3, ""),
        kernel(go_on + 3, 1, 10),
        kernel(go_on + 4, 2, 20),
    ]);
    assert_eq!(unmatched, 0);
    assert_eq!(rows["r"], row(1, 2, 1, 10));
}

#[test]
fn a_graph_has_many_kernels_and_some_have_no_time() {
    let (rows, _) = rows(&[
        said(1, 7, 100, 0, "r"),
        launch(7, 150, 1),
        kernel(160, 1, 10),
        said(2, 7, 200, 0, ""),
        kernel(5 * SECOND, 1, 5),
        kernel(5 * SECOND, 1, 0),
    ]);
    let expected = Row {
        no_time: 1,
        ..row(1, 100, 3, 15)
    };
    assert_eq!(rows["r"], expected);
}

#[test]
fn start_and_end_take_the_launches_of_their_threads() {
    let (rows, _) = rows(&[
        said(3, 7, 100, 1, "r"),
        launch(7, 110, 1),
        launch(8, 120, 2),
        launch(9, 130, 3),
        kernel(140, 2, 4),
        said(4, 8, 200, 1, ""),
        launch(7, 210, 4),
        kernel(5 * SECOND, 1, 1),
        kernel(5 * SECOND, 2, 2),
        kernel(5 * SECOND, 3, 8),
        kernel(5 * SECOND, 4, 16),
    ]);
    assert_eq!(rows["r"], row(1, 100, 3, 7));
}

#[test]
fn domains_have_stacks_of_their_own() {
    let (rows, unmatched) = rows(&[
        said(1, 7, 100, 0, "plain"),
        said(1, 7, 110, 0, "d.range"),
        // Pops the default domain's, not the innermost.
        said(2, 7, 120, 0, ""),
        said(2, 7, 150, 0, "d."),
    ]);
    assert_eq!(unmatched, 0);
    assert_eq!(rows["plain"], row(1, 20, 0, 0));
    assert_eq!(rows["d.range"], row(1, 40, 0, 0));
}

#[test]
fn what_has_no_end_or_no_beginning_is_told_apart() {
    let (rows, unmatched) = rows(&[
        said(2, 7, 50, 0, ""),
        said(4, 7, 60, 17, ""),
        said(1, 7, 100, 0, "open"),
        launch(7, 150, 1),
        kernel(5 * SECOND, 1, 10),
    ]);
    assert_eq!(unmatched, 2);
    let expected = Row {
        open: 1,
        ..row(0, 0, 1, 10)
    };
    assert_eq!(rows["open"], expected);
}

#[test]
fn names_have_no_control_characters() {
    let mut cut = text("a\x1b[2J");
    cut.state = TextState::Cut;
    assert_eq!(name_of(&cut), "a\u{fffd}[2J…");
    assert_eq!(name_of(&text("")), "(no name)");
}
