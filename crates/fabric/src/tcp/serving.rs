//! The endpoint of a worker: its node's region is mapped, and it WRITEs replies on the connections
//! of the clients that wait for them.

use std::cell::RefCell;
use std::sync::Arc;

use super::CAPS;
use super::admission::Admitted;
use super::frame::Told;
use super::lent::Lent;
use crate::counters::Verb;
use crate::limits::{CACHE_LINE_BYTES, TRANSFER_BYTES_MAX};
use crate::shm::ShmEndpoint;
use crate::{Buf, Caps, Fabric, FabricError, RegionId, RemoteAddr, Result, UnreliableWrites};

/// The endpoint of a thread in an agent's process. Made by
/// [`Agent::endpoint`](super::Agent::endpoint).
///
/// The processor does all verbs in the agent's own region. A WRITE into the
/// [reply slots](super::Replies) of a client goes to that client, whose own thread stores the
/// bytes. It is over when the bytes are copied, leaves with the next [`AgentEndpoint::flush`], and
/// is lost with the client's connection. Nothing else is reached.
pub struct AgentEndpoint {
    local: ShmEndpoint,
    home: RegionId,
    lent: Arc<Lent>,
    /// Clients for which something has to leave.
    dirty: RefCell<Vec<Arc<Admitted>>>,
}

impl AgentEndpoint {
    pub(super) fn new(lent: Arc<Lent>, home: RegionId) -> Self {
        let mut local = ShmEndpoint::new(home);
        local.attach(home, lent.region.clone());
        Self { local, home, lent, dirty: RefCell::default() }
    }

    /// Sends what was written. A worker calls it after each of its turns.
    pub fn flush(&self) {
        self.dirty.borrow_mut().drain(..).for_each(|client| client.flush());
    }

    fn push(&self, at: RemoteAddr, bytes: &[u8]) -> Result<()> {
        if bytes.len() > TRANSFER_BYTES_MAX {
            let (len, max) = (bytes.len() as u64, TRANSFER_BYTES_MAX as u64);
            return Err(FabricError::TooLong { len, max });
        }
        let region = at.region();
        let way = self.lent.way_to(at, bytes.len());
        let (client, offset) = way.ok_or(FabricError::Unreachable { region })?;
        self.local.counters().count(Verb::Write, true, bytes.len() as u64);
        if client.push(Told::Write { offset, len: bytes.len() as u32 }, bytes) {
            self.dirty.borrow_mut().push(client);
        }
        Ok(())
    }
}

impl Fabric for AgentEndpoint {
    crate::pass_on!(
        counters read_words read_bucket read chase read_many read_word_and_bytes compare_swap
        compare_swap_many fetch_add is_mapped store store_before store_after announce load
        load_bytes reload will_read will_store raw posted is_settled now_us wall_ms random pause
        poll_wait yield_now ring is_core_wanted => local
    );

    /// Those of the endpoints of clients, which read what this one writes.
    fn caps(&self) -> Caps {
        CAPS
    }

    fn write_unsignaled(&self, at: RemoteAddr, bytes: &[u8]) -> Result<()> {
        let max = CACHE_LINE_BYTES;
        assert!(bytes.len() <= max, "an inline WRITE has at most {max} bytes");
        match at.region() == self.home {
            true => self.local.write_unsignaled(at, bytes),
            false => self.push(at, bytes),
        }
    }

    async fn write(&self, at: RemoteAddr, buf: Buf) -> (Buf, Result<()>) {
        if at.region() == self.home {
            return self.local.write(at, buf).await;
        }
        let pushed = self.push(at, &buf);
        (buf, pushed)
    }
}

impl UnreliableWrites for AgentEndpoint {
    fn write_unreliable(&self, at: RemoteAddr, bytes: &[u8]) -> Result<()> {
        match at.region() == self.home {
            true => self.local.write_unreliable(at, bytes),
            false => self.push(at, bytes),
        }
    }
}
