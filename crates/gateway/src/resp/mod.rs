//! The protocol of Redis: RESP2 and RESP3.
//!
//! The requests that a client has pipelined are executed in *runs*: GETs as one batch, plain SETs
//! of different keys as one batch, and other commands on one key each, of different keys, side by
//! side. Answers are in the order of the requests. Commands on the same key, and those that say
//! something about the connection, are executed one after the other.

mod bits;
mod connection;
mod expiry;
mod glob;
mod held;
mod info;
mod keys;
mod lists;
mod numbers;
mod options;
mod reply;
mod request;
mod scan;
mod server;
mod strings;
mod table;
mod transaction;

use std::ops::Range;

use loch::EngineError;
use loch::lanes::run;
use quanta::Instant;

use self::held::{is_held, is_refused};
use self::reply::Reply;
use self::request::{Begun, Parsed, parse};
use self::table::{Command, Family};
use self::transaction::Transaction;
use crate::clients::Client;
use crate::context::Context;
use crate::failure::Failure;
use crate::figures::add;
use crate::gets::{self, Batch, Keys};
use crate::item::Traits;
use crate::limits::{BATCH_REQUESTS, LANES, LONG_BYTES, READ_BYTES};
use crate::output::Output;
use crate::protocol::{LongSet, Progress, of_different_keys};
use crate::store::{Expires, Store};

/// What a client has said so far.
#[derive(Debug)]
pub(crate) struct Session {
    /// 2 or 3.
    resp: u8,
    is_known: bool,
    /// A stranger has given a wrong password.
    has_guessed: bool,
    transaction: Transaction,
    batch: Batch,
    /// As many other requests are executed side by side, by what they have answered so far.
    lanes: Batch,
    /// The next request, if it is a long one.
    begun: Begun,
    /// The keys of an MGET that is executed that are not answered yet.
    list: Keys,
}

/// What a command wants of the connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Next {
    Goes,
    Ends,
}

/// A run of requests that are executed together.
enum Run {
    Gets(usize),
    Sets(usize),
    Lanes(usize),
    Mget,
    /// A part of a value, which may be long.
    Range,
    One,
}

