//! The protocol of memcached: text and meta commands.
//!
//! As with RESP, what a client has pipelined is executed in runs: `get` and `gets` of any number of
//! keys as one batch, `mg` that only read as one batch, `set` and `ms` of plain values and
//! different keys as one batch, and other commands on different keys side by side.

mod flags;
mod lists;
mod meta;
mod request;
mod runs;
mod stats;
mod text;
mod touches;
mod values;

use std::ops::Range;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use loch::lanes::run;
use loch::{EngineError, Version};
use quanta::Instant;

use self::lists::List;
use self::request::{Data, Parsed, flags, number, parse};
use self::runs::{is_gat, is_get, only_key, plain_set};
use crate::clients::Client;
use crate::context::Context;
use crate::failure::Failure;
use crate::figures::add;
use crate::gets::{self, Batch};
use crate::item::Traits;
use crate::limits::{BATCH_REQUESTS, LANES, LONG_BYTES, MEMCACHED_KEY_BYTES, READ_BYTES};
use crate::output::Output;
use crate::protocol::{LongSet, Progress, of_different_keys};
use crate::store::{Expires, Held};

/// The version whose commands clients may expect.
const VERSION: &str = "1.6.18";
const BINARY: &str = "ERROR the binary protocol is not served, choose text or meta commands";
const BAD_LINE: &str = "CLIENT_ERROR bad command line format";
const UNAUTHENTICATED: &str = "CLIENT_ERROR unauthenticated";
const TOO_LARGE: &str = "SERVER_ERROR object too large for cache";
const OUT_OF_MEMORY: &str = "SERVER_ERROR out of memory storing object";
const HELD: &str = "SERVER_ERROR clients have not taken too many long answers: nothing was done";
const MAY_BE_DONE: &str = "this and others of a pipeline may be done";
/// Longer times are moments since 1970.
const RELATIVE_S_MAX: i64 = 60 * 60 * 24 * 30;

/// What a client has said so far.
#[derive(Debug)]
pub(crate) struct Session {
    is_known: bool,
    /// A stranger has given a wrong password.
    has_guessed: bool,
    /// Bytes of a data block that is too long, which are still to come.
    skips: usize,
    batch: Batch,
    /// As many other requests are executed side by side, by what they have answered so far.
    lanes: Batch,
    /// The keys of a `get` or `gat` that is executed that are not answered yet.
    list: Option<List>,
    /// So many bytes of the next request have no end of a line.
    looked: usize,
}

/// A line's words and the data behind it.
#[derive(Clone, Copy)]
struct Request<'a> {
    words: &'a [&'a [u8]],
    data: Data<'a>,
}

/// A run of requests that are executed together.
enum Run {
    Gets(usize),
    Touches(usize),
    MetaGets(usize),
    Sets(usize),
    Lanes(usize),
    One,
}

impl Session {
    pub fn new(needs_password: bool) -> Self {
        let (batch, lanes) = (Batch::default(), Batch::default());
        let (is_known, has_guessed) = (!needs_password, false);
        Self { is_known, has_guessed, skips: 0, batch, lanes, list: None, looked: 0 }
    }

    /// Whether the answer to a request that is executed goes on.
    pub fn is_answering(&self) -> bool {
        self.list.is_some()
    }

    /// Bytes of its keys.
    pub fn listed(&self) -> usize {
        self.list.as_ref().map_or(0, lists::List::bytes)
    }

