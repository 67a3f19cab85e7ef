//! The index table entry: the 64 bits that say what a slot holds (nessie §4.1.1).
//!
//! An entry is EMPTY, with a tag that never repeats in its slot, or it names a data table entry by
//! data table, index and generation. The index counts grains, the unit at whose multiples entries
//! start. The word then also carries a state and filter bits of the key's hash:
//!
//! * **T**, tentative: an insert that is not decided. It is invisible. Only its owner may commit
//!   it; any client may remove it.
//! * **V**, visible, with its hop count.
//! * **F**, frozen: visible, and being moved to candidate `aux`.
//! * **C**, copy: visible, and being moved from candidate `aux`.
//!
//! **Rule U**: a word value is CASed into a given slot at most once. A PUT installs a fresh
//! generation, a move adds one to the hop count, and an EMPTY carries a fresh tag.

use loch_fabric::limits::BUCKET_WORDS_MAX;

use super::geometry::Bits;

/// The word of a slot.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Default)]
pub struct Ite(pub u64);

/// The content of a slot.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum State {
    /// No entry.
    Empty,
    /// An undecided insert.
    Tentative,
    /// A value.
    Visible {
        /// Moves since the value was installed.
        hop: u32,
    },
    /// A value that is being moved away.
    Frozen {
        /// Moves since the value was installed, this one included.
        hop: u32,
        /// The candidate to which the value moves.
        to: u32,
    },
    /// A value that is being moved here.
    Copy {
        /// Moves since the value was installed, this one included.
        hop: u32,
        /// The candidate from which the value comes.
        from: u32,
    },
}

/// A data table entry as an index entry names it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Place {
    /// The data table.
    pub dti: u8,
    /// Bytes from the data table's first, a multiple of its grain.
    pub offset: u64,
}

/// Reads and writes words of one shape.
#[derive(Clone, Copy, Debug)]
pub struct Codec {
    bits: Bits,
    state_mask: u64,
    filter_mask: u64,
    /// The mask of the filter bits at their place in a word.
    filter_field: u64,
    /// Where a word has the offset of its entry: shifted by this, without the bits below a grain.
    offset_at: u32,
    offset_mask: u64,
    dti_mask: u8,
}

const EMPTY: u64 = 0;
const TENTATIVE: u64 = 1;
const VISIBLE: u64 = 2;

impl Codec {
    /// The codec of a shape; with `filter` off the filter bits are all zero.
    pub fn new(bits: Bits, filter: bool) -> Self {
        let filter_mask = if filter { (1 << (bits.gen_at - bits.filter_at)) - 1 } else { 0 };
        Self {
            bits,
            state_mask: (1 << bits.filter_at) - 1,
            filter_mask,
            filter_field: filter_mask << bits.filter_at,
            offset_at: bits.idx_at - bits.grain_bits,
            offset_mask: !(bits.grain_bytes() - 1),
            dti_mask: ((1u32 << (bits.idx_at - bits.dti_at)) - 1) as u8,
        }
    }

    /// An EMPTY word.
    #[inline]
    pub fn empty(&self, tag: u64) -> Ite {
        Ite(tag << self.bits.filter_at | EMPTY)
    }

    /// The filter bits of a key hash, as they stand in a word.
    #[inline]
    pub fn filter(&self, hash: u64) -> u64 {
        (hash & self.filter_mask) << self.bits.filter_at
    }

    /// A word that names an entry. `filter` comes from [`Codec::filter`].
    #[inline(always)]
    pub fn entry(&self, state: State, filter: u64, place: Place, generation: u64) -> Ite {
        let generation = generation & self.gen_mask();
        Ite(self.state_bits(state)
            | filter
            | generation << self.bits.gen_at
            | (place.dti as u64) << self.bits.dti_at
            | place.offset << self.offset_at)
    }

    /// A word for the same entry in another state.
    #[inline]
    pub fn with_state(&self, word: Ite, state: State) -> Ite {
        Ite(word.0 & !self.state_mask | self.state_bits(state))
    }

