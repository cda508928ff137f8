//! Times as text for people.

/// A moment, in milliseconds since the Unix epoch, as people read it, e.g. `2026-11-26 14:05 UTC`: the minute in which it is, so that what ends then has
/// not ended before. Days are counted as in Howard
/// Hinnant's "chrono-Compatible Low-Level Date Algorithms" (`civil_from_days`).
pub fn utc(ms: u64) -> String {
    let minutes = ms / 60_000;
    let (days, minute) = (minutes / 1_440, minutes % 1_440);
    let shifted = days.saturating_add(719_468);
    let (era, day_of_era) = (shifted / 146_097, shifted % 146_097);
    let leap_days = (day_of_era / 1_460)
        .saturating_add(day_of_era / 146_096)
        .saturating_sub(day_of_era / 36_524);
    let year_of_era = day_of_era.saturating_sub(leap_days) / 365;
    let before = (year_of_era.saturating_mul(365))
        .saturating_add(year_of_era / 4)
        .saturating_sub(year_of_era / 100);
    let day_of_year = day_of_era.saturating_sub(before);
    let shifted_month = day_of_year.saturating_mul(5).saturating_add(2) / 153;
    let day = (day_of_year.saturating_add(1))
        .saturating_sub(shifted_month.saturating_mul(153).saturating_add(2) / 5);
    let month = match shifted_month {
        0..=9 => shifted_month.saturating_add(3),
        _ => shifted_month.saturating_sub(9),
    };
    let year = (era.saturating_mul(400))
        .saturating_add(year_of_era)
        .saturating_add(u64::from(month <= 2));
    let (hour, minute) = (minute / 60, minute % 60);
    format!("{year}-{month:02}-{day:02} {hour:02}:{minute:02} UTC")
}

#[cfg(test)]
#[allow(non_snake_case)]
mod tests {
    use super::*;

    #[test]
    fn utc__should_be_the_calendar_day_and_the_minute_that_it_is_in() {
        for (ms, text) in [
            (0, "1970-01-01 00:00 UTC"),
            (59_999, "1970-01-01 00:00 UTC"),
            (951_782_399_999, "2000-02-28 23:59 UTC"),
            (951_868_800_000, "2000-03-01 00:00 UTC"),
            (1_000_000_000_000, "2001-09-09 01:46 UTC"),
            (1_709_251_199_000, "2024-02-29 23:59 UTC"),
            (1_735_689_600_000, "2025-01-01 00:00 UTC"),
            (4_102_444_740_000, "2099-12-31 23:59 UTC"),
        ] {
            assert_eq!(utc(ms), text, "{ms}");
        }
    }
}