    /// Executes the requests at the front of some bytes.
    pub async fn serve<'t>(
        &mut self,
        cx: &Context<'t>,
        client: &Client,
        bytes: &[u8],
        output: &mut Output<'t>,
    ) -> Progress {
        let mut done = Progress { consumed: self.skips.min(bytes.len()), ..Progress::default() };
        self.skips -= done.consumed;
        let mut words = Vec::new();
        while self.has_ended_list(cx, output).await && self.skips == 0 {
            words.clear();
            // The words of a request, its data, and where it ends.
            let mut found: Vec<(Range<usize>, Data<'_>, usize)> = Vec::new();
            let mut at = done.consumed;
            let ended = loop {
                let (before, looked) = (words.len(), std::mem::take(&mut self.looked));
                let limits = (self.is_known, cx.shared.value_bytes_max);
                match parse(&bytes[at..], limits, looked, &mut words) {
                    Parsed::Request { data, consumed } => {
                        at += consumed;
                        found.push((before..words.len(), data, at));
                        if let Data::TooLarge { .. } = data {
                            break None;
                        }
                    }
                    other => break Some(other),
                }
                let is_long = at - done.consumed >= READ_BYTES;
                if found.len() == BATCH_REQUESTS || is_long || !self.is_known {
                    break None;
                }
            };
            let mut requests: Vec<Request<'_>> = Vec::with_capacity(found.len());
            for (range, data, _) in &found {
                requests.push(Request { words: &words[range.clone()], data: *data });
            }
            let (executed, goes_on) = self.execute_all(cx, client, &requests, output).await;
            if let Some((_, data, end)) = executed.checked_sub(1).map(|last| &found[last]) {
                done.consumed = *end;
                if let Data::TooLarge { rest } = data {
                    self.skips = *rest;
                }
            }
            if !goes_on || executed < requests.len() {
                return Progress { ends: !goes_on, ..done };
            }
            if std::mem::take(&mut self.has_guessed) {
                return Progress { pauses: true, ..done };
            }
            // What is wrong with the rest is told behind the answers so far.
            match ended.filter(|_| output.is_open()) {
                None => continue,
                Some(Parsed::Binary) => {
                    line(&mut output.bytes, BINARY);
                    done.ends = true;
                }
                Some(Parsed::Cut) => {
                    self.looked = bytes.len() - at;
                    done.needed = self.looked + 1;
                }
                Some(Parsed::Incomplete { needed }) => {
                    done.needed = needed;
                    done.long = self.begun_set(cx, &bytes[done.consumed..]);
                }
                Some(_) => {
                    if !self.is_known {
                        line(&mut output.bytes, UNAUTHENTICATED);
                    }
                    done.ends = true;
                }
            }
            return done;
        }
        done
    }

    /// The `set` or plain `ms` of a long value at the front of some bytes.
    fn begun_set(&self, cx: &Context<'_>, bytes: &[u8]) -> Option<LongSet> {
        let (words, start, len) = request::begun_block(bytes).filter(|_| self.is_known)?;
        let (key, its_flags, exptime, answer) = match words[..] {
            [b"set", key, flags, exptime, _] => (key, flags, exptime, Some("STORED\r\n")),
            [b"set", key, flags, exptime, _, b"noreply"] => (key, flags, exptime, None),
            [b"ms", key, _] => (key, &b"0"[..], &b"0"[..], Some("HD\r\n")),
            _ => return None,
        };
        let fits = (LONG_BYTES as u64..=cx.shared.value_bytes_max).contains(&(len as u64))
            && key.len() <= MEMCACHED_KEY_BYTES;
        let at = key.as_ptr().addr() - bytes.as_ptr().addr();
        let traits = Traits { flags: flags(its_flags).filter(|_| fits)?, ..Traits::default() };
        let (key, expires) = ((at, at + key.len()), expires(number(exptime)?));
        Some(LongSet { key, start, len, ends_anyhow: false, traits, expires, answer })
    }

    /// Executes requests as long as their answers may be written. Returns how many, and whether the
    /// connection goes on.
    async fn execute_all<'t>(
        &mut self,
        cx: &Context<'t>,
        client: &Client,
        requests: &[Request<'_>],
        output: &mut Output<'t>,
    ) -> (usize, bool) {
        let mut executed = 0;
        while executed < requests.len() && output.is_open() {
            cx.pace().breathe().await;
            let rest = &requests[executed..];
            let began = Instant::now();
            let called = |name, count: usize| {
                client.said().command = name;
                cx.figures().called(name, count as u64, began.elapsed().as_nanos() as u64);
                count
            };
            executed += match self.next_run(cx, rest) {
                Run::Gets(count) => {
                    let count = self.get_all(cx, &rest[..count], output).await;
                    called("get", count)
                }
                Run::Touches(count) => {
                    let count = self.get_all(cx, &rest[..count], output).await;
                    called("gat", count)
                }
                Run::MetaGets(count) => {
                    let count = self.meta_get_all(cx, &rest[..count], output).await;
                    called("mg", count)
                }
                Run::Sets(count) => {
                    set_all(cx, &rest[..count], &mut output.bytes).await;
                    add(&cx.figures().counters.sets, count as u64);
                    called(known_name(rest[0].words[0]), count)
                }
                Run::Lanes(count) => {
                    let start = output.bytes.len();
                    in_lanes(cx, &rest[..count], &mut output.bytes).await;
                    self.lanes.learn(count, output.bytes.len() - start);
                    count
                }
                Run::One => {
                    match self.execute_one(cx, client, rest[0], output).await {
                        None => return (executed + 1, false),
                        Some(len) => self.lanes.learn(1, len),
                    }
                    1
                }
            };
        }
        (executed, true)
    }

    fn next_run(&self, cx: &Context<'_>, requests: &[Request<'_>]) -> Run {
        if !self.is_known {
            return Run::One;
        }
        let gets = requests.iter().take_while(|request| is_get(request)).count();
        if gets > 0 {
            return Run::Gets(gets);
        }
        let touches = requests.iter().take_while(|request| is_gat(request)).count();
        if touches > 0 {
            return Run::Touches(touches);
        }
        let gets = requests.iter().map_while(|request| meta::PlainGet::of(request.words)).count();
        if gets > 0 {
            return Run::MetaGets(gets);
        }
        let set = |request| plain_set(cx, request).map(|(key, _)| key);
        let sets = of_different_keys(requests.iter().map(set));
        if sets > 1 {
            return Run::Sets(sets);
        }
        // Long values are not read side by side.
        let lanes = self.lanes.len().min(LANES);
        match of_different_keys(requests.iter().take(lanes).map(only_key)) {
            0 | 1 => Run::One,
            alone => Run::Lanes(alone),
        }
    }

    /// Answers the first of these `mg`, one at least. Returns how many.
    async fn meta_get_all<'t>(
        &mut self,
        cx: &Context<'t>,
        requests: &[Request<'_>],
        output: &mut Output<'t>,
    ) -> usize {
        let gets = requests.iter().map_while(|request| meta::PlainGet::of(request.words));
        let format = meta::Values(gets.collect(), cx.store.uses());
        let keys: Vec<&[u8]> = format.0.iter().map(|get| get.key).collect();
        match gets::answer(cx, &keys, &mut self.batch, &format, output).await {
            Ok(answered @ 1..) => answered,
            Ok(0) => {
                if let Err(failure) = meta::execute(cx, requests[0], &mut output.bytes).await {
                    tell(cx, failure, &mut output.bytes);
                }
                1
            }
            Err(failure) => {
                let failed = if failure.is_of_all() { keys.len() } else { 1 };
                (0..failed).for_each(|_| tell(cx, failure.clone(), &mut output.bytes));
                failed
            }
        }
    }

    /// Executes any request. Returns the bytes of the answer, or none if the connection ends.
    async fn execute_one<'t>(
        &mut self,
        cx: &Context<'t>,
        client: &Client,
        request: Request<'_>,
        output: &mut Output<'t>,
    ) -> Option<usize> {
        let start = output.bytes.len();
        let Some(verb) = request.words.first() else {
            line(&mut output.bytes, "ERROR");
            return Some(output.bytes.len() - start);
        };
        client.said().command = known_name(verb);
        if !self.is_known {
            return self.authenticate(cx, client, request, &mut output.bytes).then_some(0);
        }
        // As memcached: a page in a browser can send such requests, with commands in their bodies.
        let is_http = || request.words.last().is_some_and(|last| last.starts_with(b"HTTP/"));
        if *verb == b"quit" || known_name(verb) == "unknown" && is_http() {
            return None;
        }
        if *verb == b"mg" {
            let began = Instant::now();
            if let Some(len) = meta::get_in_place(cx, request.words, output).await {
                cx.figures().called("mg", 1, began.elapsed().as_nanos() as u64);
                return Some(len);
            }
        }
        execute(cx, request, &mut output.bytes).await;
        Some(output.bytes.len() - start)
    }

    /// The first request is a `set` whose data are a user, a space and the password. Returns
    /// whether the connection goes on.
    fn authenticate(
        &mut self,
        cx: &Context<'_>,
        client: &Client,
        request: Request<'_>,
        output: &mut Vec<u8>,
    ) -> bool {
        let (b"set", Data::Block(data)) = (request.words[0], request.data) else {
            line(output, UNAUTHENTICATED);
            return !matches!(request.data, Data::TooLarge { .. });
        };
        let given = data.splitn(2, |byte| *byte == b' ').nth(1);
        let password = cx.shared.password.as_ref();
        self.is_known = given.is_some_and(|given| password.is_none_or(|right| right.is(given)));
        match self.is_known {
            true => {
                cx.shared.clients.knows(client);
                line(output, "STORED");
            }
            false => {
                self.has_guessed = true;
                cx.has_guessed(client);
                line(output, "CLIENT_ERROR authentication failure");
            }
        }
        true
    }
}