type Request<'a> = &'a [&'a [u8]];

impl Session {
    pub fn new(needs_password: bool) -> Self {
        let (batch, lanes) = (Batch::default(), Batch::default());
        let (transaction, begun) = (Transaction::default(), Begun::default());
        let (is_known, list) = (!needs_password, Keys::default());
        let has_guessed = false;
        Self { resp: 2, is_known, has_guessed, transaction, batch, lanes, begun, list }
    }

    /// Whether the answer to a request that is executed goes on.
    pub fn is_answering(&self) -> bool {
        self.list.len() > 0
    }

    /// Bytes of its keys.
    pub fn listed(&self) -> usize {
        self.list.bytes()
    }

    /// Executes the requests at the front of some bytes.
    pub async fn serve<'t>(
        &mut self,
        cx: &Context<'t>,
        client: &Client,
        bytes: &[u8],
        output: &mut Output<'t>,
    ) -> Progress {
        let mut done = Progress::default();
        let mut arguments = Vec::new();
        while self.has_ended_list(cx, output).await {
            arguments.clear();
            // The arguments of a request, and where it ends.
            let mut found: Vec<(Range<usize>, usize)> = Vec::new();
            let mut at = done.consumed;
            let mut begun = std::mem::take(&mut self.begun);
            let ended = loop {
                let before = arguments.len();
                match parse(&bytes[at..], self.is_known, &mut begun, &mut arguments) {
                    Parsed::Request { consumed } => at += consumed,
                    other => break Some(other),
                }
                // An empty request is none.
                if arguments.len() > before {
                    found.push((before..arguments.len(), at));
                }
                // What a stranger says may make it known.
                let is_long = at - done.consumed >= READ_BYTES;
                if found.len() == BATCH_REQUESTS || is_long || !self.is_known {
                    break None;
                }
            };
            let requests: Vec<Request<'_>> =
                found.iter().map(|(range, _)| &arguments[range.clone()]).collect();
            let (executed, next) = self.execute_all(cx, client, &requests, output).await;
            if executed < requests.len() {
                done.consumed = executed.checked_sub(1).map_or(done.consumed, |last| found[last].1);
                return Progress { ends: next == Next::Ends, ..done };
            }
            done.consumed = at;
            if next == Next::Ends || self.has_guessed {
                return self.ended(next, done);
            }
            // What is wrong with the rest is told behind the answers so far.
            match ended.filter(|_| output.is_open()) {
                None => continue,
                Some(Parsed::Inline { arguments, consumed }) => {
                    let arguments: Vec<&[u8]> = arguments.iter().map(Vec::as_slice).collect();
                    let requests: &[Request<'_>] = &[&arguments];
                    let requests = if arguments.is_empty() { &[] } else { requests };
                    let (executed, next) = self.execute_all(cx, client, requests, output).await;
                    if executed == requests.len() {
                        done.consumed += consumed;
                    }
                    if next == Next::Ends || self.has_guessed {
                        return self.ended(next, done);
                    }
                    continue;
                }
                Some(Parsed::Incomplete { needed }) => {
                    done.needed = needed;
                    done.long = self.begun_set(cx, &bytes[done.consumed..]);
                    if done.long.is_none() {
                        self.begun = begun;
                    }
                }
                Some(Parsed::NoBulk(byte)) => {
                    let byte = char::from(byte);
                    self.refuse(&mut output.bytes, &format!("expected '$', got '{byte}'"));
                    done.ends = true;
                }
                Some(Parsed::Wrong(problem)) => {
                    self.refuse(&mut output.bytes, problem);
                    done.ends = true;
                }
                Some(Parsed::Request { .. }) => unreachable!("it was taken above"),
            }
            return done;
        }
        done
    }

    /// The connection ends, or is not served for a moment.
    fn ended(&mut self, next: Next, done: Progress) -> Progress {
        let pauses = std::mem::take(&mut self.has_guessed);
        Progress { ends: next == Next::Ends, pauses, ..done }
    }

    /// The plain SET of a long value at the front of some bytes.
    fn begun_set(&self, cx: &Context<'_>, bytes: &[u8]) -> Option<LongSet> {
        if !self.is_known || self.transaction.is_open() {
            return None;
        }
        let (key, (start, end)) = request::begun_set(bytes)?;
        let len = end - start;
        let fits = (LONG_BYTES as u64..=cx.shared.value_bytes_max).contains(&(len as u64))
            && (1..=loch::limits::KEY_BYTES_MAX).contains(&(key.1 - key.0));
        let (traits, expires) = (Traits::default(), Expires::Never);
        let (ends_anyhow, answer) = (true, Some("+OK\r\n"));
        fits.then_some(LongSet { key, start, len, ends_anyhow, traits, expires, answer })
    }

    /// Answers a failure of such a SET.
    pub fn tell(&self, cx: &Context<'_>, failure: Failure, output: &mut Vec<u8>) {
        tell(cx, Err(failure), &mut self.reply(output));
    }

    fn refuse(&self, output: &mut Vec<u8>, problem: &str) {
        self.reply(output).error(&format!("ERR Protocol error: {problem}"));
    }

    fn reply<'a>(&self, bytes: &'a mut Vec<u8>) -> Reply<'a> {
        Reply { bytes, resp: self.resp }
    }

    /// Executes requests as long as their answers may be written. Returns how many.
    async fn execute_all<'t>(
        &mut self,
        cx: &Context<'t>,
        client: &Client,
        requests: &[Request<'_>],
        output: &mut Output<'t>,
    ) -> (usize, Next) {
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
                Run::Sets(count) => {
                    self.set_all(cx, &rest[..count], &mut output.bytes).await;
                    add(&cx.figures().counters.sets, count as u64);
                    called("set", count)
                }
                Run::Lanes(count) => {
                    let start = output.bytes.len();
                    self.in_lanes(cx, client, &rest[..count], &mut output.bytes).await;
                    self.lanes.learn(count, output.bytes.len() - start);
                    count
                }
                Run::Mget => {
                    self.get_list(cx, &rest[0][1..], output).await;
                    called("mget", 1)
                }
                Run::Range => {
                    self.get_range(cx, client, rest[0], output).await;
                    1
                }
                Run::One => {
                    let start = output.bytes.len();
                    if self.execute(cx, client, rest[0], &mut output.bytes).await == Next::Ends {
                        return (executed + 1, Next::Ends);
                    }
                    self.lanes.learn(1, output.bytes.len() - start);
                    1
                }
            };
        }
        (executed, Next::Goes)
    }

    /// As many of the first requests as are of a kind.
    fn next_run(&self, cx: &Context<'_>, requests: &[Request<'_>]) -> Run {
        if !self.is_known || self.transaction.is_open() {
            return Run::One;
        }
        let is_get = |request: &&Request<'_>| is_plain(request, b"get", 2);
        let gets = requests.iter().take_while(is_get).count();
        if gets > 0 {
            return Run::Gets(gets);
        }
        if requests[0].len() > 1 && requests[0][0].eq_ignore_ascii_case(b"mget") {
            return Run::Mget;
        }
        if ["getrange", "substr"].iter().any(|name| is_plain(requests[0], name.as_bytes(), 4)) {
            return Run::Range;
        }
        let sets = of_different_keys(requests.iter().map(|request| plain_set(cx, request)));
        if sets > 1 {
            return Run::Sets(sets);
        }
        // Long values are not read side by side.
        let lanes = self.lanes.len().min(LANES);
        match of_different_keys(requests.iter().take(lanes).map(|request| only_key(request))) {
            0 | 1 => Run::One,
            alone => Run::Lanes(alone),
        }
    }

    /// Answers the first of these GETs. Returns how many.
    async fn get_all<'t>(
        &mut self,
        cx: &Context<'t>,
        requests: &[Request<'_>],
        output: &mut Output<'t>,
    ) -> usize {
        let keys: Vec<&[u8]> = requests.iter().map(|request| request[1]).collect();
        let format = strings::Values { resp: self.resp };
        match gets::answer(cx, &keys, &mut self.batch, &format, output).await {
            Ok(answered) => answered,
            Err(failure) if failure.is_of_all() => {
                for _ in &keys {
                    tell(cx, Err(failure.clone()), &mut self.reply(&mut output.bytes));
                }
                keys.len()
            }
            Err(_) => {
                // The first says for itself what is wrong.
                let mut reply = self.reply(&mut output.bytes);
                let done = strings::get(cx, cx.store, keys[0], &mut reply).await;
                tell(cx, done, &mut reply);
                1
            }
        }
    }

    /// Answers a GETRANGE, whose part of the value goes out from where it is if it is long.
    async fn get_range<'t>(
        &mut self,
        cx: &Context<'t>,
        client: &Client,
        request: Request<'_>,
        output: &mut Output<'t>,
    ) {
        let bounds = options::number(request[2]).ok().zip(options::number(request[3]).ok());
        if let Some((first, last)) = bounds {
            let began = Instant::now();
            let part =
                |len| strings::range(len, first, last).filter(|part| part.len() >= LONG_BYTES);
            let resp = self.resp;
            let head = |len, bytes: &mut Vec<u8>| Reply { bytes, resp }.bulk_head(len);
            if gets::answer_part(cx, request[1], part, head, output).await {
                cx.figures().called("getrange", 1, began.elapsed().as_nanos() as u64);
                client.said().command = "getrange";
                return;
            }
        }
        self.execute(cx, client, request, &mut output.bytes).await;
    }

    async fn set_all(&mut self, cx: &Context<'_>, requests: &[Request<'_>], output: &mut Vec<u8>) {
        let pairs: Vec<(&[u8], &[u8])> =
            requests.iter().map(|request| (request[1], request[2])).collect();
        match cx.store.put_all(&pairs).await {
            Ok(()) => requests.iter().for_each(|_| self.reply(output).ok()),
            Err(error) => {
                let text = match error.engine() {
                    Some(EngineError::OutOfMemory { .. }) => {
                        format!("{OUT_OF_MEMORY} ({MAY_BE_DONE})")
                    }
                    _ => format!("ERR {MAY_BE_DONE}: {}", Failure::text(&error)),
                };
                add(&cx.figures().counters.errors, requests.len() as u64);
                requests.iter().for_each(|_| self.reply(output).error(&text));
            }
        }
    }

    async fn in_lanes(
        &self,
        cx: &Context<'_>,
        client: &Client,
        requests: &[Request<'_>],
        output: &mut Vec<u8>,
    ) {
        let mut answers = vec![Vec::new(); requests.len()];
        let resp = self.resp;
        let lanes = requests.iter().zip(&mut answers).map(|(request, answer)| async move {
            let command = Command::of(request[0]).expect("it was found for the run");
            let mut reply = Reply { bytes: answer, resp };
            execute_data((cx, client), cx.store, command, request, &mut reply).await;
        });
        run(LANES, lanes, |()| ()).await;
        answers.iter().for_each(|answer| output.extend_from_slice(answer));
    }

    /// Executes any request.
    async fn execute(
        &mut self,
        cx: &Context<'_>,
        client: &Client,
        request: Request<'_>,
        output: &mut Vec<u8>,
    ) -> Next {
        let found = Command::of(request[0]);
        // A page in a browser can send such requests to this host, with commands in their bodies.
        if found.is_none() && ["post", "host:"].iter().any(|word| options::is(request[0], word)) {
            if let Some(unsaid) = cx.shared.http_requests.due(std::time::Instant::now()) {
                let client = &client.address;
                tracing::warn!(client, unsaid, "a request of HTTP ends its connection");
            }
            return Next::Ends;
        }
        let mut reply = self.reply(output);
        let for_strangers = ["auth", "hello", "quit", "reset"];
        let refused = match found {
            None => Some(unknown(request)),
            Some(command) => command.refuses(request).or_else(|| {
                let may_be = self.is_known || for_strangers.contains(&command.name);
                (!may_be).then(|| "NOAUTH Authentication required.".to_owned())
            }),
        };
        if let Some(error) = refused {
            add(&cx.figures().counters.errors, 1);
            if found.is_some_and(|command| command.name == "exec") {
                // As with Redis, nothing is left of the transaction, or of what is watched.
                let why = error.strip_prefix("ERR ").unwrap_or(&error);
                reply.error(&format!("EXECABORT Transaction discarded because of: {why}"));
                self.transaction = Transaction::default();
                return Next::Goes;
            }
            reply.error(&error);
            self.transaction.is_wrong();
            return Next::Goes;
        }
        let command = found.expect("an unknown command was refused");
        client.said().command = command.name;
        if self.transaction.is_open() && !self.transaction.runs_at_once(command) {
            match self.transaction.queue(&cx.shared.copies, command, request) {
                Ok(()) => self.reply(output).simple("QUEUED"),
                Err(error) => self.reply(output).error(error),
            }
            return Next::Goes;
        }
        if command.family.is_of_data() {
            execute_data((cx, client), cx.store, command, request, &mut reply).await;
            return Next::Goes;
        }
        if command.name == "exec" && !cx.shared.copies.may_hold() {
            self.transaction.is_wrong();
        }
        let began = Instant::now();
        let mut next = Next::Goes;
        let done = match command.family {
            Family::Connection if is_refused(cx, command, request) => Err(Failure::Held),
            Family::Connection => connection::execute(self, cx, client, command, request, output)
                .await
                .map(|then| next = then),
            Family::Transaction => self.transact((cx, client), command, request, output).await,
            _ => execute_other(cx, cx.store, command, request, &mut reply).await,
        };
        let took = began.elapsed();
        cx.figures().called(command.name, 1, took.as_nanos() as u64);
        // It may have a password.
        if command.family != Family::Connection {
            cx.shared.slowlog.note(client, request, took);
        }
        tell(cx, done, &mut self.reply(output));
        next
    }
}

