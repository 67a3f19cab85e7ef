//! Words and headers that lie in shared memory: whatever they hold means nothing, or something that
//! is written in the same way.

use loch_engines::limits::{CHUNK_BYTES, VALUE_BYTES_MAX};
use loch_engines::nessie::dte::{self, Header, note_of};
use loch_engines::nessie::geometry::{Geometry, Options, Shape};
use loch_engines::nessie::ite::{Codec, Ite, Place, State};
use loch_engines::nessie::slab::{Chunk, Class, Classes, Entry, Slab};
use zerocopy::IntoBytes;

use crate::input::Input;

/// The shape of a table, words, and the bytes of an entry.
///
/// # Panics
/// If something is read that would be written otherwise.
pub fn entry(bytes: &[u8]) {
    let mut input = Input::new(bytes);
    let options = Options::from_bits(input.u16() as u32);
    if let Some(options) = options {
        assert_eq!(Options::from_bits(options.to_bits()), Some(options));
    }
    let Some(shape) = shape(&mut input, options.unwrap_or_default()) else {
        return;
    };
    let classes = Classes::new(shape.geometry.data_bytes(), shape.bits.grain_bytes());
    let codec = Codec::new(shape.bits, shape.options.filter_bits);
    for _ in 0..4 {
        index_word(&codec, Ite(input.u64()));
        chunk_word(&classes, shape.geometry.chunks, input.u64());
        slab_note(input.u64());
    }
    data_entry(&classes, &shape, input.rest());
}

fn shape(input: &mut Input<'_>, options: Options) -> Option<Shape> {
    let geometry = Geometry {
        ways: input.pick(&[2, 3, 4]),
        bucket_slots: input.pick(&[1, 2, 4]),
        nodes: input.byte() as u16 + 1,
        options: options.to_bits(),
        shards_per_node: 1,
        buckets_per_shard: 4,
        chunks: 16 << input.below(25),
        value_bytes_max: 1 << 20,
        seed: 0,
    };
    geometry.validate().ok()
}

fn index_word(codec: &Codec, word: Ite) {
    let state = codec.state(word);
    let place = codec.place(word);
    let generation = codec.generation(word);
    assert!(generation <= codec.gen_mask());
    let Some(known) = codec.try_state(word) else {
        // Anybody may remove it, and it names an entry that nobody looks at.
        assert_eq!(state, State::Tentative);
        return;
    };
    assert_eq!(known, state);
    assert_eq!(codec.is_empty(word), known == State::Empty);
    let shown = !matches!(known, State::Empty | State::Tentative);
    assert_eq!(codec.is_visible(word), shown, "{known:?}");
    assert_eq!(codec.with_state(word, known), word, "{known:?}");
    if known != State::Empty {
        let again = codec.entry(known, 0, place, generation);
        assert!(codec.same_entry(again, word), "{place:?} {generation:#x}");
        assert_eq!((codec.place(again), codec.state(again)), (place, known));
    }
}

fn chunk_word(classes: &Classes, chunks: u64, word: u64) {
    let Some(chunk) = Chunk::from_word(word) else {
        return;
    };
    assert_eq!(chunk.to_word(), word, "{chunk:?}");
    let (class, run) = match chunk {
        Chunk::Free | Chunk::Tail { .. } => return,
        Chunk::Forming { class, chunks, .. }
        | Chunk::Leased { class, chunks, .. }
        | Chunk::Seized { class, chunks, .. }
        | Chunk::Abandoned { class, chunks, .. }
        | Chunk::Closing { class, chunks, .. } => (class, chunks),
    };
    let Some(class) = classes.by_id(class, run) else {
        return;
    };
    assert_eq!(class.chunks, run);
    assert!(class.note_at(class.entries) <= class.data_at, "{class:?}");
    assert!(class.entry_at(class.entries) <= run as u64 * CHUNK_BYTES, "{class:?}");
    if class.entries > 0 && run as u64 <= chunks {
        for number in [0, class.entries / 2, class.entries - 1] {
            let entry = Entry { slab: Slab { dti: 3, chunk: 0 }, number };
            places(&class, entry);
        }
    }
}

fn places(class: &Class, entry: Entry) {
    let place = class.place(entry);
    assert_eq!(class.entry(place), Some(entry), "{class:?}");
}

fn slab_note(generation: u64) {
    let next = dte::next_generation(generation);
    assert!(next != generation && note_of(next) != 0, "{generation:#x}");
}

fn data_entry(classes: &Classes, shape: &Shape, bytes: &[u8]) {
    let Some(header) = Header::read(bytes) else {
        return;
    };
    assert_eq!(header.as_bytes(), &bytes[..dte::HEADER_BYTES]);
    assert_eq!(header.entry_len() - header.value_at(), header.value_len());
    assert_eq!(header.value_at() - header.key_at(), header.key_len());
    let expires = header.expires_at_ms(bytes);
    assert!(expires.is_none() || header.flags & dte::flags::EXPIRES != 0);
    let mut again = Header::new(
        header.generation,
        header.version,
        header.key_len(),
        header.value_len(),
        header.flags,
    );
    again.checksum = header.checksum;
    assert_eq!(again, header, "a header survives the trip");
    let class = classes.of(header.entry_len());
    assert!(class.entry_bytes >= header.entry_len() as u64, "{class:?}");
    // No value is longer than VALUE_BYTES_MAX, and no descriptor has to name a run for one.
    if header.value_len() as u64 <= VALUE_BYTES_MAX {
        assert_eq!(classes.by_id(class.id, class.chunks), Some(class));
    }
    // It may be said to start anywhere; where that is, if it is an entry, is said in one way.
    for offset in [0, 128, header.version.as_u64(), header.generation] {
        let place = Place { dti: 0, offset };
        if offset < shape.geometry.data_bytes()
            && let Some(entry) = class.entry(place)
        {
            assert_eq!(class.place(entry), place, "{class:?}");
        }
    }
    let key = bytes.get(dte::HEADER_BYTES..header.value_at()).unwrap_or_default();
    let value = bytes.get(header.value_at()..header.entry_len()).unwrap_or_default();
    let sums = header.checksum_of(Place { dti: 0, offset: 0 }, key, value);
    assert_eq!(sums & dte::LOW_HALF, header.key_sum(Place { dti: 0, offset: 0 }, key));
}
