//! The bound that GETs are measured against: the accesses to memory that a GET cannot avoid, and
//! next to nothing else.

use super::{ShmEndpoint, copy, words};
use crate::sync::AtomicU64;
use crate::{FabricError, RemoteAddr, Result};

/// What index words name.
pub trait Names {
    /// The entry that an index word names: the number of its area, and where in the area it begins.
    fn entry(&self, word: u64) -> (usize, u64);
}

/// Memory in which entries lie: its first byte, and its length in bytes.
pub type Area = (RemoteAddr, u64);

/// GETs of which only the accesses to memory are left. For each index word, in their order: the
/// word is loaded, and the entry that it names is copied, which is all of its lines. Nothing is
/// hashed, matched, compared, validated or counted. Where words and areas lie is looked up before;
/// that an entry lies in its area is checked once for each, by one comparison, because a word may
/// say anything.
pub struct BareGets<'a, N> {
    endpoint: &'a ShmEndpoint,
    words: Vec<&'a AtomicU64>,
    areas: Vec<Mapped>,
    names: N,
    /// Bytes of each entry.
    len: usize,
    /// Where entries are copied to: `len` bytes.
    copied: Vec<u8>,
}

/// An area as the loops need it. Invariant: from `base` on `last + len` bytes are mapped, where
/// `len` is the length of the entries, while the endpoint is borrowed.
struct Mapped {
    base: *const u8,
    /// Where the last entry begins that lies in the area.
    last: u64,
    at: RemoteAddr,
}

impl ShmEndpoint {
    /// Prepares GETs by `words` of entries of `len` bytes in `areas`.
    ///
    /// # Errors
    /// [`OutOfBounds`](FabricError::OutOfBounds) if a word or an area lies outside its region, or
    /// a word is not aligned.
    pub fn bare_gets<N: Names>(
        &self,
        words: &[RemoteAddr],
        areas: &[Area],
        names: N,
        len: usize,
    ) -> Result<BareGets<'_, N>> {
        let words = words.iter().map(|at| self.word(*at, false));
        let areas = areas.iter().map(|(at, bytes)| self.mapped(*at, *bytes, len));
        Ok(BareGets {
            words: words.collect::<Result<_>>()?,
            areas: areas.collect::<Result<_>>()?,
            names,
            len,
            copied: vec![0; len],
            endpoint: self,
        })
    }

    /// An area of entries of `len` bytes.
    fn mapped(&self, at: RemoteAddr, bytes: u64, len: usize) -> Result<Mapped> {
        let last = bytes.saturating_sub(len as u64);
        // Both ends are checked: a transfer may not be as long as an area.
        let base = self.locate(at, len, false)?;
        self.locate(at.add(last), len, false)?;
        Ok(Mapped { base, last, at })
    }
}

