//! The requests of the gateway's clients: they mean the same however they are split.

use loch_gateway::fuzzing::{memcached, resp};
use redis_protocol::resp2::decode::decode;
use redis_protocol::resp2::types::OwnedFrame;

use crate::input::Input;

/// A stream up to this length is also split at every byte.
const SPLIT_EVERYWHERE_MAX: usize = 512;
/// Data of memcached up to this length are waited for.
const DATA_MAX: u64 = 64;

/// Where to split, and bytes that a client of Redis sends.
///
/// # Panics
/// If they are understood in two ways, or in another way than `redis-protocol` does.
pub fn gateway_resp(bytes: &[u8]) {
    let mut input = Input::new(bytes);
    let cut = input.u16() as usize;
    let stream = input.rest();
    let whole = resp(std::iter::once(stream));
    let (head, tail) = stream.split_at(cut % (stream.len() + 1));
    assert_eq!(resp([head, tail].into_iter()), whole, "split at {}", head.len());
    if stream.len() <= SPLIT_EVERYWHERE_MAX {
        assert_eq!(resp(stream.chunks(1)), whole, "a byte at a time");
    }
    let mut at = 0;
    for (request, len) in &whole.0 {
        assert!(*len > 0 && at + len <= stream.len());
        if let Some((arguments, used)) = well_formed(&stream[at..]) {
            assert_eq!((&arguments, used), (request, *len));
        }
        at += len;
    }
    // What is well-formed and short is a request.
    if well_formed(&stream[at..]).is_some_and(|(_, len)| len < SPLIT_EVERYWHERE_MAX) {
        panic!("a request was not found: {:?}", whole.1);
    }
}

/// The arguments of the array of strings at the front, and its bytes.
fn well_formed(bytes: &[u8]) -> Option<(Vec<Vec<u8>>, usize)> {
    let (OwnedFrame::Array(frames), len) = decode(bytes).ok()?? else { return None };
    let string = |frame| match frame {
        OwnedFrame::BulkString(bytes) => Some(bytes),
        _ => None,
    };
    let arguments = frames.into_iter().map(string).collect::<Option<_>>()?;
    // `redis-protocol` reads numbers as Rust does, and a gateway as Redis does.
    let is_plain =
        !bytes[..len].windows(2).any(|pair| matches!(pair, [b'*' | b'$', b'+' | b'0' | b'-']));
    is_plain.then_some((arguments, len))
}

/// Where to split, and bytes that a client of memcached sends.
///
/// # Panics
/// If they are understood in two ways.
pub fn gateway_memcached(bytes: &[u8]) {
    let mut input = Input::new(bytes);
    let cut = input.u16() as usize;
    let stream = input.rest();
    let whole = memcached(std::iter::once(stream), DATA_MAX);
    let (head, tail) = stream.split_at(cut % (stream.len() + 1));
    assert_eq!(memcached([head, tail].into_iter(), DATA_MAX), whole, "split at {}", head.len());
    if stream.len() <= SPLIT_EVERYWHERE_MAX {
        assert_eq!(memcached(stream.chunks(1), DATA_MAX), whole, "a byte at a time");
    }
    let used: usize = whole.0.iter().map(|(_, len)| len).sum();
    assert!(used <= stream.len() && whole.0.iter().all(|(_, len)| *len > 0));
}
