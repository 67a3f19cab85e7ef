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
    let by = Decimal::of(request[2])?;
    let add = |item: Option<&Item>| {
        let before = match item {
            None => Decimal::Units(0),
            Some(item) => Decimal::of(item.data())?,
        };
        let text = before.plus(by)?.into_bytes();
        Ok((Change::bytes(item, text.clone()), text))
    };
    reply.bulk(&store.update(request[1], add).await?.0);
    Ok(())
}

const NO_FLOAT: &str = "ERR value is not a valid float";
const INFINITE: &str = "ERR increment would produce NaN or Infinity";
const TOO_LARGE: &str = "ERR this gateway adds numbers exactly, and none of 1e21 or more";
/// Digits behind the point, as many as Redis writes.
const BEHIND: usize = 17;
/// Digits of all that are below 1e21.
const DIGITS_MAX: usize = 21 + BEHIND;
/// The longest number that Redis reads.
const TEXT_BYTES_MAX: usize = 255;

/// A number of `INCRBYFLOAT`. Sums are exact: Redis reckons with 80 bits, of which people see the
/// last digits, and a counter beyond 2^53 would lie in 64.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Decimal {
    /// So many times 10^-17.
    Units(i128),
    Infinite,
}

impl Decimal {
    /// What the digits and the exponent of a text stand for, rounded to 17 digits behind the point.
    fn of(text: &[u8]) -> Result<Self, Failure> {
        let (is_negative, number) = match text {
            [b'-', number @ ..] => (true, number),
            [b'+', number @ ..] => (false, number),
            number => (false, number),
        };
        if ["inf", "infinity"].iter().any(|word| number.eq_ignore_ascii_case(word.as_bytes())) {
            return Ok(Self::Infinite);
        }
        let mut parts = number.splitn(2, |byte| byte.eq_ignore_ascii_case(&b'e'));
        let mut mantissa = parts.next().unwrap_or_default().splitn(2, |byte| *byte == b'.');
        let [before, behind] = [(); 2].map(|()| mantissa.next().unwrap_or_default());
        let mut digits = [before, behind].concat();
        let exponent: Option<i64> = match parts.next() {
            None => Some(0),
            // A longer exponent is one of a number that is too large, or nothing.
            Some(text) => std::str::from_utf8(text).ok().and_then(|text| text.parse().ok()),
        };
        let is_number = !digits.is_empty() && digits.iter().all(u8::is_ascii_digit);
        let is_number = is_number && text.len() <= TEXT_BYTES_MAX;
        let exponent = exponent.filter(|_| is_number).ok_or(NO_FLOAT)?;
        // So many zeros follow the digits in units; below zero, as many digits fall off.
        let zeros = exponent.saturating_sub(behind.len() as i64).saturating_add(BEHIND as i64);
        digits.drain(..digits.iter().take_while(|digit| **digit == b'0').count());
        if digits.is_empty() {
            return Ok(Self::Units(0));
        }
        let len = zeros.saturating_add(digits.len() as i64);
        if len > DIGITS_MAX as i64 {
            return Err(TOO_LARGE.into());
        }
        let len = usize::try_from(len).unwrap_or(0);
        let is_up =
            zeros < 0 && digits.get(len).filter(|_| -zeros <= digits.len() as i64) >= Some(&b'5');
        digits.resize(len, b'0');
        let whole = digits.iter().fold(0, |sum, digit| 10 * sum + i128::from(digit - b'0'));
        let units = whole + i128::from(is_up);
        Ok(Self::Units(if is_negative { -units } else { units }))
    }

    /// The sum, without an exponent, and without zeros at its end.
    fn plus(self, other: Self) -> Result<String, Failure> {
        let (Self::Units(one), Self::Units(other)) = (self, other) else {
            return Err(INFINITE.into());
        };
        let bound = 10i128.pow(DIGITS_MAX as u32);
        let sum = one.checked_add(other).filter(|sum| sum.abs() < bound).ok_or(TOO_LARGE)?;
        let point = 10u128.pow(BEHIND as u32);
        let (whole, behind) = (sum.unsigned_abs() / point, sum.unsigned_abs() % point);
        let text = format!("{}{whole}.{behind:017}", if sum < 0 { "-" } else { "" });
        Ok(text.trim_end_matches('0').trim_end_matches('.').to_owned())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sums_are_exact_and_written_as_people_expect() {
        for (one, other, sum) in [
            ("10.5", "0.1", "10.6"),
            ("0.1", "0.2", "0.3"),
            ("1000.1", "0.1", "1000.2"),
            ("5.0e3", "0", "5000"),
            (".5", "5.", "5.5"),
            ("3", "-0.0", "3"),
            ("-1", "1", "0"),
            ("-1.5", "+1", "-0.5"),
            ("9007199254740993", "1", "9007199254740994"),
            ("9223372036854775807", "1", "9223372036854775808"),
            ("1e20", "-1E-17", "99999999999999999999.99999999999999999"),
            ("0.123456789012345678901", "0", "0.12345678901234568"),
            ("1e-17", "5e-18", "0.00000000000000002"),
            ("1e-17", "4e-18", "0.00000000000000001"),
            ("1e-17", "9e-19", "0.00000000000000001"),
            ("1e-17", "1e-400", "0.00000000000000001"),
            ("0e9999", "000000000000000000000000000000000000000001", "1"),
        ] {
            let [a, b] = [one, other].map(|text| Decimal::of(text.as_bytes()).unwrap());
            assert_eq!(a.plus(b).unwrap(), sum, "{one} + {other}");
            assert_eq!(b.plus(a).unwrap(), sum, "{other} + {one}");
        }
    }

    #[test]
    fn what_is_no_number_or_has_no_exact_sum_is_refused() {
        let long = "1".repeat(256);
        for text in
            ["", " 1", "1 ", "nan", "x", "0x10", "1e", "e5", ".", "-", "--1", "1.2.3", &long]
        {
            let refused = Decimal::of(text.as_bytes()).map_err(|failure| format!("{failure:?}"));
            assert!(refused.unwrap_err().contains(NO_FLOAT), "{text}");
        }
        for text in ["1e21", "-1e21", "1e999", "999999999999999999999.99"] {
            let sum = Decimal::of(text.as_bytes()).and_then(|number| number.plus(number));
            assert!(sum.is_err(), "{text}");
        }
        for text in ["inf", "-Infinity"] {
            assert!(Decimal::of(text.as_bytes()).unwrap().plus(Decimal::Units(0)).is_err());
        }
    }
}
