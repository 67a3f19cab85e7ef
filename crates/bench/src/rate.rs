//! `--rate`: how often operations begin in an open loop, and when.
//!
//! Arrivals are a Poisson process: the gaps between them are distributed exponentially. The
//! clients' processes are independent, so all together are a Poisson process as well.

use std::cell::Cell;
use std::fmt;
use std::str::FromStr;

use rand::{RngExt, SeedableRng};
use rand_chacha::ChaCha8Rng;
use serde::{Deserialize, Serialize};

use crate::mix::mix;

/// Gaps between arrivals that are drawn before anything is timed; a run cycles through them.
const GAPS: usize = 1 << 16;
/// The largest rate a second, which is more than any host can do; and the largest share of a closed
/// loop, which is full load.
const PER_SECOND_MAX: f64 = 1e9;
const PERCENT_MAX: f64 = 100.0;

/// How many operations begin, of all clients together.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Rate {
    /// In a second.
    PerSecond(f64),
    /// Percent of the rate of a closed loop.
    Percent(f64),
}

impl Rate {
    /// Whether no operation begins at all.
    pub fn is_rest(self) -> bool {
        matches!(self, Rate::PerSecond(0.0) | Rate::Percent(0.0))
    }
}

impl FromStr for Rate {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let (number, most, rate): (_, _, fn(f64) -> Rate) = match text.strip_suffix('%') {
            Some(number) => (number, PERCENT_MAX, Rate::Percent),
            None => (text, PER_SECOND_MAX, Rate::PerSecond),
        };
        let number = number.parse().ok().filter(|number| (0.0..=most).contains(number));
        let problem = "write operations a second such as 200000, or a share of a closed loop's such \
                       as 40%, at most 100%";
        number.map(rate).ok_or_else(|| problem.into())
    }
}

impl fmt::Display for Rate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Rate::PerSecond(number) => write!(f, "{number}"),
            Rate::Percent(number) => write!(f, "{number}%"),
        }
    }
}

/// When the operations of one client should begin.
#[derive(Debug, Clone)]
pub struct Arrivals {
    /// In units of their mean.
    gaps: Vec<f32>,
    position: Cell<usize>,
    mean_ns: f64,
    next_ns: Cell<f64>,
    passed: Cell<u64>,
}

impl Arrivals {
    /// The arrivals of a client at `per_s` a second, from 0 nanoseconds on.
    pub fn new(seed: u64, client: u32, per_s: f64) -> Self {
        let mut rng = ChaCha8Rng::seed_from_u64(mix(seed) ^ mix(u64::from(client) << 32 | 2));
        // Of one minus a number below 1, so that the logarithm is finite.
        let gaps: Vec<f64> = (0..GAPS).map(|_| -(1.0 - rng.random::<f64>()).ln()).collect();
        // A run is too short for the law of large numbers, so the drawn gaps are scaled to the
        // wanted mean.
        let mean = gaps.iter().sum::<f64>() / GAPS as f64;
        let gaps: Vec<f32> = gaps.into_iter().map(|gap| (gap / mean) as f32).collect();
        let mean_ns = 1e9 / per_s;
        let first_ns = f64::from(gaps[0]) * mean_ns;
        let (position, next_ns) = (Cell::new(0), Cell::new(first_ns));
        Arrivals { gaps, position, mean_ns, next_ns, passed: Cell::new(0) }
    }

    /// When the next operation should begin; not 0, and at rest never.
    #[inline]
    pub fn next_ns(&self) -> u64 {
        (self.next_ns.get() as u64).max(1)
    }

    /// Goes on to the operation after it.
    #[inline]
    pub fn pass(&self) {
        let position = (self.position.get() + 1) % self.gaps.len();
        self.position.set(position);
        self.next_ns.set(self.next_ns.get() + f64::from(self.gaps[position]) * self.mean_ns);
        self.passed.set(self.passed.get() + 1);
    }

    /// How many have begun.
    #[inline]
    pub fn passed(&self) -> u64 {
        self.passed.get()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn arrivals_ns(seed: u64, client: u32, count: usize) -> Vec<u64> {
        let arrivals = Arrivals::new(seed, client, 1e6);
        let next = || {
            let ns = arrivals.next_ns();
            arrivals.pass();
            ns
        };
        (0..count).map(|_| next()).collect()
    }

    #[test]
    fn arrivals_are_a_poisson_process_of_the_wanted_rate() {
        const COUNT: usize = GAPS;
        let ns = arrivals_ns(1, 0, COUNT);
        let length_us = *ns.last().unwrap() as f64 / 1e3;
        assert!((length_us / COUNT as f64 - 1.0).abs() < 1e-3, "{length_us}");
        // The variance of a Poisson distribution is its mean.
        let mut counts = vec![0f64; COUNT];
        for ns in ns {
            if let Some(count) = counts.get_mut(ns as usize / 1000) {
                *count += 1.0;
            }
        }
        let variance = counts.iter().map(|count| (count - 1.0).powi(2)).sum::<f64>() / COUNT as f64;
        assert!((0.95..1.05).contains(&variance), "{variance}");
        let empty = counts.iter().filter(|count| **count == 0.0).count() as f64 / COUNT as f64;
        assert!((empty - (-1f64).exp()).abs() < 0.01, "{empty}");
    }

    #[test]
    fn the_same_seed_gives_the_same_arrivals_and_another_seed_or_client_does_not() {
        let first = arrivals_ns(5, 0, 100);
        assert_eq!(first, arrivals_ns(5, 0, 100));
        assert_ne!(first, arrivals_ns(6, 0, 100));
        assert_ne!(first, arrivals_ns(5, 1, 100));
    }

    #[test]
    fn at_rest_nothing_arrives() {
        assert_eq!(Arrivals::new(1, 0, 0.0).next_ns(), u64::MAX);
        assert!(Rate::from_str("0").unwrap().is_rest() && Rate::from_str("0%").unwrap().is_rest());
    }

    #[test]
    fn rates_are_written_as_they_are_read() {
        for text in ["200000", "0.5", "40%", "12.5%", "100%"] {
            assert_eq!(Rate::from_str(text).unwrap().to_string(), text);
        }
        for wrong in ["", "%", "-1", "101%", "1e10", "NaN", "inf", "5 %"] {
            assert!(Rate::from_str(wrong).is_err(), "{wrong}");
        }
    }
}
