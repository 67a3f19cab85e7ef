//! What an agent lends: the region, the mailboxes of its node's workers, and the ways on which
//! these reply.

use std::collections::{BTreeMap, HashMap};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, RwLock};

use rand::Rng;

use super::admission::{Admitted, Tokens, lock};
use super::mailbox::Letters;
use crate::shm::Region;
use crate::{RegionId, RemoteAddr};

/// The reply slots of a client, in its home region. Its own thread writes what comes for them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Replies {
    /// Where they begin.
    pub at: RemoteAddr,
    /// Their bytes.
    pub len: u32,
}

impl Replies {
    /// The place of `len` bytes at `at` in these slots, if they have one.
    pub(super) fn place_of(&self, at: RemoteAddr, len: usize) -> Option<u32> {
        let place = at.offset().checked_sub(self.at.offset())?;
        let room = u64::from(self.len).checked_sub(place)?;
        (at.region() == self.at.region() && len as u64 <= room).then_some(place as u32)
    }
}

/// Where a client's reply slots begin.
type Slots = (u8, u64);

pub(super) struct Lent {
    pub region: Arc<Region>,
    pub tokens: Tokens,
    clients: AtomicU64,
    mailboxes: RwLock<HashMap<u32, Arc<Letters>>>,
    ways: Mutex<BTreeMap<Slots, Arc<Admitted>>>,
}

impl Lent {
    pub fn new(region: Arc<Region>) -> Self {
        Self {
            region,
            tokens: Tokens::default(),
            clients: AtomicU64::new(0),
            mailboxes: RwLock::default(),
            ways: Mutex::default(),
        }
    }

    /// The number of the next client.
    pub fn next_number(&self) -> u64 {
        self.clients.fetch_add(1, Ordering::Relaxed)
    }

    /// Opens a mailbox. Returns its number, which nobody can guess.
    pub fn open_mailbox(&self, letters: &Arc<Letters>) -> u32 {
        let mut mailboxes = self.mailboxes.write().expect("nothing panics while it is held");
        let mut number = rand::rng().next_u32();
        while mailboxes.contains_key(&number) {
            number = rand::rng().next_u32();
        }
        mailboxes.insert(number, letters.clone());
        number
    }

    pub fn close_mailbox(&self, number: u32) {
        self.mailboxes.write().expect("nothing panics while it is held").remove(&number);
    }

    /// What has arrived in a mailbox, if it is open.
    pub fn letters(&self, mailbox: u32) -> Option<Arc<Letters>> {
        let mailboxes = self.mailboxes.read().expect("nothing panics while it is held");
        mailboxes.get(&mailbox).cloned()
    }

    /// From now on replies to the client's slots go to this client.
    pub fn route(&self, client: &Arc<Admitted>) {
        if let Some(Replies { at, .. }) = client.replies() {
            lock(&self.ways).insert((at.region().0, at.offset()), client.clone());
        }
    }

    /// No reply goes to this client any more.
    pub fn forget(&self, client: &Arc<Admitted>) {
        let Some(Replies { at, .. }) = client.replies() else { return };
        let mut ways = lock(&self.ways);
        let slots = (at.region().0, at.offset());
        // Another client may have the slots by now.
        if ways.get(&slots).is_some_and(|it| Arc::ptr_eq(it, client)) {
            ways.remove(&slots);
        }
    }

    /// The client whose reply slots have `len` bytes at `at`, and their place in the slots.
    pub fn way_to(&self, at: RemoteAddr, len: usize) -> Option<(Arc<Admitted>, u32)> {
        let RegionId(region) = at.region();
        let ways = lock(&self.ways);
        let (_, client) = ways.range(..=(region, at.offset())).next_back()?;
        let place = client.replies()?.place_of(at, len)?;
        Some((client.clone(), place))
    }
}