/// The request at the front of some bytes, its length, and the bytes behind it that are passed
/// over; or the bytes that it has at least. An error says that it is none.
#[cfg(feature = "fuzzing")]
#[allow(clippy::type_complexity, reason = "it is for the fuzz targets alone")]
pub(crate) fn parsed(
    bytes: &[u8],
    data_max: u64,
) -> Result<Result<((Vec<Vec<u8>>, String), usize, usize), usize>, String> {
    let mut words = Vec::new();
    match parse(bytes, (true, data_max), 0, &mut words) {
        Parsed::Request { data, consumed } => {
            let (text, rest) = match data {
                Data::TooLarge { rest } => ("too large".to_owned(), rest),
                data => (format!("{data:?}"), 0),
            };
            let words = words.into_iter().map(<[u8]>::to_vec).collect();
            Ok(Ok(((words, text), consumed, rest)))
        }
        Parsed::Cut => Ok(Err(bytes.len() + 1)),
        Parsed::Incomplete { needed } => Ok(Err(needed)),
        Parsed::TooLong => Err("too long".to_owned()),
        Parsed::Binary => Err("binary".to_owned()),
    }
}

fn line(output: &mut Vec<u8>, text: &str) {
    output.extend_from_slice(text.as_bytes());
    output.extend_from_slice(b"\r\n");
}

