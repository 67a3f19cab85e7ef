//! A worker: executes requests by the client-driven protocol on its own node's memory.

use std::cell::RefCell;

use loch_fabric::{Buf, Fabric, FabricError};

use super::served::Served;
use crate::error::EngineError;
use crate::kv::Kv;
use crate::nessie;
use crate::nessie::hash::KeyHash;
use crate::operation::{Operation, Outcome, Value};
use crate::requests::bells::Rings;
use crate::requests::{
    Answer, Failure, Inbox, Incoming, Lanes, Request, Sessions, Ticket, Turns, WorkerId,
    send_reply, within,
};
use crate::spare::SpareBuffers;

/// A worker of a node: a nessie client of the node's keys, and the requests for it.
pub struct Worker<F: Fabric> {
    client: nessie::Client<F>,
    map: Served,
    inbox: RefCell<Inbox>,
    rings: Rings,
    /// Buffers for replies and for values, used again and again.
    spare: SpareBuffers,
}

/// The outcome of a request, with the bytes that it needs.
enum Executed {
    Found(Value),
    Other(Outcome<'static>),
    Failed(Failure),
}

/// After this many polls of a reply's WRITE its lane goes on to serve others: the reader's node may
/// be gone, which the fabric notices only after a while. The WRITE goes on by itself.
const REPLY_POLLS_MAX: u32 = 1000;

impl<F: Fabric> Worker<F> {
    /// The worker `id`, which starts now. `client` is a nessie client of the table at the worker's
    /// node, with a session of its own there; `sessions` knows the sessions of the clients.
    ///
    /// # Errors
    /// The fabric's, if the region of the worker's node is not mapped and writable.
    ///
    /// # Panics
    /// If the client is at another node, or of another table.
    pub fn open(
        client: nessie::Client<F>,
        map: Served,
        id: WorkerId,
        sessions: Sessions,
    ) -> Result<Self, FabricError> {
        let home = map.requests.base(id.node).region();
        assert_eq!(client.home(), home, "a worker serves its own node's memory");
        let inbox = RefCell::new(Inbox::open(client.fabric(), &map.requests, id, sessions)?);
        Ok(Self { client, map, inbox, rings: Rings::default(), spare: SpareBuffers::default() })
    }

    /// The nessie client, for its counters, and to detach it when the worker ends.
    pub fn client(&self) -> &nessie::Client<F> {
        &self.client
    }

    /// Wakes clients that sleep and were sent replies. Called after each turn.
    #[inline]
    pub fn after_turn(&self, was_busy: bool) {
        self.rings.after_turn(self.client.fabric(), was_busy);
    }

    /// Ends the worker and returns the client, which has to be detached.
    pub fn into_client(self) -> nessie::Client<F> {
        self.client
    }

    /// Serves requests in `width` lanes for as long as the result lives. If it is dropped, requests
    /// under way are given up in the middle, as when the worker dies.
    ///
    /// # Panics
    /// If `width` is 0.
    pub fn serve(&self, width: usize) -> impl Turns + '_ {
        let take = |message: &mut Buf| {
            let taken = self.inbox.borrow_mut().poll(self.client.fabric(), message)?;
            if taken.is_none() {
                // The last operation ended while the last reply was still on its way.
                self.client.rest()?;
            }
            Ok(taken)
        };
        Lanes::new(width, take, |incoming, message| self.handle(incoming, message))
    }

    async fn handle(&self, incoming: Incoming, message: Buf) -> Buf {
        let mut reply = self.spare.take();
        let ticket = match incoming {
            Incoming::Hello(_) => return message,
            Incoming::Answer(ticket, short) => {
                self.inbox.borrow().repeat(&ticket, short, &mut reply);
                ticket
            }
            Incoming::Execute(ticket) if ticket.is_packet() => {
                let refused = Answer::Failed(Failure::Unsupported);
                self.inbox.borrow_mut().complete(&ticket, &refused, &mut reply);
                ticket
            }
            Incoming::Execute(ticket) => {
                self.execute(&ticket, &message, &mut reply).await;
                ticket
            }
        };
        let sent = send_reply(
            self.client.fabric(),
            &self.map.requests,
            self.client.home(),
            &ticket,
            reply,
        );
        // A client asks again for a reply that does not arrive.
        if let Some((reply, _)) = within(REPLY_POLLS_MAX, sent).await {
            self.rings.note(self.map.requests.client_bell_addr(ticket.client));
            self.spare.give_back(reply);
        }
        message
    }

    async fn execute(&self, ticket: &Ticket, message: &[u8], reply: &mut Buf) {
        let executed = self.try_execute(ticket.request(message)).await;
        let executed = executed.unwrap_or_else(|error| {
            if matches!(error, EngineError::Damaged { .. }) {
                tracing::warn!(%error, "a request could not be served");
            }
            Executed::Failed(Failure::from(&error))
        });
        let mut inbox = self.inbox.borrow_mut();
        match executed {
            Executed::Found(found) => {
                let answer = Answer::found(&found, found.version(), found.expires_at_ms());
                inbox.complete(ticket, &answer, reply);
                self.spare.give_back(found.into_buf());
            }
            Executed::Other(outcome) => {
                inbox.complete(ticket, &Answer::Done(outcome), reply);
            }
            Executed::Failed(failure) => {
                inbox.complete(ticket, &Answer::Failed(failure), reply);
            }
        }
    }

    /// Linearization points: the nessie client's.
    async fn try_execute(&self, request: Request<'_>) -> Result<Executed, EngineError> {
        let Request { key, operation } = request;
        let owner = KeyHash::of(&self.map.table, key).owner(&self.map.table);
        if self.map.table.region_of(owner) != self.client.home() {
            // The entries of such an operation would be where no GET of a hybrid client looks for
            // them.
            return Ok(Executed::Failed(Failure::Unsupported));
        }
        if operation != Operation::Get {
            return Ok(Executed::Other(self.client.execute(key, operation).await?));
        }
        Ok(match self.client.get(key, self.spare.take()).await? {
            Some(found) => Executed::Found(found),
            None => Executed::Other(Outcome::Absent),
        })
    }
}
