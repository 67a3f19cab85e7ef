//! Which requests can be executed together with others.

use super::Request;
use super::request::{Data, number};
use crate::context::Context;
use crate::item::{self, Traits};
use crate::limits::MEMCACHED_KEY_BYTES;

/// Whether a request is a `get` or `gets` that is right.
pub(super) fn is_get(request: &Request<'_>) -> bool {
    matches!(request.words.first(), Some(&b"get" | &b"gets"))
        && request.words.len() > 1
        && request.words[1..].iter().all(|key| key.len() <= MEMCACHED_KEY_BYTES)
}

/// Whether a request is a `gat` or `gats` that is right and has keys.
pub(super) fn is_gat(request: &Request<'_>) -> bool {
    let [b"gat" | b"gats", exptime, keys @ ..] = request.words else { return false };
    number::<i64>(exptime).is_some()
        && !keys.is_empty()
        && keys.iter().all(|key| key.len() <= MEMCACHED_KEY_BYTES)
}

/// The key and the value of a SET of a plain value.
pub(super) fn plain_set<'a>(
    cx: &Context<'_>,
    request: &Request<'a>,
) -> Option<(&'a [u8], &'a [u8])> {
    let Data::Block(data) = request.data else { return None };
    match request.words {
        [b"set", key, b"0", b"0", _]
        | [b"set", key, b"0", b"0", _, b"noreply"]
        | [b"ms", key, _] => {
            let fits = key.len() <= MEMCACHED_KEY_BYTES
                && data.len() as u64 <= cx.shared.value_bytes_max
                && item::header(Traits::default(), data).is_none();
            fits.then_some((*key, data))
        }
        _ => None,
    }
}

/// Whether an `mg` wants the value.
pub(super) fn has_value(words: &[&[u8]]) -> bool {
    words.iter().skip(2).any(|word| word[0] == b'v')
}

/// The key of a request that does nothing but read or change one item, and has a short answer.
pub(super) fn only_key<'a>(request: &Request<'a>) -> Option<&'a [u8]> {
    let words = request.words;
    match (*words.first()?, request.data) {
        (_, Data::Bad | Data::TooLarge { .. }) => None,
        (b"mg", _) if has_value(words) => None,
        // A key in base64 may be another one's. The flag is the first letter of its word.
        (b"mg" | b"ms" | b"md" | b"ma", _) if words.iter().skip(2).any(|word| word[0] == b'b') => {
            None
        }
        (
            b"set" | b"add" | b"replace" | b"append" | b"prepend" | b"cas" | b"incr" | b"decr"
            | b"touch" | b"delete" | b"mg" | b"ms" | b"md" | b"ma",
            _,
        ) => words.get(1).copied(),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_request_has_a_lane_only_if_its_key_and_its_data_are_certain() {
        let key = |line: &'static str, data| {
            let words: Vec<&[u8]> = line.split(' ').map(str::as_bytes).collect();
            only_key(&Request { words: &words, data }).map(<[u8]>::to_vec)
        };
        for line in ["mg k s t", "ms k 1 T5", "set k 0 0 1", "append k 0 0 1", "delete k"] {
            assert_eq!(key(line, Data::Block(b"x")), Some(b"k".to_vec()), "{line}");
        }
        for line in
            ["mg k b", "mg k s b1", "mg k t v", "ms k 1 bx", "md k q b", "ma k b", "gat 0 k", "mn"]
        {
            assert_eq!(key(line, Data::Block(b"x")), None, "{line}");
        }
        for data in [Data::Bad, Data::TooLarge { rest: 1 }] {
            assert_eq!(key("add k 0 0 1", data), None);
        }
    }
}
