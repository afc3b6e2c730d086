//! A recording as a file.

use std::path::Path;

use parcagpu_cli::recording::format::Note;
use parcagpu_cli::recording::writer::{Beginning, Writer};

/// One launch of four, and its kernel of 7 us.
pub fn write(path: &Path) {
    let file = std::fs::File::create(path).unwrap();
    let mut w = Writer::new(file, &Beginning::default()).unwrap();
    w.clock(50, 1_000, 4);
    let p = w.process(77, 5);
    w.note(p, Note::Comm, 0, 0, "app");
    w.note(p, Note::LaunchesSeen, 0, 1 + 4, "");
    let name = w.name(b"_Z9vectorAddPKfS0_Pfi", false);
    w.launch([100, p, 77, 5, 614, name, 0]);
    let mut row = [0; 19];
    row[..7].copy_from_slice(&[1_200, 7_000, p, 0, 1, 7, 5]);
    row[18] = name;
    w.kernel(row);
    w.finish(9_000).unwrap();
}