/// The request at the front of some bytes and its length, or the bytes that it has at least; an
/// error says that it is none.
#[cfg(feature = "fuzzing")]
#[allow(clippy::type_complexity, reason = "it is for the fuzz targets alone")]
pub(crate) fn parsed(bytes: &[u8]) -> Result<Result<(Vec<Vec<u8>>, usize), usize>, String> {
    let mut found = Vec::new();
    match parse(bytes, true, &mut Begun::default(), &mut found) {
        Parsed::Request { consumed } => {
            Ok(Ok((found.into_iter().map(<[u8]>::to_vec).collect(), consumed)))
        }
        Parsed::Inline { arguments, consumed } => Ok(Ok((arguments, consumed))),
        Parsed::Incomplete { needed } => Ok(Err(needed)),
        Parsed::Wrong(problem) => Err(problem.to_owned()),
        Parsed::NoBulk(byte) => Err(format!("no bulk: {byte}")),
    }
}

/// The key of a request that does nothing but read or change one item, and has a short answer.
fn only_key<'a>(request: Request<'a>) -> Option<&'a [u8]> {
    let command = Command::of(request[0])?;
    let is_valid = command.family.is_of_data()
        && command.refuses(request).is_none()
        && !is_held(command, request);
    // Answers of side by side are held until the last one has come.
    let is_long = ["get", "getrange", "mget", "substr"].contains(&command.name);
    let mut keys = command.keys(request.len()).filter(|_| is_valid && !is_long);
    match (keys.next(), keys.next()) {
        (Some(key), None) => Some(request[key]),
        _ => None,
    }
}

