//! One client's connection: bytes in, requests, bytes out.

use std::io;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use crate::clients::Client;
use crate::context::Context;
use crate::copies::{Copies, Share};
use crate::failure::Failure;
use crate::figures::add;
use crate::incoming::Incoming;
use crate::input::{Came, Input};
use crate::limits::{
    GUESS_PAUSE, READS_A_TURN, REQUEST_BYTES_MAX, REQUEST_FREE_BYTES, REQUEST_TIME, REST,
    ROOM_TIME, ROUNDS_A_TURN,
};
use crate::output::Output;
use crate::stream::Stream;
use crate::{memcached, resp};

/// The protocol of a connection, and what the client has said so far.
#[derive(Debug)]
pub(crate) enum Session {
    Resp(Box<resp::Session>),
    Memcached(Box<memcached::Session>),
}

impl Session {
    /// Whether the answer to a request that is executed goes on.
    fn is_answering(&self) -> bool {
        match self {
            Self::Resp(session) => session.is_answering(),
            Self::Memcached(session) => session.is_answering(),
        }
    }
}

pub(crate) struct Connection<'t> {
    pub stream: Stream,
    pub client: Arc<Client>,
    session: Session,
    input: Input,
    output: Output<'t>,
    needed: usize,
    /// A value of which a part is in the table.
    incoming: Option<Incoming<'t>>,
    /// The next request comes slowly.
    is_slow: bool,
    /// Memory for a long request, of which a part has come.
    asked: Share,
    /// When it began to take that memory.
    asked_at: Option<Instant>,
    /// Since when it has found no room for more.
    waits_since: Option<Instant>,
    /// It is not served before this moment.
    rests_until: Option<Instant>,
    /// The client has sent its last byte, or shall send no more.
    ends: bool,
}

/// What a connection waits for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Waits {
    /// Its client.
    ForInput,
    /// Its client to take answers.
    ForOutput,
    /// Either of these.
    ForEither,
    /// Time to pass.
    ForTime,
    /// Nothing: there is more to do.
    No,
    Ended,
}

impl Session {
    /// Answers a failure.
    fn tell(&self, cx: &Context<'_>, failure: Failure, output: &mut Vec<u8>) {
        match self {
            Self::Resp(session) => session.tell(cx, failure, output),
            Self::Memcached(_) => memcached::tell(cx, failure, output),
        }
    }
}

impl<'t> Connection<'t> {
    pub fn new(stream: Stream, client: Arc<Client>, session: Session, copies: &Copies) -> Self {
        let (input, output) = (Input::default(), Output::new(copies));
        Self {
            stream,
            client,
            session,
            input,
            output,
            needed: 0,
            incoming: None,
            is_slow: false,
            asked: Share::of(&copies.asked),
            asked_at: None,
            waits_since: None,
            rests_until: None,
            ends: false,
        }
    }

    /// The moment at which it is to have a turn, whatever its client does.
    pub fn is_due(&self) -> Option<Instant> {
        let incoming = self.incoming.as_ref().map(Incoming::until);
        [incoming, self.rests_until, self.gives_way_at()].into_iter().flatten().min()
    }

    /// When it gives its memory for a request to those that wait for it.
    fn gives_way_at(&self) -> Option<Instant> {
        let began = self.asked_at.filter(|_| self.asked.bytes() > 0)?;
        Some(began + REQUEST_TIME + Duration::from_secs((self.asked.bytes() >> 20) as u64))
    }

    /// Bytes of the keys of a request that are not answered yet.
    fn listed(&self) -> usize {
        match &self.session {
            Session::Resp(session) => session.listed(),
            Session::Memcached(session) => session.listed(),
        }
    }

    /// Bytes of memory for what the client has sent, as far as that is known: of the next request,
    /// and of one that is executed in part. A value that goes into the table has it too, as it may
    /// have to come back.
    fn wanted(&self) -> usize {
        let coming = self.incoming.as_ref().map_or(0, Incoming::needed);
        self.needed.max(coming).max(self.input.len()) + self.listed()
    }

    /// Whether all of that has memory. Otherwise the connection is not read from.
    fn has_room(&mut self, cx: &Context<'t>) -> bool {
        let wanted = self.wanted();
        if wanted <= REQUEST_FREE_BYTES {
            return true;
        }
        let has_room = cx.shared.copies.ask(&mut self.asked, wanted);
        if has_room {
            self.waits_since = None;
            self.asked_at.get_or_insert_with(Instant::now);
        }
        has_room
    }

