//! What a server does about one request.

use loch_fabric::{Buf, Fabric, Messages};

use super::change::{Prepared, Staged};
use super::server::{Server, ServerError, Waiting};
use crate::log::{Op, Storage};
use crate::operation::{Operation, Outcome};
use crate::requests::{Answer, Failure, Incoming, Request, Ticket};

impl<F: Fabric + Messages, S: Storage> Server<F, S> {
    pub(super) fn dispatch(&mut self, incoming: Incoming, message: Buf) -> Result<(), ServerError> {
        match incoming {
            Incoming::Execute(ticket) => return self.execute(ticket, message),
            Incoming::Answer(ticket, short) => {
                self.counts.repeated += 1;
                let mut reply = self.spare.pop().unwrap_or_default();
                self.inbox.repeat(&ticket, short, &mut reply);
                self.post(&ticket, reply);
            }
            Incoming::Hello(_) => (),
        }
        self.give_back(message);
        Ok(())
    }

    /// Executes the request that had to wait, if it need not wait any more.
    pub(super) fn resume(&mut self) -> Result<(), ServerError> {
        let may = self.waiting.is_empty()
            && self.log.as_ref().is_none_or(|log| log.has_room(self.fabric.now_us()));
        match self.deferred.take_if(|_| may) {
            Some((ticket, message)) => self.execute(ticket, message),
            None => Ok(()),
        }
    }

    fn execute(&mut self, ticket: Ticket, message: Buf) -> Result<(), ServerError> {
        let Request { key, operation } = ticket.request(&message);
        if operation.is_read() {
            self.answer_read(&ticket, key, operation);
            self.give_back(message);
            return Ok(());
        }
        let mut prepared = self.store.prepare(&self.fabric, key, &operation);
        if matches!(prepared, Ok(Prepared::NoVersions)) {
            self.lease()?;
            prepared = self.store.prepare(&self.fabric, key, &operation);
        }
        self.note_moves()?;
        match prepared {
            Ok(Prepared::Later | Prepared::NoVersions) => {
                self.deferred = Some((ticket, message));
                return Ok(());
            }
            Ok(Prepared::Staged(staged)) => self.stage(ticket, key, &operation, staged)?,
            Ok(Prepared::Answer(outcome)) => self.answer(&ticket, &Answer::Done(outcome)),
            Err(error) => self.answer(&ticket, &Answer::Failed(Failure::from(&error))),
        }
        self.counts.executed += 1;
        self.give_back(message);
        Ok(())
    }

    /// Logs a change and, unless it has to be durable first, shows and acknowledges it.
    fn stage(
        &mut self,
        ticket: Ticket,
        key: &[u8],
        operation: &Operation<'_>,
        staged: Staged,
    ) -> Result<(), ServerError> {
        let Some(log) = &mut self.log else {
            return self.acknowledge(&ticket, staged);
        };
        let op = Op::Change { key, change: staged.change(operation) };
        match log.append(op, self.fabric.now_us()) {
            Err(error) => {
                self.store.abort(staged);
                Err(error.into())
            }
            Ok(lsn) if log.policy().sync => {
                self.waiting.push_back(Waiting { lsn, staged, ticket });
                Ok(())
            }
            Ok(_) => self.acknowledge(&ticket, staged),
        }
    }

    pub(super) fn acknowledge(
        &mut self,
        ticket: &Ticket,
        staged: Staged,
    ) -> Result<(), ServerError> {
        let outcome = staged.outcome;
        self.store.commit(&self.fabric, staged)?;
        self.answer(ticket, &Answer::Done(outcome));
        Ok(())
    }

    fn answer(&mut self, ticket: &Ticket, answer: &Answer<'_>) {
        let mut reply = self.spare.pop().unwrap_or_default();
        self.inbox.complete(ticket, answer, &mut reply);
        self.post(ticket, reply);
    }

    /// Answers a GET or CONTAINS that came by message (pilaf §5.1, "Pilaf-VO").
    fn answer_read(&mut self, ticket: &Ticket, key: &[u8], operation: Operation<'_>) {
        self.counts.executed += 1;
        let mut reply = self.spare.pop().unwrap_or_default();
        let found = self.store.read(&self.fabric, key);
        let contains = operation == Operation::Contains;
        let answer = match found {
            Ok(found) if contains => Answer::Done(Outcome::Contained(found.is_some())),
            Ok(found) => Answer::Done(found.unwrap_or(Outcome::Absent)),
            Err(error) => Answer::Failed(Failure::from(&error)),
        };
        self.inbox.complete(ticket, &answer, &mut reply);
        if reply.len() > self.fabric.message_bytes_max() {
            self.inbox.complete(ticket, &Answer::Failed(Failure::Refused), &mut reply);
        }
        self.post(ticket, reply);
    }

    /// Leases versions: in memory, in the log, durably.
    pub(super) fn lease(&mut self) -> Result<(), ServerError> {
        let end = self.store.lease_versions(&self.fabric)?;
        self.leased = end;
        if let Some(log) = &mut self.log {
            let now_us = self.fabric.now_us();
            log.append(Op::Lease { end }, now_us)?;
            log.sync(now_us)?;
        }
        Ok(())
    }
}
