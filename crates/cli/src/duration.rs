//! Durations as people write them: `500ms`, `30s`, `5m`, `2h`, `7d`.

use std::time::Duration;

/// Units, and their milliseconds.
const UNITS: [(&str, u64); 5] =
    [("ms", 1), ("s", 1000), ("m", 60 * 1000), ("h", 60 * 60 * 1000), ("d", 24 * 60 * 60 * 1000)];

/// Reads a duration.
pub fn parse_duration(text: &str) -> Result<Duration, String> {
    let wrong = || "write a duration as 500ms, 30s, 5m, 2h or 7d".to_owned();
    let digits = text.trim_end_matches(|c: char| c.is_ascii_alphabetic());
    let (number, unit) = text.split_at(digits.len());
    let (_, unit_ms) = UNITS.iter().find(|(name, _)| *name == unit).ok_or_else(wrong)?;
    if !number.chars().all(|c| c.is_ascii_digit()) {
        return Err(wrong());
    }
    if number.is_empty() {
        return Err(wrong());
    }
    let ms = number.parse().ok().and_then(|number: u64| number.checked_mul(*unit_ms));
    let longest = u64::MAX / unit_ms;
    let ms = ms.ok_or_else(|| format!("that is too long: {longest}{unit} is the longest"))?;
    Ok(Duration::from_millis(ms))
}

/// Reads a duration that is not zero.
pub fn parse_lifetime(text: &str) -> Result<Duration, String> {
    match parse_duration(text)? {
        Duration::ZERO => Err("a value lives for 1ms at least; or use `loch delete`".into()),
        lifetime => Ok(lifetime),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn durations_are_read_as_people_write_them() {
        for (text, ms) in [
            ("0s", 0),
            ("500ms", 500),
            ("30s", 30_000),
            ("5m", 300_000),
            ("2h", 7_200_000),
            ("7d", 604_800_000),
        ] {
            assert_eq!(parse_duration(text), Ok(Duration::from_millis(ms)), "{text}");
        }
        for bad in ["", "30", "s", "1.5s", "-1s", "+1s", "1 s", "1w", "99999999999999999d"] {
            assert!(parse_duration(bad).is_err(), "{bad:?}");
        }
        for (long, longest) in [
            ("213503982335d", "213503982334d is the longest"),
            ("99999999999999999999999s", "18446744073709551s is the longest"),
        ] {
            let error = parse_duration(long).unwrap_err();
            assert!(error.contains(longest), "{error}");
        }
        assert!(parse_lifetime("0ms").is_err());
        assert!(parse_lifetime("1ms").is_ok());
    }
}
