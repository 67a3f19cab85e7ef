//! The answers to lists of keys, `get`, `gets`, `gat` and `gats`, request by request.

use super::request::number;
use super::{Request, expires};
use crate::gets::{Format, Found};
use crate::store::Expires;

fn value_head(output: &mut Vec<u8>, key: &[u8], flags: u32, len: usize, cas: Option<u64>) {
    output.extend_from_slice(b"VALUE ");
    output.extend_from_slice(key);
    let rest = match cas {
        Some(cas) => format!(" {flags} {len} {cas}\r\n"),
        None => format!(" {flags} {len}\r\n"),
    };
    output.extend_from_slice(rest.as_bytes());
}

/// The answers to requests of `get`, `gets`, `gat` and `gats`.
pub(super) struct Values<'a> {
    pub keys: Vec<&'a [u8]>,
    requests: Vec<Part>,
}

/// A request among others.
#[derive(Clone, Copy, Debug)]
pub(super) struct Part {
    /// Behind so many keys of all it ends.
    pub end: usize,
    wants_cas: bool,
    /// The expiry that its items get.
    expires: Option<Expires>,
}

/// The answers from a key on.
pub(super) struct ValuesFrom<'a>(&'a Values<'a>, usize);

impl<'a> Values<'a> {
    /// Of requests that have keys.
    pub fn of(requests: &[Request<'a>]) -> Self {
        let (mut keys, mut parts) = (Vec::new(), Vec::with_capacity(requests.len()));
        for request in requests {
            let (verb, words) = request.words.split_first().expect("it has a verb");
            let touches = verb.starts_with(b"gat");
            let expires = touches.then(|| number(words[0]).map(expires)).flatten();
            keys.extend_from_slice(&words[usize::from(touches)..]);
            parts.push(Part { end: keys.len(), wants_cas: verb.ends_with(b"s"), expires });
        }
        Self { keys, requests: parts }
    }

    /// Of the next keys of a request that has so many left.
    pub fn rest(keys: Vec<&'a [u8]>, left: usize, part: Part) -> Self {
        Self { keys, requests: vec![Part { end: left, ..part }] }
    }

    pub fn from(&'a self, key: usize) -> ValuesFrom<'a> {
        ValuesFrom(self, key)
    }

    fn request_of(&self, key: usize) -> Part {
        self.requests[self.requests.partition_point(|request| request.end <= key)]
    }

    /// Where the request of a key ends.
    pub fn next_end(&self, key: usize) -> usize {
        self.request_of(key).end
    }

    /// How many requests so many answers make whole, and the next one if its answer has begun.
    pub fn whole(&self, answered: usize) -> (usize, Option<Part>) {
        let whole = self.requests.partition_point(|request| request.end <= answered);
        let begin = whole.checked_sub(1).map_or(0, |last| self.requests[last].end);
        (whole, self.requests.get(whole).filter(|_| begin < answered).copied())
    }
}

impl ValuesFrom<'_> {
    /// The expiry that an item gets, if its request touches.
    pub fn expires(&self, key: usize) -> Option<Expires> {
        let Self(values, from) = self;
        values.request_of(from + key).expires
    }
}

impl Format for ValuesFrom<'_> {
    fn head(&self, key: usize, found: Option<&Found>, output: &mut Vec<u8>) {
        let (Self(values, from), Some(found)) = (self, found) else { return };
        let wants_cas = values.request_of(from + key).wants_cas;
        let key = values.keys[from + key];
        let cas = wants_cas.then(|| found.cas());
        value_head(output, key, found.traits.flags, found.len, cas);
    }

    fn tail(&self, key: usize, is_hit: bool) -> &'static [u8] {
        let Self(values, from) = self;
        let is_last = values.next_end(from + key) == from + key + 1;
        match (is_hit, is_last) {
            (true, true) => b"\r\nEND\r\n",
            (true, false) => b"\r\n",
            (false, true) => b"END\r\n",
            (false, false) => b"",
        }
    }
}