    #[inline(always)]
    fn state_bits(&self, state: State) -> u64 {
        let (hops, candidates) = (self.bits.hops as u64, self.bits.candidates as u64);
        let moving = |hop: u32, aux: u32| (hop as u64 - 1) * candidates + aux as u64;
        match state {
            State::Empty => EMPTY,
            State::Tentative => TENTATIVE,
            State::Visible { hop } => VISIBLE + hop as u64,
            State::Frozen { hop, to } => VISIBLE + hops + moving(hop, to),
            State::Copy { hop, from } => {
                VISIBLE + hops + (hops - 1) * candidates + moving(hop, from)
            }
        }
    }

    /// The state of a slot that holds the word; `None` for bits that no client writes.
    pub fn try_state(&self, word: Ite) -> Option<State> {
        let (hops, candidates) = (self.bits.hops as u64, self.bits.candidates as u64);
        let moving = (hops - 1) * candidates;
        let split = |n: u64| ((n / candidates) as u32 + 1, (n % candidates) as u32);
        Some(match word.0 & self.state_mask {
            EMPTY => State::Empty,
            TENTATIVE => State::Tentative,
            s if s < VISIBLE + hops => State::Visible { hop: (s - VISIBLE) as u32 },
            s if s < VISIBLE + hops + moving => {
                let (hop, to) = split(s - VISIBLE - hops);
                State::Frozen { hop, to }
            }
            s if s < VISIBLE + hops + 2 * moving => {
                let (hop, from) = split(s - VISIBLE - hops - moving);
                State::Copy { hop, from }
            }
            _ => return None,
        })
    }

    /// The state of a slot that holds the word. Bits that no client writes (damage: `loch check`
    /// names it) read as a tentative entry, which every operation may remove.
    #[inline]
    pub fn state(&self, word: Ite) -> State {
        self.try_state(word).unwrap_or(State::Tentative)
    }

    /// Whether the slot shows a value to readers.
    #[inline(always)]
    pub fn is_visible(&self, word: Ite) -> bool {
        word.0 & self.state_mask >= VISIBLE
    }

    /// Whether the slot shows a value that nobody moves.
    #[inline(always)]
    pub fn is_unmoved(&self, word: Ite) -> bool {
        (word.0 & self.state_mask).wrapping_sub(VISIBLE) < self.bits.hops as u64
    }

    /// Whether the slot is free.
    #[inline(always)]
    pub fn is_empty(&self, word: Ite) -> bool {
        word.0 & self.state_mask == EMPTY
    }

    /// Whether the word has these filter bits.
    #[inline(always)]
    pub fn has_filter(&self, word: Ite, filter: u64) -> bool {
        word.0 & self.filter_field == filter
    }

    /// The first of the words that shows a value to readers and has these filter bits. It is found
    /// without branches: which one it is cannot be guessed.
    #[inline(always)]
    pub fn first_match(&self, words: &[u64; BUCKET_WORDS_MAX], filter: u64) -> Option<usize> {
        let mask = self.state_mask | self.filter_field;
        let mut matches = 0u32;
        for (position, word) in words.iter().enumerate() {
            // Other filter bits leave a number above all states.
            let state = word & mask ^ filter;
            let is_match = state.wrapping_sub(VISIBLE) <= self.state_mask - VISIBLE;
            matches |= u32::from(is_match) << position;
        }
        (matches != 0).then_some(matches.trailing_zeros() as usize)
    }

    /// The entry that the word names.
    #[inline(always)]
    pub fn place(&self, word: Ite) -> Place {
        Place {
            dti: (word.0 >> self.bits.dti_at) as u8 & self.dti_mask,
            offset: word.0 >> self.offset_at & self.offset_mask,
        }
    }

    /// The low bits of the entry's generation.
    #[inline(always)]
    pub fn generation(&self, word: Ite) -> u64 {
        word.0 >> self.bits.gen_at & self.gen_mask()
    }

    /// The bits of a generation that an index entry keeps.
    #[inline(always)]
    pub fn gen_mask(&self) -> u64 {
        (1 << self.bits.gen_bits) - 1
    }

