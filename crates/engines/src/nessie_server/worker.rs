//! A worker: executes requests by the client-driven protocol on its own node's memory.

use std::cell::RefCell;

use loch_fabric::{Buf, Fabric, FabricError};

use super::served::Served;
use crate::error::EngineError;
use crate::kv::Kv;
use crate::nessie;
use crate::nessie::hash::KeyHash;
use crate::operation::{Batch, Outcome, Version};
use crate::planted::{self, Bug};
use crate::requests::bells::Rings;
use crate::requests::message::REPLY_TRAILER_BYTES;
use crate::requests::packet::{Cursor, Packed};
use crate::requests::{
    Failure, Inbox, Incoming, Lanes, Results, Sessions, Turns, WorkerId, send_reply, within,
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
    works: RefCell<Vec<Work>>,
}

/// The operations of a packet, and their outcomes so far.
#[derive(Debug, Default)]
struct Work {
    operations: Vec<Packed>,
    results: Results,
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
        let (rings, spare, works) = (Rings::default(), SpareBuffers::default(), RefCell::default());
        Ok(Self { client, map, inbox, rings, spare, works })
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
        let (ticket, reply) = match incoming {
            Incoming::Hello(_) => return message,
            Incoming::Answer(ticket) => {
                (ticket, self.inbox.borrow().repeat(&ticket, self.spare.take()))
            }
            Incoming::Execute(ticket) => {
                // A packet that tells no number of operations gets no reply.
                let packet = ticket.packet(&message);
                let Ok(cursor) = Cursor::new(packet) else { return message };
                let outcomes = self.execute(cursor, packet).await;
                (ticket, self.inbox.borrow_mut().complete(&ticket, outcomes).0)
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

    /// Executes the operations of a packet, and returns the packet of their outcomes.
    async fn execute(&self, cursor: Cursor, packet: &[u8]) -> Buf {
        let mut work = self.works.borrow_mut().pop().unwrap_or_default();
        let Work { operations, results } = &mut work;
        let room = self.map.requests.area().service().reply_bytes as usize - REPLY_TRAILER_BYTES;
        let count = cursor.left();
        results.begin(count, room, self.spare.take());
        operations.clear();
        operations.extend(cursor.all(packet).map_while(Result::ok));
        let skips = planted::is(Bug::HalfExecuted) && operations.len() > 1;
        let skipped = operations.pop_if(|last| skips && last.is_put()).is_some();
        let mut done = 0;
        while done < operations.len() {
            done += self.execute_some(&operations[done..], done, packet, results).await;
        }
        if skipped {
            results.take(done, &Ok(Outcome::Stored(Version::default())));
            done += 1;
        }
        (done..count).for_each(|number| results.take(number, &Err(Failure::Malformed)));
        let outcomes = results.packet();
        self.works.borrow_mut().push(work);
        outcomes
    }

    /// Executes the first of some operations: those of one kind as one batch. Returns how many they
    /// are. `first` is the number of the first.
    async fn execute_some(
        &self,
        operations: &[Packed],
        first: usize,
        packet: &[u8],
        results: &mut Results,
    ) -> usize {
        let is_alike = |other: &&Packed| {
            other.is_batchable_with(&operations[0]) && self.owns(other.key(packet))
        };
        let count = operations.iter().take_while(is_alike).count();
        if count < 2 || !self.client.takes_batches() {
            self.execute_one(&operations[0], first, packet, results).await;
            return 1;
        }
        let (alike, mut take) = (&operations[..count], |number: usize, outcome: Outcome<'_>| {
            results.take(first + number, &Ok(outcome));
        });
        let ended = if alike[0].is_put() {
            let pair = |packed: &Packed| (packed.key(packet), packed.operation(packet).value());
            let pairs: Vec<_> = alike.iter().map(pair).collect();
            self.client.execute_many(Batch::Put(&pairs), &mut take).await
        } else {
            let keys: Vec<_> = alike.iter().map(|packed| packed.key(packet)).collect();
            self.client.execute_many(Batch::Get(&keys), &mut take).await
        };
        if let Err(error) = ended {
            self.finish(alike, first, packet, results, error).await;
        }
        count
    }

    /// Finishes a batch that ended with an error: if the error does not leave open what was done,
    /// the operations without an outcome were not done, and each gets its own.
    #[cold]
    async fn finish(
        &self,
        operations: &[Packed],
        first: usize,
        packet: &[u8],
        results: &mut Results,
        error: EngineError,
    ) {
        for (number, packed) in (first..).zip(operations) {
            if results.has(number) {
                continue;
            }
            if error.is_of_the_fabric() {
                results.take(number, &Err(Failure::from(&error)));
            } else {
                self.execute_one(packed, number, packet, results).await;
            }
        }
    }

    async fn execute_one(
        &self,
        packed: &Packed,
        number: usize,
        packet: &[u8],
        results: &mut Results,
    ) {
        let (key, operation) = (packed.key(packet), packed.operation(packet));
        // The entries of a foreign key would be where no GET of a hybrid client looks for them, and
        // the reply may lack the room for a value that was touched.
        let done = match self.owns(key) && !operation.returns_vector() {
            // Linearization points: the nessie client's.
            true => self.client.execute(key, operation, self.spare.take()).await,
            false => Err(EngineError::Unsupported),
        };
        match done {
            Ok(done) => {
                results.take(number, &Ok(done.outcome()));
                self.spare.give_back(done.into_buf());
            }
            Err(error) => {
                if matches!(error, EngineError::Damaged { .. }) {
                    tracing::warn!(%error, "a request could not be served");
                }
                results.take(number, &Err(Failure::from(&error)));
            }
        }
    }

    /// Whether a key is of this worker's node.
    #[inline]
    fn owns(&self, key: &[u8]) -> bool {
        let table = &self.map.table;
        let is_alone = table.shape.geometry.nodes == 1;
        is_alone || table.region_of(KeyHash::of(table, key).owner(table)) == self.client.home()
    }
}
