//! Numbers: strings of decimal digits that commands add to.

use super::options::number;
use super::reply::Reply;
use super::request::integer;
use crate::failure::Failure;
use crate::store::{Change, Item, Store};

pub(super) async fn execute(
    store: Store<'_>,
    command: &'static str,
    request: &[&[u8]],
    reply: &mut Reply<'_>,
) -> Result<(), Failure> {
    let by = match command {
        "incr" => 1,
        "decr" => -1,
        "incrby" => number(request[2])?,
        "decrby" => number(request[2])?.checked_neg().ok_or("ERR decrement would overflow")?,
        "incrbyfloat" => return add_float(store, request, reply).await,
        other => unreachable!("{other} is a command on numbers"),
    };
    let add = |item: Option<&Item>| {
        let before = match item {
            None => 0,
            Some(item) => {
                integer(item.data()).ok_or("ERR value is not an integer or out of range")?
            }
        };
        let after = before.checked_add(by).ok_or("ERR increment or decrement would overflow")?;
        Ok((Change::bytes(item, after.to_string().into_bytes()), after))
    };
    reply.integer(store.update(request[1], add).await?.0);
    Ok(())
}

async fn add_float(
    store: Store<'_>,
    request: &[&[u8]],
    reply: &mut Reply<'_>,
) -> Result<(), Failure> {
    const NO_FLOAT: &str = "ERR value is not a valid float";
    let by = float(request[2]).ok_or(NO_FLOAT)?;
    let add = |item: Option<&Item>| {
        let before = match item {
            None => 0.0,
            Some(item) => float(item.data()).ok_or(NO_FLOAT)?,
        };
        let after = before + by;
        if !after.is_finite() {
            return Err("ERR increment would produce NaN or Infinity".into());
        }
        let text = written(after).into_bytes();
        Ok((Change::bytes(item, text.clone()), text))
    };
    reply.bulk(&store.update(request[1], add).await?.0);
    Ok(())
}

/// A number of `INCRBYFLOAT`. Spaces, and words other than infinity, are none.
fn float(text: &[u8]) -> Option<f64> {
    let number: f64 = std::str::from_utf8(text).ok()?.parse().ok()?;
    (!number.is_nan()).then_some(number)
}

/// Without an exponent, and with no more than 17 digits behind the point, of which none at the end
/// is a zero. Redis reckons with 80 bits: its last digits may differ.
fn written(number: f64) -> String {
    let shortest = number.to_string();
    let digits = shortest.split_once('.').map_or(0, |(_, behind)| behind.len());
    if digits <= 15 {
        return if shortest == "-0" { "0".to_owned() } else { shortest };
    }
    // 3.0000000000000004 is the nearest sum of two numbers that a person means to give 3.
    let text = format!("{number:.15}");
    let text = text.trim_end_matches('0').trim_end_matches('.');
    if text == "-0" { "0".to_owned() } else { text.to_owned() }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn floats_are_written_as_people_expect() {
        for (number, text) in [
            (10.6, "10.6"),
            (0.1 + 0.2, "0.3"),
            (5.0e3, "5000"),
            (3.0, "3"),
            (-0.0, "0"),
            (1e20, "100000000000000000000"),
            (-1.5, "-1.5"),
        ] {
            assert_eq!(written(number), text);
        }
        for text in ["", " 1", "1 ", "nan", "x", "0x10"] {
            assert_eq!(float(text.as_bytes()), None, "{text}");
        }
        assert_eq!(float(b"5.0e3"), Some(5000.0));
    }
}
