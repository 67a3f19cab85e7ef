//! When a value was stored or read last, as far as this gateway knows.
//!
//! Loch keeps no such time: a GET writes nothing into an entry. Clients of memcached can ask for it
//! (`h` and `l` of the meta commands), and clients of Redis (`OBJECT IDLETIME`). So a gateway keeps
//! it for values that it has stored or read, by their versions, which no two values share.
//!
//! The memory for that is bounded: a version has one of [`PLACES`] places, and the value that is
//! used last has the place. Of a value that has lost it, it is known that it was not used since.

use std::sync::atomic::{AtomicU32, AtomicU64, Ordering::Relaxed};
use std::time::Instant;

use loch::Version;

/// Places of values: 512 KiB.
const PLACES: usize = 1 << 16;
const IS_READ: u64 = 1 << 32;
/// So many versions that follow each other have places that do: a client's versions mostly do, and
/// places far apart would cost each of its PUTs a line of the caches.
const BESIDE: u64 = 64;
/// An odd number with its ones all over (the golden ratio): such groups go to places apart.
const SCATTERS: u64 = 0x9e37_79b9_7f4a_7c15;

/// What a gateway knows of the use of a value.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Use {
    /// Whether it was read after it was stored.
    pub is_read: bool,
    /// So many seconds, at least, it was neither stored nor read.
    pub idle_s: u32,
}

/// When values were used last.
#[derive(Debug)]
pub(crate) struct Uses {
    began: Instant,
    /// The second as of the last tick.
    now_s: AtomicU32,
    /// From the highest bit on: 31 bits that tell versions of a place apart, whether the value was
    /// read, and the second in which it was used last.
    places: Box<[AtomicU64]>,
}

impl Default for Uses {
    fn default() -> Self {
        let places = (0..PLACES).map(|_| AtomicU64::new(0)).collect();
        Self { began: Instant::now(), now_s: AtomicU32::new(0), places }
    }
}

impl Uses {
    /// Looks at the clock: a look for each value would cost more than the rest.
    pub fn tick(&self) {
        let now_s = self.began.elapsed().as_secs() as u32;
        if self.now_s.load(Relaxed) != now_s {
            self.now_s.store(now_s, Relaxed);
        }
    }

    /// A value was stored.
    pub fn stored(&self, version: Version) {
        self.used(version, 0);
    }

    /// A value was read.
    pub fn read(&self, version: Version) {
        self.used(version, IS_READ);
    }

    /// The last use of a value.
    pub fn of(&self, version: Version) -> Use {
        let (place, tag) = self.place(version);
        let word = place.load(Relaxed);
        let is_known = word >> 33 == tag >> 33 && version.as_u64() != 0;
        let idle_s = self.now_s.load(Relaxed).saturating_sub(word as u32);
        Use { is_read: is_known && word & IS_READ != 0, idle_s }
    }

    fn used(&self, version: Version, is_read: u64) {
        let (place, tag) = self.place(version);
        let word = tag | is_read | u64::from(self.now_s.load(Relaxed));
        // A value that is read all the time has its line in the caches of all threads.
        if place.load(Relaxed) != word {
            place.store(word, Relaxed);
        }
    }

    /// The place of a version, and the bits that tell it from others.
    fn place(&self, version: Version) -> (&AtomicU64, u64) {
        let (group, within) = (version.as_u64() / BESIDE, version.as_u64() % BESIDE);
        let mixed = group.wrapping_mul(SCATTERS);
        let groups = PLACES as u64 / BESIDE;
        let place = (mixed >> (64 - groups.ilog2())) * BESIDE + within;
        (&self.places[place as usize], (mixed << groups.ilog2()) >> 33 << 33)
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn a_value_is_read_once_it_was_read_and_idle_since_it_was_used() {
        let mut uses = Uses::default();
        let later = |uses: &mut Uses, s| {
            uses.began -= Duration::from_secs(s);
            uses.tick();
        };
        let versions = [1, 2, 1 << 20, 1 << 40, u64::MAX].map(Version::from_u64);
        later(&mut uses, 5);
        for version in versions {
            assert_eq!(uses.of(version), Use { is_read: false, idle_s: 5 }, "nobody knows it");
            uses.stored(version);
            assert_eq!(uses.of(version), Use::default());
        }
        later(&mut uses, 7);
        for version in versions {
            assert_eq!(uses.of(version), Use { is_read: false, idle_s: 7 });
            uses.read(version);
            assert_eq!(uses.of(version), Use { is_read: true, idle_s: 0 });
        }
        later(&mut uses, 2);
        assert_eq!(uses.of(versions[0]), Use { is_read: true, idle_s: 2 });
        // Without versions nobody knows which value it is.
        uses.read(Version::from_u64(0));
        assert!(!uses.of(Version::from_u64(0)).is_read);
    }

    #[test]
    fn values_of_one_place_are_told_apart_and_the_last_one_has_it() {
        let uses = Uses::default();
        let place = |version: &Version| std::ptr::from_ref(uses.place(*version).0);
        let first = Version::from_u64(1);
        let mut others = (2u64..).map(Version::from_u64);
        let other = others.find(|other| place(other) == place(&first)).expect("there are many");
        uses.read(first);
        assert!(!uses.of(other).is_read);
        uses.read(other);
        assert!(uses.of(other).is_read && !uses.of(first).is_read);
        let apart = (1..1000u64).map(|version| place(&Version::from_u64(version)));
        let apart: std::collections::HashSet<_> = apart.collect();
        assert!(apart.len() > 900, "{} places for 999 versions", apart.len());
    }
}
