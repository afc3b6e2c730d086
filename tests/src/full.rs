//! How far tests go: shortened by default, in full by `scripts/test --full`.

/// Set to 1 by `scripts/test --full`.
const VARIABLE: &str = "PARCAGPU_TEST_FULL";

/// Whether durations and repetitions are the long ones.
pub fn is_full() -> bool {
    std::env::var(VARIABLE).is_ok_and(|value| value == "1")
}

/// One of two durations or numbers of repetitions.
pub fn pick<T>(short: T, full: T) -> T {
    if is_full() { full } else { short }
}
