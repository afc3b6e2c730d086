//! Ends that were cut short: the end of a process waits for the last records with a bound, and an error event says when
//! that was not enough. Whether it is, is chance on a machine on which a thread may stand still.

use std::time::Duration;

use crate::program::Ended;

/// An error event as consumers read it: code, component, message.
pub type Error = (i64, String, String);

/// The component of the error that says so.
const COMPONENT: &str = "exit";

/// The shortest of the waits before it is told.
const WAITED: Duration = Duration::from_millis(250);

/// Whether one of these says that an end came before everything was delivered.
pub fn is_among(errors: &[Error]) -> bool {
    errors.iter().any(|error| error.1 == COMPONENT)
}

/// All but those that say so.
pub fn without(mut errors: Vec<Error>) -> Vec<Error> {
    errors.retain(|error| error.1 != COMPONENT);
    errors
}

/// Asserts that a program which was cut short had been waited for.
#[track_caller]
pub fn check(ended: &Ended, cut_short: bool) {
    assert!(
        !cut_short || ended.took >= WAITED,
        "its end waits for longer than the {:?} that it took in all",
        ended.took
    );
}

/// Asserts that so many kernel records came, or fewer if an end was cut short.
#[track_caller]
pub fn records(came: usize, expected: usize, cut_short: bool) {
    assert!(
        came == expected || cut_short && came < expected,
        "{came} kernel records, not {expected}; cut short: {cut_short}"
    );
}
