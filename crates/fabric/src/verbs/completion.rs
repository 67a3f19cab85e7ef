//! Completions: they bring results, break connections, and settle verbs.
//!
//! A reliable queue pair ends its requests in order. So a completion that says *done* says it of
//! all requests before it. A completion that says *failed* says it of its own request only; earlier
//! requests without a completion of their own count as unknown, which is never wrong.

use crate::limits::UNRELIABLE_LINGER_US;
use crate::{FabricError, RegionId};

use super::engine::{Engine, parts_of};
use super::flights::{Flight, Then};
use super::setup::Transport;
use super::sys::{Completion, Status};

impl Engine {
    /// Takes the completions that have arrived, and posts the verbs that waited for them. `now_us`
    /// is any clock that does not go back.
    pub fn progress(&mut self, now_us: impl Fn() -> u64) {
        if self.in_flight == 0 || self.is_dead {
            return;
        }
        loop {
            let count = match self.cq.poll(&mut self.completions[..]) {
                Ok(count) => count,
                Err(error) => return self.die(&error),
            };
            for index in 0..count {
                let completion = self.completions[index];
                self.complete(&completion, &now_us);
            }
            if count < self.completions.len() {
                break;
            }
        }
        self.pump_waiting();
    }

    fn complete(&mut self, completion: &Completion, now_us: &impl Fn() -> u64) {
        let (index, generation, sequence) = parts_of(completion.id());
        let status = completion.status();
        loop {
            let link = self.links[usize::from(index)].as_mut();
            let link = link.expect("a link stays until all its completions have come");
            assert!(link.generation == generation, "a completion of a link that is gone");
            let (flight, is_it) = link.flights.pop_to(sequence);
            self.in_flight -= 1;
            // Requests before a failure: see the module's header.
            let own = if is_it || status == Status::Done { status } else { Status::Flushed };
            self.land(index, &flight, own, now_us);
            if is_it {
                break;
            }
        }
        let link = self.links[usize::from(index)].as_ref().expect("see above");
        if status != Status::Done && link.works {
            tracing::debug!(region = link.region.0, ?status, "a connection broke");
            self.break_link(index);
        } else {
            self.bury(index);
        }
    }

    /// Ends one work request.
    fn land(&mut self, index: u16, flight: &Flight, status: Status, now_us: &impl Fn() -> u64) {
        let link = self.links[usize::from(index)].as_mut().expect("the flight was its");
        let (transport, region, fenced) = (link.transport, link.region, link.fenced);
        if flight.then == Then::Flushed {
            link.flushing = false;
        }
        let result = match status {
            Status::Done => Ok(()),
            Status::Denied => Err(FabricError::AccessDenied { at: flight.at }),
            Status::Flushed | Status::Broken(_) => {
                Err(FabricError::lost(flight.at, flight.mutates))
            }
        };
        if flight.mutates && !fenced {
            self.note_outcome(transport, region, flight.number, status, now_us);
        }
        if let Some(op) = flight.op {
            if status == Status::Done && self.ops.is_wanted(op) {
                self.bring(flight);
            }
            self.ops.end(op, result);
        }
        if let Some(slot) = flight.slot {
            self.pool.give(slot);
        }
    }

    /// Hands the bytes that a request has read to its operation.
    fn bring(&mut self, flight: &Flight) {
        let (Some(op), Some(slot)) = (flight.op, flight.slot) else { return };
        let (op, len) = (self.ops.get(op), flight.len as usize);
        match flight.then {
            Then::Words(from) => {
                let from = usize::from(from);
                assert!(from + len <= size_of_val(&op.words), "more words than were asked for");
                // SAFETY: in bounds by the assertion.
                let into = unsafe { op.words.as_mut_ptr().cast::<u8>().add(from) };
                // SAFETY: the request is over; `into` has room for `len` bytes, of words of which
                // any bytes are a value.
                unsafe { self.pool.copy_out(slot, len, into) };
            }
            Then::Append => {
                let pool = &self.pool;
                // SAFETY: the request is over, and all `len` bytes are copied to the room given.
                unsafe { op.buf.append_with(len, |into| pool.copy_out(slot, len, into)) };
            }
            Then::At(from) => {
                let into = op.buf.part(from, len).as_mut_ptr();
                // SAFETY: the request is over; `into` is `len` bytes of the buffer.
                unsafe { self.pool.copy_out(slot, len, into) };
            }
            Then::Nothing | Then::Flushed | Then::Drained => (),
        }
    }

    /// Remembers an uncertain outcome of a verb that changes memory.
    fn note_outcome(
        &mut self,
        transport: Transport,
        region: RegionId,
        number: u64,
        status: Status,
        now_us: &impl Fn() -> u64,
    ) {
        let way = self.way_mut(transport, region).expect("links belong to ways");
        match (status, transport) {
            (Status::Done, Transport::Unreliable) => {
                let oldest = way.lingering.map_or(number, |(oldest, _)| oldest.min(number));
                way.lingering = Some((oldest, now_us() + UNRELIABLE_LINGER_US));
            }
            (Status::Flushed | Status::Broken(_), _) => {
                way.unknown = Some(way.unknown.map_or(number, |first| first.min(number)));
            }
            // It was executed, or the peer's card has refused it.
            _ => (),
        }
    }

    /// Whether every verb before `mark` that changes memory is over for certain. If only a
    /// completion is missing to know that, requests one.
    pub fn is_settled(&mut self, mark: u64, now_us: impl Fn() -> u64) -> bool {
        if self.oldest_unsettled(&now_us).is_none_or(|oldest| oldest >= mark) {
            return true;
        }
        self.progress(&now_us);
        for index in 0..self.links.len() {
            self.flush(index as u16);
        }
        self.oldest_unsettled(&now_us).is_none_or(|oldest| oldest >= mark)
    }

    fn oldest_unsettled(&self, now_us: &impl Fn() -> u64) -> Option<u64> {
        let links = self.links.iter().flatten().filter(|link| !link.fenced);
        let under_way = links.filter_map(|link| link.oldest_unsettled());
        let unknown = self.ways().filter_map(|(_, way)| way.unknown);
        let lingering = self.ways().filter_map(|(_, way)| way.lingering);
        let lingering = lingering.filter(|(_, until)| now_us() < *until).map(|(oldest, _)| oldest);
        under_way.chain(unknown).chain(lingering).min()
    }

    /// The completion queue cannot be polled: the device is gone. All verbs end as unknown, and no
    /// slot is used again, because the card may still write it.
    #[cold]
    fn die(&mut self, error: &std::io::Error) {
        tracing::error!(%error, "cannot poll a completion queue: the device is lost");
        for index in 0..self.links.len() {
            self.break_link(index as u16);
        }
        self.is_dead = true;
        for index in 0..self.links.len() {
            while let Some(link) = &mut self.links[index] {
                let (transport, region, fenced) = (link.transport, link.region, link.fenced);
                let Some(flight) = link.flights.pop_unposted() else { break };
                if let Some(op) = flight.op {
                    self.ops.end(op, Err(FabricError::lost(flight.at, flight.mutates)));
                }
                if flight.mutates && !fenced {
                    let status = Status::Flushed;
                    self.note_outcome(transport, region, flight.number, status, &|| 0);
                }
            }
        }
    }
}