/// The names of commands by which calls are counted.
const NAMES: [&str; 27] = [
    "add",
    "append",
    "cache_memlimit",
    "cas",
    "decr",
    "delete",
    "flush_all",
    "gat",
    "gats",
    "get",
    "gets",
    "incr",
    "ma",
    "md",
    "me",
    "mg",
    "mn",
    "ms",
    "prepend",
    "quit",
    "replace",
    "set",
    "shutdown",
    "stats",
    "touch",
    "verbosity",
    "version",
];

fn known_name(verb: &[u8]) -> &'static str {
    NAMES.iter().find(|name| name.as_bytes() == verb).copied().unwrap_or("unknown")
}

async fn in_lanes(cx: &Context<'_>, requests: &[Request<'_>], output: &mut Vec<u8>) {
    let mut answers = vec![Vec::new(); requests.len()];
    let lanes = requests.iter().zip(&mut answers);
    let lanes = lanes.map(|(request, answer)| execute(cx, *request, answer));
    run(LANES, lanes, |()| ()).await;
    answers.iter().for_each(|answer| output.extend_from_slice(answer));
}

async fn set_all(cx: &Context<'_>, requests: &[Request<'_>], output: &mut Vec<u8>) {
    let plain = |request| plain_set(cx, request).expect("the run has nothing else");
    let pairs: Vec<_> = requests.iter().map(plain).collect();
    let done = cx.store.put_all(&pairs).await;
    for request in requests {
        if done.is_err() {
            add(&cx.figures().counters.errors, 1);
        }
        match &done {
            _ if is_noreply(request.words) => (),
            Ok(()) if request.words[0] == b"ms" => line(output, "HD"),
            Ok(()) => line(output, "STORED"),
            Err(error) => {
                let text = match error.engine() {
                    Some(EngineError::OutOfMemory { .. }) => {
                        format!("{OUT_OF_MEMORY} ({MAY_BE_DONE})")
                    }
                    _ => format!("SERVER_ERROR {MAY_BE_DONE}: {}", Failure::text(error)),
                };
                line(output, &text);
            }
        }
    }
}

/// Whether a request wants no answer, not even an error.
fn is_noreply(words: &[&[u8]]) -> bool {
    let [verb, .., last] = words else { return false };
    let can_be = match *verb {
        b"set" | b"add" | b"replace" | b"append" | b"prepend" | b"cas" | b"incr" | b"decr"
        | b"touch" | b"flush_all" | b"verbosity" => true,
        // Otherwise it is the key.
        b"delete" => words.len() > 2,
        _ => false,
    };
    can_be && *last == b"noreply"
}