/// The key of a SET of a plain value.
fn plain_set<'a>(cx: &Context<'_>, request: Request<'a>) -> Option<&'a [u8]> {
    let fits = is_plain(request, b"set", 3)
        && crate::item::header(Default::default(), request[2]).is_none()
        && request[2].len() as u64 <= cx.shared.value_bytes_max
        && (1..=loch::limits::KEY_BYTES_MAX).contains(&request[1].len());
    fits.then(|| request[1])
}

/// Whether a request is this command with so many arguments and no others.
fn is_plain(request: &[&[u8]], name: &[u8], arguments: usize) -> bool {
    request.len() == arguments && request[0].eq_ignore_ascii_case(name)
}

const OUT_OF_MEMORY: &str = "OOM command not allowed when used memory > 'maxmemory'.";
const MAY_BE_DONE: &str = "a batch of SETs failed, of which this one may have been done";

const NO_ROOM: &str = "OOM requests of other clients have all of the gateway's memory for requests";

const HELD: &str = "ERR clients have not taken too many long answers: nothing was done, try again";

fn unknown(request: &[&[u8]]) -> String {
    let (mut arguments, mut left) = (String::new(), 128);
    for argument in &request[1..] {
        if left == 0 {
            break;
        }
        let argument = &argument[..argument.len().min(left)];
        let argument = argument.split(|byte| *byte == 0).next().unwrap_or_default();
        left = left.saturating_sub(argument.len() + "'' ".len());
        arguments += &format!("'{}' ", options::shown(argument));
    }
    let name = options::shown_of(request[0], 128);
    format!("ERR unknown command '{name}', with args beginning with: {arguments}")
}