    /// Whether two words name the same incarnation of the same entry.
    #[inline]
    pub fn same_entry(&self, a: Ite, b: Ite) -> bool {
        (a.0 ^ b.0) >> self.bits.gen_at == 0
    }

    /// The number of moves that an entry can make until its next PUT.
    pub fn hops_max(&self) -> u32 {
        self.bits.hops - 1
    }
}

#[cfg(test)]
mod tests {
    use super::super::geometry::{Geometry, Options};
    use super::*;
    use proptest::prelude::*;

    fn codec(ways: u8, bucket: u8) -> Codec {
        let g = Geometry::plan(1, 64 << 20, 4096, ways, bucket, 64, Options::default()).unwrap();
        Codec::new(g.validate().unwrap().bits, true)
    }

    fn states(codec: &Codec) -> Vec<State> {
        let mut all = vec![State::Empty, State::Tentative];
        for hop in 0..=codec.hops_max() {
            all.push(State::Visible { hop });
            for aux in 0..if hop == 0 { 0 } else { codec.bits.candidates } {
                all.push(State::Frozen { hop, to: aux });
                all.push(State::Copy { hop, from: aux });
            }
        }
        all
    }

    #[test]
    fn states_are_distinct_and_survive_the_trip() {
        for (ways, bucket) in [(2, 1), (3, 1), (4, 1), (2, 4), (3, 4), (4, 4), (3, 2)] {
            let codec = codec(ways, bucket);
            let all = states(&codec);
            let mut bits: Vec<u64> = all.iter().map(|s| codec.state_bits(*s)).collect();
            for (state, bits) in all.iter().zip(&bits) {
                assert_eq!(codec.try_state(Ite(*bits)), Some(*state), "{ways} {bucket}");
                let unmoved = matches!(state, State::Visible { .. });
                assert_eq!(codec.is_unmoved(Ite(*bits)), unmoved, "{ways} {bucket} {state:?}");
            }
            bits.sort_unstable();
            bits.dedup();
            assert_eq!(bits.len(), all.len());
            assert!(*bits.last().unwrap() <= codec.state_mask);
        }
    }

    proptest! {
        #[test]
        fn fields_do_not_touch_each_other(
            chunks_bits in 4u32..=29, fewer in 0u64..16, nodes in 1u16..=256, bucket in 0u32..3,
            data_table: prop::sample::Index, at: prop::sample::Index,
            generation: u64, hash: u64, pick: prop::sample::Index,
        ) {
            // Up to 256 data tables of 8 TiB, of which every grain can be named.
            let bucket_slots = 1 << bucket;
            let g = Geometry::plan(nodes, 64 << 20, 4096, 3, bucket_slots, 64, Options::default());
            let g = Geometry { chunks: (1 << chunks_bits) - fewer, ..g.unwrap() };
            let shape = g.validate().unwrap();
            let codec = Codec::new(shape.bits, true);
            let state = *pick.get(&states(&codec)[1..]);
            let dti = data_table.index(nodes.into()) as u8;
            let grain = shape.bits.grain_bytes();
            let last = g.data_bytes() / grain - 1;
            let place = Place { dti, offset: at.index(last as usize + 1) as u64 * grain };
            let farthest = Place { dti: (nodes - 1) as u8, offset: last * grain };
            let word = codec.entry(state, codec.filter(hash), farthest, generation);
            prop_assert_eq!((codec.place(word), codec.state(word)), (farthest, state));
            let word = codec.entry(state, codec.filter(hash), place, generation);
            prop_assert_eq!(codec.state(word), state);
            prop_assert_eq!(codec.place(word), place);
            prop_assert_eq!(codec.generation(word), generation & codec.gen_mask());
            prop_assert!(codec.has_filter(word, codec.filter(hash)));
            prop_assert_eq!(codec.is_visible(word), state != State::Tentative);
            let moved = codec.with_state(word, State::Visible { hop: 1 });
            prop_assert!(codec.same_entry(word, moved));
        }
    }
}
