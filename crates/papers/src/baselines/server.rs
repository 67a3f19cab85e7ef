//! The worker of the baselines: takes requests, has them executed, and replies by SEND or by WRITE
//! over an unreliable connection, as HERD's authors do in all their emulations (herd §5.1).

use std::sync::Arc;

use loch_engines::EngineError;
use loch_engines::requests::packet::{Answered, OutcomeWriter};
use loch_engines::requests::{Inbox, Incoming, Request, RequestMap, Sessions, Ticket, WorkerId};
use loch_fabric::{Buf, FabricError};

use super::baseline::{Serve, Thread};

/// Requests taken in one turn, of each kind.
const TURN_REQUESTS_MAX: usize = 64;
/// Replies sent in one doorbell.
const DOORBELL_REPLIES: usize = 16;

/// How a worker executes a request.
pub trait Execute<F> {
    /// Executes it.
    fn execute(&mut self, fabric: &F, request: Request<'_>) -> Answered<'_>;
}

/// A worker.
pub struct Server<F: Thread, E> {
    fabric: F,
    map: Arc<RequestMap>,
    inbox: Inbox,
    work: E,
    /// The address of each client's replies, if they are SENT.
    peers: Vec<Option<F::Peer>>,
    outbox: Vec<(F::Peer, Buf)>,
    outcomes: OutcomeWriter,
    spare: Vec<Buf>,
}

impl<F: Thread, E: Execute<F>> Server<F, E> {
    /// Worker `id`, which starts now, for the clients in `sessions`.
    pub fn open(
        fabric: F,
        map: Arc<RequestMap>,
        id: WorkerId,
        work: E,
        sessions: Sessions,
    ) -> Result<Self, EngineError> {
        Ok(Self {
            inbox: Inbox::open(&fabric, &map, id, sessions)?,
            peers: vec![None; map.area().clients() as usize],
            outbox: Vec::new(),
            outcomes: OutcomeWriter::default(),
            spare: Vec::new(),
            fabric,
            map,
            work,
        })
    }

    fn take_datagrams(&mut self) -> Result<usize, FabricError> {
        let mut taken = 0;
        while taken < TURN_REQUESTS_MAX {
            let empty = self.buf();
            let (from, message) = match self.fabric.try_receive(empty) {
                Ok(received) => received,
                Err(unused) => {
                    self.spare.push(unused);
                    break;
                }
            };
            taken += 1;
            let accepted = match self.map.area().service().request_bytes {
                0 => self.inbox.accept(&message),
                _ => self.inbox.accept_greeting(&message),
            };
            match accepted {
                Some(Incoming::Hello(ticket)) => self.peers[ticket.client as usize] = Some(from),
                Some(incoming) => self.answer(incoming, &message)?,
                None => (),
            }
            self.give_back(message);
        }
        Ok(taken)
    }

    fn take_slots(&mut self) -> Result<usize, FabricError> {
        let (mut taken, mut message) = (0, self.buf());
        while taken < TURN_REQUESTS_MAX
            && let Some(incoming) = self.inbox.poll(&self.fabric, &mut message)?
        {
            taken += 1;
            self.answer(incoming, &message)?;
        }
        self.give_back(message);
        Ok(taken)
    }

    fn answer(&mut self, incoming: Incoming, message: &[u8]) -> Result<(), FabricError> {
        let reply = self.buf();
        let (ticket, reply) = match incoming {
            Incoming::Hello(_) => return Ok(()),
            Incoming::Answer(ticket) => (ticket, self.inbox.repeat(&ticket, reply)),
            Incoming::Execute(ticket) => {
                let request =
                    ticket.request(message).expect("the bench's clients ask by the rules");
                let outcome = self.work.execute(&self.fabric, request);
                self.outcomes.reuse(reply);
                self.outcomes.push(&outcome);
                (ticket, self.inbox.complete(&ticket, self.outcomes.take()).0)
            }
        };
        self.post(&ticket, reply)
    }

    /// WRITEs a reply, or keeps it to be SENT with others.
    fn post(&mut self, ticket: &Ticket, reply: Buf) -> Result<(), FabricError> {
        let service = self.map.area().service();
        if service.reply_bytes == 0 {
            match self.peers[ticket.client as usize] {
                Some(peer) => self.outbox.push((peer, reply)),
                None => self.give_back(reply),
            }
            return Ok(());
        }
        let fits = ticket.reply < service.replies && reply.len() <= service.reply_bytes as usize;
        assert!(fits, "the bench's own clients ask by the rules");
        let slot = self.map.reply_addr(ticket.client, ticket.reply);
        let at = slot.add(u64::from(service.reply_bytes) - reply.len() as u64);
        let done = match at.region() == self.map.base(self.inbox.id().node).region() {
            true => self.fabric.store(at, &[&reply]),
            false => self.fabric.write_unreliable(at, &reply),
        };
        self.give_back(reply);
        done
    }

    fn send(&mut self) -> Result<(), FabricError> {
        for replies in self.outbox.chunks(DOORBELL_REPLIES) {
            let doorbell: Vec<(F::Peer, &[u8])> =
                replies.iter().map(|(peer, reply)| (*peer, &reply[..])).collect();
            self.fabric.send_all(&doorbell)?;
        }
        while let Some((_, reply)) = self.outbox.pop() {
            self.give_back(reply);
        }
        Ok(())
    }

    fn buf(&mut self) -> Buf {
        self.spare.pop().unwrap_or_default()
    }

    fn give_back(&mut self, mut buf: Buf) {
        buf.clear();
        self.spare.push(buf);
    }
}

impl<F: Thread, E: Execute<F>> Serve<F> for Server<F, E> {
    fn turn(&mut self) -> Result<bool, EngineError> {
        let taken = self.take_datagrams()? + self.take_slots()?;
        self.send()?;
        Ok(taken > 0)
    }
}