    /// Gives back memory that is not wanted any more. What is left of a list of keys is here, so it
    /// counts whether or not there is room.
    fn give_back(&mut self) {
        let wanted = self.wanted();
        if wanted <= REQUEST_FREE_BYTES {
            self.asked.set(0);
            (self.asked_at, self.waits_since) = (None, None);
            return;
        }
        self.asked.set(self.asked.bytes().max(self.listed()).min(wanted));
        self.asked_at.get_or_insert_with(Instant::now);
    }

    /// Waits for room for the next request, or gives up.
    fn wait_for_room(&mut self, cx: &Context<'t>) -> Waits {
        if self.waits_since.get_or_insert_with(Instant::now).elapsed() >= ROOM_TIME {
            self.session.tell(cx, Failure::NoRoom, &mut self.output.bytes);
            self.ends = true;
            return Waits::No;
        }
        self.rests_until = Some(Instant::now() + REST);
        Waits::ForTime
    }

    /// Reads, executes and answers what has come, or a part of it. An error ends the connection.
    pub async fn turn(&mut self, cx: &Context<'t>) -> Waits {
        let waits = self.try_turn(cx).await.unwrap_or(Waits::Ended);
        if self.output.is_empty() && self.output.bytes.capacity() > 0 {
            cx.keep_output(std::mem::take(&mut self.output.bytes));
        }
        self.input.shrink(cx.pool());
        self.give_back();
        waits
    }

    /// Gives the client the answers that it takes now. Returns whether it has all.
    async fn flush(&mut self, cx: &Context<'t>) -> io::Result<bool> {
        let sent = self.output.sent;
        let has_gone = self.output.flush(&mut self.stream, cx).await?;
        if self.output.sent > sent {
            self.client.took();
        }
        Ok(has_gone)
    }

    async fn try_turn(&mut self, cx: &Context<'t>) -> io::Result<Waits> {
        if let Some(waits) = self.on_time(cx).await? {
            return Ok(waits);
        }
        let mut has_gone = self.flush(cx).await?;
        let (mut reads, mut rounds) = (0, 0);
        while !self.ends {
            if self.client.is_killed() {
                return Ok(Waits::Ended);
            }
            if !has_gone && !self.output.may_grow() {
                return Ok(Waits::ForOutput);
            }
            if rounds == ROUNDS_A_TURN {
                return Ok(Waits::No);
            }
            if self.go_on(cx).await? {
                rounds += 1;
                has_gone = self.flush(cx).await?;
                continue;
            }
            let is_answering = self.session.is_answering();
            if !is_answering && (self.input.len() == 0 || self.input.len() < self.needed) {
                let is_done = self.input.len() == 0 && reads > 0 && self.incoming.is_none();
                if is_done || reads == READS_A_TURN {
                    // All is done, or a long request takes long: the others' turn. If more has
                    // come, the poll set says so.
                    let is_known = !self.stream.keeps_input() && !cx.is_stopping();
                    return Ok(if is_known { self.waits(has_gone) } else { Waits::No });
                }
                if !self.has_room(cx) {
                    return Ok(self.wait_for_room(cx));
                }
                reads += 1;
                let most = cx.shared.copies.read_bytes();
                match self.input.read(&mut self.stream, cx.pool(), self.needed, most)? {
                    Came::Bytes(count) => add(&cx.figures().counters.bytes_in, count as u64),
                    Came::Nothing => return Ok(self.waits(has_gone)),
                    Came::End => {
                        self.ends = true;
                        break;
                    }
                }
                if self.input.len() < self.needed || self.incoming.is_some() {
                    continue;
                }
            }
            rounds += 1;
            if self.output.bytes.capacity() == 0 {
                self.output.bytes = cx.take_output();
            }
            let last_s = self.client.since.elapsed().as_secs();
            self.client.last_s.store(last_s, Ordering::Relaxed);
            if self.serve(cx).await {
                self.flush(cx).await?;
                return Ok(Waits::ForTime);
            }
            has_gone = self.flush(cx).await?;
        }
        Ok(if has_gone { Waits::Ended } else { Waits::ForOutput })
    }

    /// Does what is due by now. Returns what the connection waits for, if it has no turn.
    async fn on_time(&mut self, cx: &Context<'t>) -> io::Result<Option<Waits>> {
        let is_late = |until: Option<Instant>| until.is_some_and(|until| until <= Instant::now());
        if is_late(self.incoming.as_ref().map(Incoming::until)) {
            self.take_back(cx).await?;
        }
        if is_late(self.gives_way_at()) {
            if cx.shared.copies.is_wanted() {
                return Ok(Some(Waits::Ended));
            }
            self.asked_at = Some(Instant::now());
        }
        if self.rests_until.is_some_and(|until| until > Instant::now()) {
            return Ok(Some(Waits::ForTime));
        }
        self.rests_until = None;
        Ok(None)
    }

