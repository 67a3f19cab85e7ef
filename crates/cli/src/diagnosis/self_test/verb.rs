//! The verbs, tried on any fabric: each is posted and waited for, and its effect is checked.

use std::time::{Duration, Instant};

use loch_fabric::lanes::block_on;
use loch_fabric::shm::Region;
use loch_fabric::{Buf, Fabric, FabricError, RegionId, RemoteAddr};

use super::Trying;

/// Bytes of the region that verbs are tried on.
pub const REGION_BYTES: u64 = 1 << 16;
/// The region of this process's home, and the one that verbs go to.
pub const HOME: RegionId = RegionId(0);
/// The region that verbs go to.
pub const THERE: RegionId = RegionId(1);

/// The place of the pattern that READs find.
const PATTERN: u64 = 0;
/// Bytes of it.
const PATTERN_BYTES: u64 = 1 << 14;
/// The place of WRITEs.
pub const WRITTEN: u64 = 1 << 15;
/// The word of atomics.
const WORD: u64 = WRITTEN + 8192;
/// How long an unacknowledged WRITE may take to be seen.
const SEEN_WITHIN: Duration = Duration::from_millis(200);

/// A verb of the trait.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verb {
    /// One READ of this many bytes.
    Read(usize),
    /// Four READs of eight bytes in one doorbell.
    ReadFour,
    /// One WRITE of this many bytes.
    Write(usize),
    /// An unsignaled WRITE of 64 bytes, timed until its bytes are seen.
    WriteUnsignaled,
    /// A CAS that succeeds.
    CompareSwap,
    /// A FAA.
    FetchAdd,
}

/// All of them.
pub const VERBS: [Verb; 9] = [
    Verb::Read(8),
    Verb::Read(64),
    Verb::Read(4096),
    Verb::ReadFour,
    Verb::Write(64),
    Verb::Write(4096),
    Verb::WriteUnsignaled,
    Verb::CompareSwap,
    Verb::FetchAdd,
];

impl Verb {
    /// Its name, and the bytes that it carries.
    pub fn name(self) -> (&'static str, usize) {
        match self {
            Verb::Read(bytes) => ("READ", bytes),
            Verb::ReadFour => ("READ x4", 32),
            Verb::Write(bytes) => ("WRITE", bytes),
            Verb::WriteUnsignaled => ("WRITE unsignaled", 64),
            Verb::CompareSwap => ("CAS", 8),
            Verb::FetchAdd => ("FAA", 8),
        }
    }

    /// Tries it as often as needed. `region` is the memory of the verb, as the CPU sees it.
    pub fn try_out(self, f: &impl Fabric, region: &Region) -> Trying {
        fill(region);
        let mut trying = Trying::new();
        while let Some(number) = trying.next() {
            let begun = Instant::now();
            let result = block_on(self.once(f, region, number));
            let took = begun.elapsed();
            trying.count(took, result.and_then(|()| self.check(region, number)));
        }
        trying
    }

    async fn once(self, f: &impl Fabric, region: &Region, number: u64) -> Result<(), String> {
        let done = match self {
            Verb::Read(bytes) => return read(f, bytes).await,
            Verb::ReadFour => return read_four(f).await,
            Verb::Write(bytes) => {
                let buf = Buf::from(stamped(bytes, number));
                f.write(there(WRITTEN), buf).await.1.map(|()| number)
            }
            Verb::WriteUnsignaled => {
                let posted = f.write_unsignaled(there(WRITTEN), &stamped(64, number));
                return posted.map_err(in_words).and_then(|()| seen(f, region, number));
            }
            Verb::CompareSwap => f.compare_swap(there(WORD), number, number + 1).await,
            Verb::FetchAdd => f.fetch_add(there(WORD), 1).await,
        };
        expect(done.map_err(in_words)?, number)
    }

    /// Looks at the memory after the verb of that number, which is over.
    fn check(self, region: &Region, number: u64) -> Result<(), String> {
        match self {
            Verb::Read(_) | Verb::ReadFour => Ok(()),
            Verb::CompareSwap | Verb::FetchAdd => expect(word(region, WORD), number + 1),
            Verb::Write(64) | Verb::WriteUnsignaled => is_stamped(region, 64, number),
            Verb::Write(bytes) => is_stamped(region, bytes, number),
        }
    }
}

/// Waits until the last word of a WRITE of 64 bytes is in memory.
pub fn seen(f: &impl Fabric, region: &Region, number: u64) -> Result<(), String> {
    let begun = Instant::now();
    while word(region, WRITTEN + 56) != stamp(number) {
        if begun.elapsed() > SEEN_WITHIN {
            return Err(format!("not seen within {} ms", SEEN_WITHIN.as_millis()));
        }
        // WRITEs that do not fit into the card's queue go out when completions are taken; and a
        // single processor may have to emulate the card as well.
        block_on(f.pause(0));
        std::thread::yield_now();
    }
    Ok(())
}

/// The bytes of the WRITE of that number.
pub fn stamped(bytes: usize, number: u64) -> Vec<u8> {
    stamp(number).to_le_bytes().repeat(bytes / 8)
}

async fn read(f: &impl Fabric, bytes: usize) -> Result<(), String> {
    let (buf, done) = f.read(there(PATTERN), bytes, Buf::with_capacity(bytes)).await;
    done.map_err(in_words)?;
    let words = buf.chunks_exact(8).map(|w| u64::from_le_bytes(w.try_into().expect("eight bytes")));
    match buf.len() == bytes && words.eq((0..bytes as u64 / 8).map(pattern)) {
        true => Ok(()),
        false => Err("wrong bytes".to_owned()),
    }
}

async fn read_four(f: &impl Fabric) -> Result<(), String> {
    let places = [0, 64, 512, 4096].map(|offset| there(PATTERN + offset));
    let mut out = [0; 4];
    f.read_words(&places, &mut out).await.map_err(in_words)?;
    let expected = [0, 8, 64, 512].map(pattern);
    if out == expected { Ok(()) } else { Err("wrong words".to_owned()) }
}

fn there(offset: u64) -> RemoteAddr {
    RemoteAddr::new(THERE, offset)
}

fn fill(region: &Region) {
    for index in 0..PATTERN_BYTES / 8 {
        region.copy_in(PATTERN + index * 8, &pattern(index).to_le_bytes());
    }
}

fn pattern(index: u64) -> u64 {
    (index + 1).wrapping_mul(0x9E37_79B9_7F4A_7C15)
}

fn stamp(number: u64) -> u64 {
    !pattern(number)
}

fn is_stamped(region: &Region, bytes: usize, number: u64) -> Result<(), String> {
    let mut words = (0..bytes as u64 / 8).map(|index| word(region, WRITTEN + index * 8));
    match words.all(|word| word == stamp(number)) {
        true => Ok(()),
        false => Err("its bytes are not all in memory".to_owned()),
    }
}

fn expect(found: u64, expected: u64) -> Result<(), String> {
    match found == expected {
        true => Ok(()),
        false => Err(format!("found {found}, expected {expected}")),
    }
}

fn word(region: &Region, offset: u64) -> u64 {
    region.word(offset).load(std::sync::atomic::Ordering::Acquire)
}

fn in_words(error: FabricError) -> String {
    error.to_string()
}
