//! The endpoint of a worker: its node's region is mapped, and it WRITEs replies on the connections
//! of the clients that wait for them.

use std::cell::RefCell;
use std::sync::Arc;

use super::admission::{Admitted, Push};
use super::frame::Told;
use super::lent::Lent;
use super::seat::Taken;
use crate::counters::Verb;
use crate::limits::{CACHE_LINE_BYTES, TRANSFER_BYTES_MAX};
use crate::shm::ShmEndpoint;
use crate::{Buf, Fabric, FabricError, RegionId, RemoteAddr, Result, UnreliableWrites};

/// The endpoint of a thread in an agent's process. Made by
/// [`Agent::endpoint`](super::Agent::endpoint).
///
/// The processor does all verbs in the agent's own region. A WRITE or a store into the
/// [reply slots](super::Replies) of a client goes to that client, whose own thread stores the
/// bytes. It is over when the bytes are copied, leaves with the next [`AgentEndpoint::turn`], and
/// is lost with the client's connection. Nothing else is reached.
pub struct AgentEndpoint {
    local: ShmEndpoint,
    home: RegionId,
    lent: Arc<Lent>,
    /// Clients for which something has to leave.
    dirty: RefCell<Vec<Arc<Admitted>>>,
    /// The worker's seat, if it drives connections.
    seat: RefCell<Option<Taken>>,
}

impl AgentEndpoint {
    pub(super) fn new(lent: Arc<Lent>, home: RegionId, seat: Option<Taken>) -> Self {
        let mut local = ShmEndpoint::new(home);
        local.attach(home, lent.region.clone());
        Self { local, home, lent, dirty: RefCell::default(), seat: RefCell::new(seat) }
    }

    /// Sends what was written, and executes what has come on the connections that the worker
    /// drives. A worker calls it before each of its turns.
    pub fn turn(&self) {
        self.dirty.borrow_mut().drain(..).for_each(|client| client.flush());
        if let Some(seat) = &mut *self.seat.borrow_mut() {
            seat.turn(&self.lent);
        }
    }

    /// How many connections the worker drives.
    #[cfg(test)]
    pub(super) fn connections(&self) -> usize {
        self.seat.borrow().as_ref().map_or(0, Taken::connections)
    }

    /// Whether a connection of the worker's has to have its turn.
    #[cfg(test)]
    pub(super) fn has_more(&self) -> bool {
        self.seat.borrow().as_ref().is_some_and(Taken::has_more)
    }

    /// Pushes bytes for reply slots. Returns whether there is a client that has them.
    fn push(&self, at: RemoteAddr, parts: &[&[u8]]) -> Result<bool> {
        let len = parts.iter().map(|part| part.len()).sum();
        if len > TRANSFER_BYTES_MAX {
            let (len, max) = (len as u64, TRANSFER_BYTES_MAX as u64);
            return Err(FabricError::TooLong { len, max });
        }
        let Some((client, offset)) = self.lent.way_to(at, len) else { return Ok(false) };
        match client.push(Told::Write { offset, len: len as u32 }, parts) {
            Push::Lost => return Ok(false),
            Push::First => self.dirty.borrow_mut().push(client),
            Push::Behind => (),
        }
        Ok(true)
    }

    /// WRITEs to a region that is not mapped.
    fn write_away(&self, at: RemoteAddr, bytes: &[u8]) -> Result<()> {
        if !self.push(at, &[bytes])? {
            return Err(FabricError::Unreachable { region: at.region() });
        }
        self.local.counters().count(Verb::Write, true, bytes.len() as u64);
        Ok(())
    }

    fn is_home(&self, at: RemoteAddr) -> bool {
        at.region() == self.home
    }
}

impl Fabric for AgentEndpoint {
    crate::pass_on!(
        caps counters read_words read_bucket read chase read_many read_word_and_bytes compare_swap
        compare_swap_many fetch_add is_mapped store_before store_after announce load
        load_bytes reload will_read will_store raw posted is_settled now_us wall_ms random pause
        poll_wait yield_now ring is_core_wanted => local
    );

    /// A client of the home region waits for its connections, too: what is stored into its reply
    /// slots goes there.
    fn store(&self, at: RemoteAddr, parts: &[&[u8]]) -> Result<()> {
        match self.is_home(at) && self.push(at, parts)? {
            true => Ok(()),
            false => self.local.store(at, parts),
        }
    }

    fn write_unsignaled(&self, at: RemoteAddr, bytes: &[u8]) -> Result<()> {
        let max = CACHE_LINE_BYTES;
        assert!(bytes.len() <= max, "an inline WRITE has at most {max} bytes");
        match self.is_home(at) {
            true => self.local.write_unsignaled(at, bytes),
            false => self.write_away(at, bytes),
        }
    }

    async fn write(&self, at: RemoteAddr, buf: Buf) -> (Buf, Result<()>) {
        if self.is_home(at) {
            return self.local.write(at, buf).await;
        }
        let written = self.write_away(at, &buf);
        (buf, written)
    }
}

impl UnreliableWrites for AgentEndpoint {
    fn write_unreliable(&self, at: RemoteAddr, bytes: &[u8]) -> Result<()> {
        match self.is_home(at) {
            true => self.local.write_unreliable(at, bytes),
            false => self.write_away(at, bytes),
        }
    }
}