    /// Executes requests. Returns whether the client is not served for a moment then.
    async fn serve(&mut self, cx: &Context<'t>) -> bool {
        let (bytes, output) = (self.input.bytes(), &mut self.output);
        let progress = match &mut self.session {
            Session::Resp(session) => session.serve(cx, &self.client, bytes, output).await,
            Session::Memcached(session) => session.serve(cx, &self.client, bytes, output).await,
        };
        self.input.consume(progress.consumed);
        (self.needed, self.ends) = (progress.needed, progress.ends);
        self.is_slow &= progress.consumed == 0;
        if progress.pauses {
            self.rests_until = Some(Instant::now() + GUESS_PAUSE);
            return true;
        }
        self.give_back();
        if let Some(set) = progress.long.filter(|_| !self.is_slow && self.has_room(cx)) {
            self.incoming = Incoming::begin(cx, self.input.bytes(), set).await;
            if self.incoming.is_some() {
                self.input.consume(set.start);
            }
        }
        if self.needed > REQUEST_BYTES_MAX {
            self.ends = true;
        }
        false
    }

    /// Goes on with a long value. Returns whether it has ended.
    async fn go_on(&mut self, cx: &Context<'t>) -> io::Result<bool> {
        let Some(incoming) = &mut self.incoming else { return Ok(false) };
        let taken = incoming.fill(self.input.bytes())?;
        self.input.consume(taken);
        match incoming.is_right(self.input.bytes()) {
            Some(true) => self.commit(cx).await,
            Some(false) => self.take_back(cx).await?,
            None => {
                self.needed = self.input.len() + 1;
                return Ok(false);
            }
        }
        Ok(true)
    }

    /// Makes a value the key's that has come whole.
    async fn commit(&mut self, cx: &Context<'t>) {
        let Some(incoming) = self.incoming.take() else { return };
        self.input.consume(2);
        let began = Instant::now();
        let (answer, done) = incoming.commit().await;
        cx.figures().called("set", 1, began.elapsed().as_nanos() as u64);
        add(&cx.figures().counters.sets, 1);
        self.client.said().command = "set";
        let output = &mut self.output.bytes;
        let start = output.len();
        match done {
            Ok(version) => {
                cx.store.uses().stored(version);
                output.extend_from_slice(answer.unwrap_or_default().as_bytes());
            }
            Err(error) => self.session.tell(cx, error.into(), output),
        }
        if answer.is_none() {
            output.truncate(start);
        }
        self.needed = 0;
    }

    /// The next request goes on like any other.
    async fn take_back(&mut self, cx: &Context<'t>) -> io::Result<()> {
        let Some(incoming) = self.incoming.take() else { return Ok(()) };
        let (request, needed) = incoming.take_back().await?;
        self.input.put_back(request, cx.pool());
        (self.needed, self.is_slow) = (needed, true);
        Ok(())
    }

    /// What the client is waited for: more requests, and perhaps that it takes answers.
    fn waits(&self, has_gone: bool) -> Waits {
        if has_gone { Waits::ForInput } else { Waits::ForEither }
    }

    /// Says goodbye.
    pub fn end(mut self) {
        self.stream.end();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::context::Shared;
    use crate::limits::REQUESTS_BYTES_MAX;
    use crate::load::Load;
    use crate::store::Store;

    /// A client whose request has had memory for longer than one waits for it was refused more of
    /// it at once.
    #[test]
    fn a_connection_waits_for_room_from_the_moment_at_which_it_finds_none() {
        let shared = Shared::for_test();
        let table = shared.cluster.table("default").unwrap();
        let load = Load::new(&shared.work, &shared.copies);
        let cx = Context::new(&shared, Store::new(&table, &shared.uses, &load), 0);
        let (stream, _client) = std::os::unix::net::UnixStream::pair().unwrap();
        let client = shared.clients.enter(String::new(), String::new(), 0, false).unwrap();
        let session = Session::Resp(Box::new(resp::Session::new(false)));
        let mut connection = Connection::new(Stream::Unix(stream), client, session, &shared.copies);
        let mut other = Share::of(&shared.copies.asked);
        let long_ago = || Instant::now().checked_sub(ROOM_TIME).expect("the system is up");

        connection.needed = REQUESTS_BYTES_MAX / 2;
        assert!(connection.has_room(&cx));
        connection.asked_at = Some(long_ago());
        assert!(other.grow(REQUESTS_BYTES_MAX / 2, REQUESTS_BYTES_MAX));
        connection.needed += 1;
        assert!(!connection.has_room(&cx));
        assert_eq!(connection.wait_for_room(&cx), Waits::ForTime);
        connection.waits_since = Some(long_ago());
        assert_eq!(connection.wait_for_room(&cx), Waits::No);
        assert!(connection.ends);
    }
}