/// Executes a request that says nothing about the connection, and answers it.
async fn execute(cx: &Context<'_>, request: Request<'_>, output: &mut Vec<u8>) {
    let began = Instant::now();
    let start = output.len();
    let Some(verb) = request.words.first() else { return line(output, "ERROR") };
    let done = match *verb {
        b"mn" => {
            line(output, "MN");
            Ok(())
        }
        // One that only reads, and a value that nobody has to renew, is sent from where it is.
        b"mg" if runs::has_value(request.words) && !cx.shared.copies.may_hold() => {
            Err(Failure::Held)
        }
        b"mg" | b"ms" | b"md" | b"ma" | b"me" => meta::execute(cx, request, output).await,
        b"stats" => stats::execute(cx, request.words, output).await,
        _ => text::execute(cx, request, output).await,
    };
    cx.figures().called(known_name(verb), 1, began.elapsed().as_nanos() as u64);
    if let Err(failure) = done {
        output.truncate(start);
        let is_answered = !is_noreply(request.words)
            || matches!(&failure, Failure::Said(said) if said == "ERROR");
        tell(cx, failure, output);
        if !is_answered {
            output.truncate(start);
        }
    }
}

/// Puts an item whatever there is, which is deleted if the new one is too large: as with memcached,
/// a client that wants to replace a value does not want to read the old one.
async fn replace(
    cx: &Context<'_>,
    key: &[u8],
    data: &[u8],
    (traits, expires): (Traits, Expires),
) -> Result<Version, Failure> {
    let put = cx.store.put(key, data, traits, expires).await;
    if let Err(Failure::Store(error)) = &put
        && matches!(error.engine(), Some(EngineError::ValueTooLong { .. }))
    {
        cx.store.delete(key).await?;
    }
    put
}

/// Writes a value, the last `len` bytes of what is stored, and its tail: a long one is sent from
/// where it is.
fn write_value<'t>(
    key: &[u8],
    value: Held<'t>,
    len: usize,
    tail: &'static [u8],
    output: &mut Output<'t>,
) {
    let start = value.len() - len;
    if len >= LONG_BYTES {
        return output.send(key, value, start..start + len, tail);
    }
    output.bytes.extend_from_slice(&value[start..]);
    output.bytes.extend_from_slice(tail);
}

/// Answers a failure.
pub(crate) fn tell(cx: &Context<'_>, failure: Failure, output: &mut Vec<u8>) {
    add(&cx.figures().counters.errors, 1);
    match failure {
        Failure::Said(said) => line(output, &said),
        Failure::Busy => {
            line(output, "SERVER_ERROR others kept changing the value, nothing was done")
        }
        Failure::Held => line(output, HELD),
        Failure::NoRoom => line(output, "SERVER_ERROR out of memory reading request"),
        Failure::Store(error) => match error.engine() {
            Some(EngineError::OutOfMemory { .. }) => line(output, OUT_OF_MEMORY),
            Some(EngineError::ValueTooLong { .. }) => line(output, TOO_LARGE),
            _ => line(output, &format!("SERVER_ERROR {}", Failure::text(&error))),
        },
    }
}

/// When something expires that expires at such a time, of which memcached looks at 32 bits: some
/// clients send -1 as 4294967295.
fn expires(exptime: i64) -> Expires {
    match i64::from(exptime as i32) {
        0 => Expires::Never,
        ..0 => Expires::At(UNIX_EPOCH),
        after @ 1..=RELATIVE_S_MAX => Expires::after(Duration::from_secs(after as u64)),
        at => Expires::At(UNIX_EPOCH + Duration::from_secs(at as u64)),
    }
}

/// Seconds that are left, rounded up as long as there are some.
fn seconds_left(at: SystemTime) -> u64 {
    let left = at.duration_since(SystemTime::now()).unwrap_or_default();
    left.as_millis().div_ceil(1000) as u64
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_time_is_the_low_32_bits_of_what_a_client_sends() {
        let left = |exptime| expires(exptime).time().map(seconds_left);
        for high in [0, 1 << 32, -1 << 32] {
            assert_eq!([0, 100, -5].map(|low| left(high + low)), [None, Some(100), Some(0)]);
        }
    }
}
