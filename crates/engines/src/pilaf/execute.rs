//! How a server executes one request.

use loch_fabric::{Buf, Fabric, Messages};

use super::change::{Prepared, Staged};
use super::worker::{Waiting, Worker};
use crate::log::{Op, Storage};
use crate::operation::{Operation, Outcome};
use crate::requests::{Request, Ticket};
use crate::serve::WorkerError;

impl<F: Fabric + Messages, S: Storage> Worker<F, S> {
    /// Executes the request that had to wait, if it need not wait any more.
    pub(super) fn resume(&mut self) -> Result<(), WorkerError> {
        let may = self.waiting.is_empty()
            && self.log.as_ref().is_none_or(|log| log.has_room(self.requests.fabric().now_us()));
        match self.deferred.take_if(|_| may) {
            Some((ticket, message)) => self.execute(ticket, message),
            None => Ok(()),
        }
    }

    pub(super) fn execute(&mut self, ticket: Ticket, message: Buf) -> Result<(), WorkerError> {
        let Request { key, operation } = ticket.request(&message);
        if operation.is_read() {
            self.answer_read(&ticket, key, operation);
            self.requests.give_back(message);
            return Ok(());
        }
        let mut prepared = self.store.prepare(self.requests.fabric(), key, &operation);
        if matches!(prepared, Ok(Prepared::NoVersions)) {
            self.lease()?;
            prepared = self.store.prepare(self.requests.fabric(), key, &operation);
        }
        self.note_moves()?;
        match prepared {
            Ok(Prepared::Later | Prepared::NoVersions) => {
                self.deferred = Some((ticket, message));
                return Ok(());
            }
            Ok(Prepared::Staged(staged)) => self.stage(ticket, key, &operation, staged)?,
            Ok(Prepared::Answer(outcome)) => self.requests.answer(&ticket, Ok(outcome)),
            Err(error) => self.requests.answer(&ticket, Err(error)),
        }
        self.counts.executed += 1;
        self.requests.give_back(message);
        Ok(())
    }

    /// Logs a change. Unless the change has to be durable first, also shows and acknowledges it.
    fn stage(
        &mut self,
        ticket: Ticket,
        key: &[u8],
        operation: &Operation<'_>,
        staged: Staged,
    ) -> Result<(), WorkerError> {
        let Some(log) = &mut self.log else {
            return self.acknowledge(&ticket, staged);
        };
        let op = Op::Change { key, change: staged.change(operation) };
        match log.append(op, self.requests.fabric().now_us()) {
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
    ) -> Result<(), WorkerError> {
        let outcome = staged.outcome;
        self.store.commit(self.requests.fabric(), staged)?;
        self.requests.answer(ticket, Ok(outcome));
        Ok(())
    }

    /// Answers a GET or CONTAINS that came by message (pilaf §5.1, "Pilaf-VO").
    fn answer_read(&mut self, ticket: &Ticket, key: &[u8], operation: Operation<'_>) {
        self.counts.executed += 1;
        let found = self.store.read(self.requests.fabric(), key);
        let outcome = found.map(|found| match operation {
            Operation::Contains => Outcome::Contained(found.is_some()),
            _ => found.unwrap_or(Outcome::Absent),
        });
        self.requests.answer(ticket, outcome);
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