impl<N: Names> BareGets<'_, N> {
    /// Makes all GETs, one after the other. The processor overlaps them as well as it can.
    ///
    /// # Errors
    /// [`OutOfBounds`](FabricError::OutOfBounds) if an entry does not lie in its area.
    pub fn one_by_one(&mut self) -> Result<()> {
        for i in 0..self.words.len() {
            let place = self.entry(self.words[i])?;
            self.copy(place);
        }
        Ok(())
    }

    /// The same, but a word is prefetched `AHEAD` GETs before it is loaded, and its entry `AHEAD`
    /// GETs before it is copied.
    ///
    /// # Errors
    /// As [`Self::one_by_one`].
    pub fn ahead<const AHEAD: usize>(&mut self) -> Result<()> {
        // The places of entries that are on their way.
        let mut places = [std::ptr::null(); AHEAD];
        let len = self.words.len();
        for step in 0..len + 2 * AHEAD {
            if step < len {
                copy::prefetch(std::ptr::from_ref(self.words[step]).cast());
            }
            // The entry that is copied now gives its place to one that is prefetched now.
            if step >= 2 * AHEAD {
                self.copy(places[step % AHEAD]);
            }
            if step >= AHEAD && step - AHEAD < len {
                let place = self.entry(self.words[step - AHEAD])?;
                places[step % AHEAD] = place;
                self.endpoint.each_line(place, self.len, copy::prefetch);
            }
        }
        Ok(())
    }

    /// The place of the entry that a word names.
    #[inline(always)]
    fn entry(&self, word: &AtomicU64) -> Result<*const u8> {
        let (area, offset) = self.names.entry(words::load(word));
        match self.areas.get(area) {
            // SAFETY: by the area's invariant, bytes from `base` to beyond `last` are mapped.
            Some(area) if offset <= area.last => Ok(unsafe { area.base.add(offset as usize) }),
            _ => Err(self.lost(area, offset)),
        }
    }

    #[cold]
    fn lost(&self, area: usize, offset: u64) -> FabricError {
        let (len, nowhere) = (self.len as u64, RemoteAddr::new(crate::RegionId(0), 1 << 55));
        let (at, region_bytes) =
            self.areas.get(area).map_or((nowhere, 0), |area| (area.at, area.last + len));
        FabricError::OutOfBounds { at: at.add(offset), len, region_bytes }
    }

    #[inline(always)]
    fn copy(&mut self, place: *const u8) {
        // SAFETY: the place of an entry has `len` mapped bytes, by its area's invariant, and
        // `copied` has as many.
        unsafe { copy::copy_out(place, self.copied.as_mut_ptr(), self.len) }
    }
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;
    use std::sync::Arc;

    use super::*;
    use crate::shm::Region;
    use crate::{Fabric, RegionId};

    const HOME: RegionId = RegionId(0);
    const ENTRIES: u64 = 300;
    const STRIDE_BYTES: u64 = 128;
    const ENTRY_BYTES: usize = 112;
    /// The index, behind it two areas of entries.
    const AREAS: [Area; 2] = [
        (RemoteAddr::new(HOME, 4096), ENTRIES * STRIDE_BYTES),
        (RemoteAddr::new(HOME, 4096 + ENTRIES * STRIDE_BYTES), ENTRIES * STRIDE_BYTES),
    ];

    /// Words are the numbers of entries, which lie in the areas by turns. Adds up the entries that
    /// are asked for.
    struct Entries<'a>(&'a Cell<u64>);

    impl Names for Entries<'_> {
        fn entry(&self, word: u64) -> (usize, u64) {
            self.0.set(self.0.get() + word);
            ((word % 2) as usize, word / 2 * STRIDE_BYTES)
        }
    }

    fn word_at(number: u64) -> RemoteAddr {
        RemoteAddr::new(HOME, number * 8)
    }

    fn filled() -> ShmEndpoint {
        let dir = tempfile::tempdir().unwrap();
        let region = Region::create(&dir.path().join("region"), 1 << 17).unwrap();
        let mut shm = ShmEndpoint::new(HOME);
        shm.attach(HOME, Arc::new(region));
        for number in 0..ENTRIES {
            shm.store_before(word_at(number), number).unwrap();
            let at = AREAS[(number % 2) as usize].0.add(number / 2 * STRIDE_BYTES);
            shm.store(at, &[&[number as u8; ENTRY_BYTES]]).unwrap();
        }
        shm
    }

    #[test]
    fn every_distance_copies_every_entry_once() {
        type Loop = fn(&mut BareGets<'_, Entries<'_>>) -> Result<()>;
        let loops: [Loop; 4] =
            [|g| g.one_by_one(), |g| g.ahead::<1>(), |g| g.ahead::<2>(), |g| g.ahead::<32>()];
        let shm = filled();
        let words: Vec<_> = (0..ENTRIES).map(word_at).collect();
        for len in [0, 1, 7, ENTRIES] {
            for bare_loop in loops {
                let sum = Cell::new(0);
                let words = &words[..len as usize];
                let mut gets = shm.bare_gets(words, &AREAS, Entries(&sum), ENTRY_BYTES).unwrap();
                bare_loop(&mut gets).unwrap();
                assert_eq!(sum.get(), (0..len).sum::<u64>());
                let last = len.saturating_sub(1) as u8;
                assert_eq!(gets.copied, [last; ENTRY_BYTES], "{len} GETs");
            }
        }
    }

    #[test]
    fn what_lies_outside_is_refused() {
        let shm = filled();
        let sum = Cell::new(0);
        let get = |word, areas: &[Area]| {
            let mut gets = shm.bare_gets(&[word], areas, Entries(&sum), ENTRY_BYTES)?;
            gets.one_by_one()
        };
        let short = |bytes| [(AREAS[0].0, bytes)];
        shm.store_before(word_at(0), 2).unwrap();
        let entry_end = STRIDE_BYTES + ENTRY_BYTES as u64;
        // The last entry of an area ends with it.
        get(word_at(0), &short(entry_end)).unwrap();
        get(word_at(0), &short(entry_end - 1)).unwrap_err();
        get(word_at(0), &[]).unwrap_err();
        get(word_at(0), &short(1 << 17)).expect_err("it is longer than its region");
        get(RemoteAddr::new(HOME, 1 << 17), &AREAS).expect_err("no such word");
        get(RemoteAddr::new(HOME, 4), &AREAS).expect_err("it is not aligned");
    }
}
