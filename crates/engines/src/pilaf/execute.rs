//! How a server executes the operations of a request.

use loch_fabric::{Buf, Fabric, Messages};

use super::change::{Prepared, Staged};
use super::worker::{Open, Place, Waiting, Worker};
use crate::error::EngineError;
use crate::log::{Op, Storage};
use crate::operation::{Operation, Outcome};
use crate::requests::packet::Cursor;
use crate::requests::{Failure, Ticket};
use crate::serve::WorkerError;

/// Whether an operation has begun.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Begun {
    Yes,
    /// Prepared changes have to be committed first.
    Later,
}

impl<F: Fabric + Messages, S: Storage> Worker<F, S> {
    /// Goes on with the request that had to wait, if it need not wait any more.
    pub(super) fn resume(&mut self) -> Result<(), WorkerError> {
        let may = self.waiting.is_empty()
            && self.log.as_ref().is_none_or(|log| log.has_room(self.requests.fabric().now_us()));
        match self.deferred.take_if(|_| may) {
            Some(request) => self.go_on(request),
            None => Ok(()),
        }
    }

    /// Executes a request. One that tells no number of operations gets no reply.
    pub(super) fn execute(&mut self, ticket: Ticket, message: Buf) -> Result<(), WorkerError> {
        let packet = ticket.packet(&message);
        let Ok(cursor) = Cursor::new(packet) else {
            self.requests.give_back(message);
            return Ok(());
        };
        let request = self.idle.pop().unwrap_or(self.open.len());
        if request == self.open.len() {
            self.open.push(Open::default());
        }
        let (count, room, memory) = (cursor.left(), self.requests.room(), self.requests.buf());
        let open = &mut self.open[request];
        open.results.begin(count, room, memory);
        open.operations.clear();
        open.operations.extend(cursor.all(packet).map_while(Result::ok));
        let readable = open.operations.len();
        (open.ticket, open.message, open.next) = (Some(ticket), message, 0);
        for number in readable..count {
            self.answer(Place { request, number }, Err(Failure::Malformed));
        }
        if readable > 0 { self.go_on(request) } else { Ok(()) }
    }

    /// Begins the operations of a request, as far as they need not wait.
    fn go_on(&mut self, request: usize) -> Result<(), WorkerError> {
        let open = &mut self.open[request];
        let ticket = open.ticket.expect("it is open");
        let (message, operations) =
            (std::mem::take(&mut open.message), std::mem::take(&mut open.operations));
        let (packet, first) = (ticket.packet(&message), open.next);
        for (number, packed) in operations.iter().enumerate().skip(first) {
            let (key, operation) = (packed.key(packet), packed.operation(packet));
            let has_room = number == first || self.has_room();
            if !has_room || self.begin(Place { request, number }, key, operation)? == Begun::Later {
                let open = &mut self.open[request];
                (open.message, open.operations, open.next) = (message, operations, number);
                self.deferred = Some(request);
                return Ok(());
            }
        }
        self.requests.give_back(message);
        self.open[request].operations = operations;
        Ok(())
    }

    fn begin(
        &mut self,
        place: Place,
        key: &[u8],
        operation: Operation<'_>,
    ) -> Result<Begun, WorkerError> {
        if operation.is_read() {
            self.answer_read(place, key, operation);
            return Ok(Begun::Yes);
        }
        let mut prepared = self.store.prepare(self.requests.fabric(), key, &operation);
        if matches!(prepared, Ok(Prepared::NoVersions)) {
            self.lease()?;
            prepared = self.store.prepare(self.requests.fabric(), key, &operation);
        }
        self.note_moves()?;
        match prepared {
            Ok(Prepared::Later | Prepared::NoVersions) => return Ok(Begun::Later),
            Ok(Prepared::Staged(staged)) => self.stage(place, key, &operation, staged)?,
            Ok(Prepared::Answer(outcome)) => self.answer(place, Ok(outcome)),
            Err(error) => self.answer(place, Err(Failure::from(&error))),
        }
        self.counts.executed += 1;
        Ok(Begun::Yes)
    }

    /// Logs a change. Unless the change has to be durable first, also shows and acknowledges it.
    fn stage(
        &mut self,
        place: Place,
        key: &[u8],
        operation: &Operation<'_>,
        staged: Staged,
    ) -> Result<(), WorkerError> {
        let Some(log) = &mut self.log else {
            return self.acknowledge(place, staged);
        };
        let op = Op::Change { key, change: staged.change(operation) };
        match log.append(op, self.requests.fabric().now_us()) {
            Err(error) => {
                self.store.abort(staged);
                Err(error.into())
            }
            Ok(lsn) if log.policy().sync => {
                self.waiting.push_back(Waiting { lsn, staged, place });
                Ok(())
            }
            Ok(_) => self.acknowledge(place, staged),
        }
    }

    pub(super) fn acknowledge(&mut self, place: Place, staged: Staged) -> Result<(), WorkerError> {
        let outcome = staged.outcome;
        self.store.commit(self.requests.fabric(), staged)?;
        self.answer(place, Ok(outcome));
        Ok(())
    }

    /// Answers a GET or CONTAINS that came by message (pilaf §5.1, "Pilaf-VO").
    fn answer_read(&mut self, place: Place, key: &[u8], operation: Operation<'_>) {
        self.counts.executed += 1;
        // The store's value is borrowed until the outcome is packed.
        let Self { store, requests, open, .. } = self;
        let outcome = match operation {
            Operation::Get => {
                store.read(requests.fabric(), key).map(|found| found.unwrap_or(Outcome::Absent))
            }
            Operation::Contains => {
                store.read(requests.fabric(), key).map(|found| Outcome::Contained(found.is_some()))
            }
            _ => Err(EngineError::Unsupported),
        };
        let answered = outcome.map_err(|error| Failure::from(&error));
        open[place.request].results.take(place.number, &answered);
        self.reply_if_whole(place.request);
    }

    fn answer(&mut self, place: Place, answered: Result<Outcome<'static>, Failure>) {
        self.open[place.request].results.take(place.number, &answered);
        self.reply_if_whole(place.request);
    }

    fn reply_if_whole(&mut self, request: usize) {
        let open = &mut self.open[request];
        if open.results.left() == 0 {
            let ticket = open.ticket.take().expect("it is open");
            let outcomes = open.results.packet();
            self.requests.reply(&ticket, outcomes);
            self.idle.push(request);
        }
    }

    /// Leases versions: in memory and, durably, in the log.
    pub(super) fn lease(&mut self) -> Result<(), WorkerError> {
        let end = self.store.lease_versions(self.requests.fabric())?;
        self.leased = end;
        if let Some(log) = &mut self.log {
            let now_us = self.requests.fabric().now_us();
            log.append(Op::Lease { end }, now_us)?;
            log.sync(now_us)?;
        }
        Ok(())
    }
}
