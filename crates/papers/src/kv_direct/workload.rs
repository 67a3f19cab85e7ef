//! The requests of clients: which keys, how often, and which operations.

use loch_engines::functions::{Builtin, Element, Function, Lambda};
use loch_engines::kv_direct::key::KeyHash;
use loch_engines::operation::{Operation, PutOptions};
use loch_engines::requests::packet::Writer;
use rand::{RngExt, SeedableRng};
use rand_chacha::ChaCha8Rng;

use loch_bench::zipf::Zipf;

/// The skew of the paper's long-tail workload.
pub const SKEW: f64 = 0.99;

/// How popular keys are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Popularity {
    /// All keys are equally popular.
    Uniform,
    /// By Zipf's law with exponent 0.99: the paper's long-tail workload.
    LongTail,
}

impl Popularity {
    /// Both.
    pub const ALL: [Self; 2] = [Self::Uniform, Self::LongTail];

    /// Its name in tables.
    pub fn name(self) -> &'static str {
        match self {
            Self::Uniform => "uniform",
            Self::LongTail => "long-tail",
        }
    }
}

/// An operation without its key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// GET.
    Get,
    /// PUT of another value of the same size.
    Put,
    /// Adds 1 to a value of 8 bytes, and returns the value before.
    FetchAdd,
    /// Adds 1 to each of the 64-bit numbers of a value.
    AddAll {
        /// Whether the old numbers are returned.
        returns: bool,
    },
}

/// The keys of one processor, and how often each operation is requested.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Workload {
    /// Keys of all processors.
    pub keys: u64,
    /// Bytes of a key.
    pub key_bytes: usize,
    /// Bytes of a value.
    pub value_bytes: usize,
    /// How popular they are.
    pub popularity: Popularity,
    /// The share of GETs.
    pub gets: f64,
    /// The other operations.
    pub other: Kind,
    /// Processors, and which of them this one is.
    pub part: (u32, u32),
}

impl Workload {
    /// Key number `rank` in the order of popularity, if this processor owns it.
    pub fn key(&self, rank: u64, seed: u64) -> Option<[u8; 8]> {
        let key = rank.to_le_bytes();
        let (parts, part) = self.part;
        let is_own =
            parts == 1 || { KeyHash::of(seed, &key[..self.key_bytes]).partition(parts) == part };
        is_own.then_some(key)
    }
}

/// Operations without end.
pub struct Source {
    workload: Workload,
    seed: u64,
    zipf: Option<Zipf>,
    random: ChaCha8Rng,
    value: Vec<u8>,
    /// The operation that did not fit into the packet before.
    left_over: Option<([u8; 8], Kind)>,
}

impl Source {
    /// Operations of a workload, decided by the seed, in a table with that seed. Each `stream` has
    /// other operations, so that earlier requests are repeated only by chance.
    pub fn new(workload: Workload, seed: u64, stream: u64) -> Self {
        let mut random = ChaCha8Rng::seed_from_u64(seed);
        random.set_stream(stream);
        let is_skewed = workload.popularity == Popularity::LongTail && workload.keys > 1;
        Self {
            zipf: is_skewed.then(|| Zipf::new(workload.keys, SKEW)),
            random,
            value: vec![0; workload.value_bytes],
            left_over: None,
            workload,
            seed,
        }
    }

    /// The next key.
    pub fn key(&mut self) -> [u8; 8] {
        loop {
            let rank = match &self.zipf {
                Some(zipf) => zipf.rank(self.random.random()),
                None => self.random.random_range(0..self.workload.keys),
            };
            if let Some(key) = self.workload.key(rank, self.seed) {
                return key;
            }
        }
    }

    /// The processor of the next key, of `processors` processors.
    pub fn processor(&mut self, processors: u32) -> u32 {
        let key = self.key();
        KeyHash::of(self.seed, &key[..self.workload.key_bytes]).partition(processors)
    }

    /// The operation on the next key.
    pub fn kind(&mut self) -> Kind {
        let is_get = self.random.random::<f64>() < self.workload.gets;
        if is_get { Kind::Get } else { self.workload.other }
    }

    /// Packs up to `most` operations, at least one, into a limited number of bytes.
    pub fn fill(&mut self, writer: &mut Writer, most: usize, bytes_max: usize) {
        for _ in 0..most {
            let (key, kind) = match self.left_over.take() {
                Some(before) => before,
                None => (self.key(), self.kind()),
            };
            let Self { value, random, workload, .. } = self;
            let key_bytes = &key[..workload.key_bytes];
            let action = match kind {
                Kind::Get => Operation::Get,
                Kind::Put => {
                    random.fill(&mut value[..]);
                    Operation::Put { value, options: PutOptions::default() }
                }
                Kind::FetchAdd => Operation::Update(ADD),
                Kind::AddAll { returns } => Operation::UpdateAll { lambda: ADD, returns },
            };
            if writer.count() > 0 && writer.len_with(key_bytes, &action) > bytes_max {
                self.left_over = Some((key, kind));
                return;
            }
            writer.push(key_bytes, &action);
        }
    }
}

/// Adds 1 to a 64-bit number.
const ADD: Lambda = Lambda {
    function: Function::Builtin(Builtin::Add),
    element: Element::U64,
    operand: 1,
    second: 0,
};