/// Executes a command that does nothing but read and change items, and answers it.
async fn execute_data(
    (cx, client): (&Context<'_>, &Client),
    store: Store<'_>,
    command: &'static Command,
    request: Request<'_>,
    reply: &mut Reply<'_>,
) {
    let began = Instant::now();
    let start = reply.bytes.len();
    let store = store.answers(is_held(command, request));
    let done = match command.family {
        _ if is_refused(cx, command, request) => Err(Failure::Held),
        Family::Bits => bits::execute(cx, store, command.name, request, reply).await,
        Family::Expiry => expiry::execute(store, command.name, request, reply).await,
        Family::Keys => keys::execute(cx, store, command.name, request, reply).await,
        Family::Numbers => numbers::execute(store, command.name, request, reply).await,
        Family::Strings => strings::execute(cx, store, command.name, request, reply).await,
        _ => unreachable!("a command of another family says something of more than items"),
    };
    let took = began.elapsed();
    cx.figures().called(command.name, 1, took.as_nanos() as u64);
    cx.shared.slowlog.note(client, request, took);
    if done.is_err() {
        // An answer that was begun is none.
        reply.bytes.truncate(start);
    }
    tell(cx, done, reply);
}

/// Executes a command about the table or the gateway.
async fn execute_other(
    cx: &Context<'_>,
    store: Store<'_>,
    command: &'static Command,
    request: Request<'_>,
    reply: &mut Reply<'_>,
) -> Result<(), Failure> {
    match command.family {
        _ if is_refused(cx, command, request) => Err(Failure::Held),
        Family::Scan => scan::execute(cx, store, command.name, request, reply).await,
        Family::Server => server::execute(cx, store, command, request, reply).await,
        _ => unreachable!("the caller executes commands of other families"),
    }
}

/// Answers a failure.
fn tell(cx: &Context<'_>, done: Result<(), Failure>, reply: &mut Reply<'_>) {
    let Err(failure) = done else { return };
    add(&cx.figures().counters.errors, 1);
    match failure {
        Failure::Said(said) => reply.error(&said),
        Failure::Busy => {
            reply.error("ERR others kept changing the value, nothing was done: try again");
        }
        Failure::Held => reply.error(HELD),
        Failure::NoRoom => reply.error(NO_ROOM),
        Failure::Store(error) => match error.engine() {
            Some(EngineError::OutOfMemory { .. }) => reply.error(OUT_OF_MEMORY),
            Some(EngineError::ValueTooLong { max, .. }) => reply.error(&format!(
                "ERR string exceeds maximum allowed size ({max} bytes in this table)"
            )),
            _ => reply.error(&format!("ERR {}", Failure::text(&error))),
        },
    }
}
