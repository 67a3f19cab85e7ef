//! Sizes on the command line.

/// Reads a size as people write it: `64`, `16KiB`, `1GiB`.
pub fn parse_size(text: &str) -> Result<u64, String> {
    const FORM: &str = "write a size as 64, 16KiB, 4MiB or 1GiB";
    let digits = text.find(|c: char| !c.is_ascii_digit()).unwrap_or(text.len());
    let (number, unit) = text.split_at(digits);
    let shift = match unit {
        "" | "B" => 0,
        "KiB" => 10,
        "MiB" => 20,
        "GiB" => 30,
        "TiB" => 40,
        _ => return Err(FORM.into()),
    };
    let number: u64 = number.parse().map_err(|_| FORM)?;
    number.checked_mul(1 << shift).ok_or_else(|| "the size does not fit 64 bits".into())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_are_read_as_people_write_them() {
        assert_eq!(parse_size("64"), Ok(64));
        assert_eq!(parse_size("16KiB"), Ok(16 << 10));
        assert_eq!(parse_size("1GiB"), Ok(1 << 30));
        for bad in ["", "KiB", "16kb", "1.5GiB", "-1", "99999999TiB", "16 KiB"] {
            assert!(parse_size(bad).is_err(), "{bad:?}");
        }
    }
}
