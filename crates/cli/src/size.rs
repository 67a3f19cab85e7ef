//! Sizes for people.

/// A size with four digits at most, in the largest unit that it fills.
pub fn rounded(bytes: u64) -> String {
    const UNITS: [&str; 5] = ["B", "KiB", "MiB", "GiB", "TiB"];
    let unit = (bytes.max(1).ilog2() / 10).min(UNITS.len() as u32 - 1);
    let size = bytes as f64 / (1_u64 << (unit * 10)) as f64;
    let digits = if unit == 0 || size >= 100.0 || size.fract() == 0.0 { 0 } else { 1 };
    format!("{size:.digits$} {}", UNITS[unit as usize])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_are_short() {
        for (bytes, text) in [
            (0, "0 B"),
            (1023, "1023 B"),
            (1024, "1 KiB"),
            (1 << 20 | 1 << 19, "1.5 MiB"),
            (200 << 30 | 1, "200 GiB"),
            (5000 << 40, "5000 TiB"),
        ] {
            assert_eq!(rounded(bytes), text);
        }
    }
}
