//! Takes events out of the ring buffer and only counts them: what no consumer can do better. For `scripts/bench
//! --load`. Usage: ring_reader LIBRARY RING_MIB; ends with SIGINT.

use std::cell::Cell;
use std::path::Path;
use std::rc::Rc;
use std::time::Duration;

use anyhow::{Context, Result};
use parcagpu_cli::choice::Choice;
use parcagpu_cli::session::{Session, Wanted};
use parcagpu_cli::{library, signals};

fn main() -> Result<()> {
    let mut args = std::env::args().skip(1);
    let path = args.next().context("a library is missing")?;
    let ring_mib: u32 = args.next().context("a size is missing")?.parse()?;
    signals::install();
    let received = Rc::new(Cell::new(0u64));
    let count = Rc::clone(&received);
    let wanted = Wanted {
        probes: vec!["activity_batch", "kernel_executed"],
        kernel_executed_too: false,
        choice: Choice::default(),
        discover: false,
        only: None,
        ring_bytes: ring_mib << 20,
        stacks: false,
    };
    let mut session = Session::load_raw(wanted, move |_| {
        count.set(count.get() + 1);
        true
    })?;
    session.attach_library(&library::open(Path::new(&path))?)?;
    eprintln!("attached to 1 library file");
    while signals::count() == 0 {
        session.poll(Duration::from_millis(100))?;
    }
    session.detach();
    session.drain()?;
    let dropped: u64 = session.losses()?.iter().map(|l| l.dropped).sum();
    eprintln!("received {} dropped {dropped}", received.get());
    Ok(())
}
