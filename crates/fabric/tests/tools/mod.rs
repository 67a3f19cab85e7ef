//! Helpers for the tests of the suite.

use loch_fabric::{Buf, Fabric, FabricError, RegionId, RemoteAddr};

use crate::backends::{BYTES, REGIONS};

/// The region that is home to the first endpoint.
pub const HERE: RegionId = RegionId(0);
/// One that is not.
pub const THERE: RegionId = RegionId(REGIONS - 1);

/// A place.
pub fn at(region: RegionId, offset: u64) -> RemoteAddr {
    RemoteAddr::new(region, offset)
}

/// Bytes of which none is like its neighbour.
pub fn pattern(len: usize, salt: u64) -> Vec<u8> {
    (0..len as u64).map(|i| ((i + salt).wrapping_mul(0x9E37_79B9_7F4A_7C15) >> 56) as u8).collect()
}

/// The word at a place.
pub async fn word<F: Fabric>(f: &F, at: RemoteAddr) -> u64 {
    let mut out = [0];
    f.read_words(&[at], &mut out).await.expect("it is in bounds");
    out[0]
}

/// WRITEs bytes.
pub async fn put<F: Fabric>(f: &F, at: RemoteAddr, bytes: &[u8]) {
    f.write(at, Buf::from(bytes.to_vec())).await.1.expect("it is in bounds");
}

/// READs bytes.
pub async fn bytes<F: Fabric>(f: &F, at: RemoteAddr, len: usize) -> Vec<u8> {
    let (buf, done) = f.read(at, len, Buf::new()).await;
    done.expect("it is in bounds");
    buf.into_vec()
}

/// Waits until all that was posted so far was executed. Verbs take microseconds, if the machine has
/// a processor for the node's thread.
pub async fn settle<F: Fabric>(f: &F) {
    let (mark, began_us) = (f.posted(), f.now_us());
    while !f.is_settled(mark) {
        assert!(f.now_us() - began_us < 10_000_000, "a verb is under way for ever");
        f.pause(10).await;
    }
}

/// Places at which `len` bytes must not be touched, and why.
pub fn bad_places(len: u64) -> Vec<(RemoteAddr, FabricError)> {
    let outside = |region, offset| {
        let at = at(region, offset);
        (at, FabricError::OutOfBounds { at, len, region_bytes: BYTES })
    };
    let nowhere = RegionId(77);
    let mut bad = vec![(at(nowhere, 0), FabricError::Unattached { region: nowhere })];
    for region in [HERE, THERE] {
        let ends = [BYTES - len + 8, BYTES, BYTES + 8, (1 << 56) - 8];
        bad.extend(ends.map(|offset| outside(region, offset)));
    }
    bad
}

/// As [`bad_places`], and those that are not aligned.
pub fn bad_words(len: u64) -> Vec<(RemoteAddr, FabricError)> {
    let mut bad = bad_places(len);
    for offset in [1, 4, 15] {
        let at = at(THERE, offset);
        bad.push((at, FabricError::OutOfBounds { at, len, region_bytes: BYTES }));
    }
    bad
}
