//! Numbers and times for people.

/// With thousands separators.
pub fn count(n: u64) -> String {
    let digits = n.to_string();
    let mut text = String::with_capacity(digits.len() + digits.len() / 3);
    for (i, digit) in digits.chars().enumerate() {
        if i > 0 && (digits.len() - i).is_multiple_of(3) {
            text.push(',');
        }
        text.push(digit);
    }
    text
}

/// A number and its noun, in the plural where it needs one.
pub fn plural(n: u64, noun: &str) -> String {
    let number = count(n);
    match noun.strip_suffix('y') {
        _ if n == 1 => format!("{number} {noun}"),
        Some(stem) => format!("{number} {stem}ies"),
        None if noun.ends_with("ch") || noun.ends_with("ss") => format!("{number} {noun}es"),
        None => format!("{number} {noun}s"),
    }
}

/// A share in percent, with one decimal: `12.3 %`, `< 0.1 %` for what is more than nothing, `-` of nothing.
pub fn percent(part: u128, whole: u128) -> String {
    match (part.saturating_mul(1000).saturating_add(whole / 2)).checked_div(whole) {
        None => "-".to_owned(),
        Some(0) if part > 0 => "< 0.1 %".to_owned(),
        Some(n) => format!("{}.{} %", n / 10, n % 10),
    }
}

/// A duration with three digits or more and its unit.
pub fn duration(ns: u128) -> String {
    // Any duration that can occur is far below 2^53 in its unit.
    #[expect(clippy::cast_precision_loss, reason = "shown with two decimals")]
    let ns_float = ns as f64;
    match ns {
        0..1_000 => format!("{ns} ns"),
        1_000..1_000_000 => format!("{:.2} us", ns_float / 1e3),
        1_000_000..1_000_000_000 => format!("{:.2} ms", ns_float / 1e6),
        _ => format!("{:.2} s", ns_float / 1e9),
    }
}

/// `CLOCK_REALTIME` ns as local-independent time of day (UTC), to the microsecond.
pub fn time_of_day(realtime_ns: u64) -> String {
    let seconds = realtime_ns / 1_000_000_000;
    let micros = realtime_ns / 1_000 % 1_000_000;
    let (h, m, s) = (seconds / 3600 % 24, seconds / 60 % 60, seconds % 60);
    format!("{h:02}:{m:02}:{s:02}.{micros:06}")
}

/// `CLOCK_REALTIME` ns as date (UTC), year-month-day.
pub fn date(realtime_ns: u64) -> String {
    let leap = |year: u64| {
        year.is_multiple_of(4) && (!year.is_multiple_of(100) || year.is_multiple_of(400))
    };
    let mut days = realtime_ns / 86_400_000_000_000;
    let mut year = 1970;
    while days >= 365 + u64::from(leap(year)) {
        days -= 365 + u64::from(leap(year));
        year += 1;
    }
    let february = 28 + u64::from(leap(year));
    let mut month = 1;
    for length in [31, february, 31, 30, 31, 30, 31, 31, 30, 31, 30] {
        if days < length {
            break;
        }
        days -= length;
        month += 1;
    }
    format!("{year}-{month:02}-{:02}", days + 1)
}

/// A clock's time, ns.
pub fn clock_ns(clock: libc::clockid_t) -> u64 {
    let mut time = libc::timespec {
        tv_sec: 0,
        tv_nsec: 0,
    };
    // SAFETY: `time` lives through the call.
    unsafe { libc::clock_gettime(clock, &raw mut time) };
    let seconds = u64::try_from(time.tv_sec).unwrap_or(0);
    seconds * 1_000_000_000 + u64::try_from(time.tv_nsec).unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers() {
        assert_eq!(count(0), "0");
        assert_eq!(count(999), "999");
        assert_eq!(count(1_000), "1,000");
        assert_eq!(count(310_000), "310,000");
        assert_eq!(count(u64::MAX), "18,446,744,073,709,551,615");
        assert_eq!(plural(1, "launch"), "1 launch");
        assert_eq!(plural(2_000, "event"), "2,000 events");
        assert_eq!(plural(2, "process"), "2 processes");
        assert_eq!(plural(0, "launch"), "0 launches");
        assert_eq!(plural(3, "entry"), "3 entries");
        assert_eq!(percent(1, 3), "33.3 %");
        assert_eq!(percent(2, 3), "66.7 %");
        assert_eq!(percent(5, 5), "100.0 %");
        assert_eq!(percent(1, 100_000), "< 0.1 %");
        assert_eq!(percent(0, 9), "0.0 %");
        assert_eq!(percent(0, 0), "-");
        assert_eq!(duration(0), "0 ns");
        assert_eq!(duration(12_345), "12.35 us");
        assert_eq!(duration(3_000_000_000), "3.00 s");
        assert_eq!(
            time_of_day(86_400_000_000_000 + 3_661_000_001_000),
            "01:01:01.000001"
        );
    }

    #[test]
    fn dates() {
        let of = |seconds: u64| date(seconds * 1_000_000_000 + 999_999_999);
        assert_eq!(of(0), "1970-01-01");
        assert_eq!(of(951_782_400), "2000-02-29");
        assert_eq!(of(951_868_800), "2000-03-01");
        assert_eq!(of(1_796_083_199), "2026-11-30");
        assert_eq!(of(1_735_689_599), "2024-12-31");
        assert_eq!(of(1_735_689_600), "2025-01-01");
        assert_eq!(of(4_107_542_399), "2100-02-28");
        assert_eq!(of(4_107_542_400), "2100-03-01");
        assert_eq!(date(u64::MAX), "2554-07-21");
    }
}
