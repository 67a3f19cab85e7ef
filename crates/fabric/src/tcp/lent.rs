//! What an agent lends, and to whom: the region, the mailboxes of its node's workers, and the ways
//! on which these reply.
//!
//! A client that its node lets in gets a token, over another way. The token opens one connection,
//! soon. What the connection may do are the keys that were made with the token. [`Accepted`] is the
//! client's admission: dropping it is the fence.
//!
//! If the agent encrypts, a key comes with the token. The token then only names the client, since
//! all can see it on the way; the client is let in if it shows that it has the key.

use std::collections::{BTreeMap, HashMap};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, RwLock, Weak};
use std::time::Instant;

use rand::Rng;
use zerocopy::IntoBytes;

use super::admission::{Admitted, Client, Replies};
use super::frame::{Hello, Token, Unwelcome};
use super::keys::Keys;
use super::letters::Letters;
use super::noise::{self, ConnectionKey, Message};
use super::planted::{Fault, Planted};
use super::stream::Halves;
use super::turns::lock;
use crate::limits::TCP_TOKEN_LIFE;
use crate::shm::Region;
use crate::{RegionId, RemoteAddr};

/// Where a client's reply slots begin.
type Slots = (u8, u64);

/// A client's ticket, with which it connects. It gets it over another way.
#[derive(Clone)]
pub(super) struct Ticket {
    pub token: Token,
    pub key: Option<ConnectionKey>,
}

/// A client whose token was good.
pub(super) struct Redeemed {
    pub client: Arc<Admitted>,
    /// The message that it gets if it encrypts.
    pub answer: Option<Message>,
    pub halves: Halves,
}

pub(super) struct Lent {
    pub region: Arc<Region>,
    encrypts: bool,
    /// The clients that were let in and have not connected yet.
    waiting: Mutex<HashMap<Token, (Instant, Arc<Admitted>)>>,
    clients: AtomicU64,
    mailboxes: RwLock<HashMap<u32, Arc<Letters>>>,
    ways: Mutex<BTreeMap<Slots, Arc<Admitted>>>,
    /// All reply slots are between these offsets, of whatever region: most stores of workers need
    /// no look at `ways`.
    slots: [AtomicU64; 2],
    pub planted: Planted,
}

impl Lent {
    pub fn new(region: Arc<Region>, encrypts: bool) -> Self {
        Self {
            region,
            encrypts,
            waiting: Mutex::default(),
            clients: AtomicU64::new(0),
            mailboxes: RwLock::default(),
            ways: Mutex::default(),
            slots: [AtomicU64::new(u64::MAX), AtomicU64::new(0)],
            planted: Planted::default(),
        }
    }

    /// Lets a client in.
    pub fn admit(self: &Arc<Self>, keys: Keys, client: Client<'_>) -> (Accepted, Ticket) {
        let mut token = Token::default();
        rand::rng().fill_bytes(&mut token);
        let key = self.encrypts.then(ConnectionKey::random);
        let number = self.clients.fetch_add(1, Ordering::Relaxed);
        let client = Arc::new(Admitted::new(number, keys, key.clone(), client));
        if let Some(slots) = slots_of(&client) {
            let (begin, len) = (slots.1, client.replies().map_or(0, |replies| replies.len));
            self.slots[0].fetch_min(begin, Ordering::Relaxed);
            self.slots[1].fetch_max(begin.saturating_add(len.into()), Ordering::Relaxed);
            // From now on, what is for these slots goes to this client.
            lock(&self.ways).insert(slots, client.clone());
        }
        lock(&self.waiting).insert(token, (Instant::now(), client.clone()));
        (Accepted { client, token, lent: Arc::downgrade(self) }, Ticket { token, key })
    }

    /// Lets the client that this token names connect, if it is still good: a token is good for one
    /// connection. `asked` is the message that follows the greeting of a client that encrypts.
    ///
    /// # Errors
    /// [`Unwelcome`]. A token that is shown without its key stays good.
    pub fn redeem(
        &self,
        token: &Token,
        hello: &Hello,
        asked: Option<&Message>,
    ) -> Result<Redeemed, Unwelcome> {
        let asked = match (self.encrypts, asked) {
            (true, None) => return Err(Unwelcome::Plain),
            (false, Some(_)) => return Err(Unwelcome::Encrypted),
            (_, asked) => asked,
        };
        let named = lock(&self.waiting).get(token).map(|(_, client)| client.clone());
        let named = named.ok_or(Unwelcome::Token)?;
        let (answer, halves) = match (&named.key, asked) {
            (Some(key), Some(asked)) => {
                let met = noise::accept(key, hello.as_bytes(), asked);
                met.map(|(answer, halves)| (Some(answer), halves)).ok_or(Unwelcome::Key)?
            }
            _ => (None, Halves::plain()),
        };
        let redeemed = lock(&self.waiting).remove(token);
        let (since, client) = redeemed.ok_or(Unwelcome::Token)?;
        match since.elapsed() < TCP_TOKEN_LIFE && client.enter().is_some() {
            true => Ok(Redeemed { client, answer, halves }),
            false => Err(Unwelcome::Token),
        }
    }

    /// Neither a token nor a reply is for this client any more.
    fn forget(&self, client: &Arc<Admitted>, token: &Token) {
        lock(&self.waiting).remove(token);
        let Some(slots) = slots_of(client) else { return };
        let mut ways = lock(&self.ways);
        // Another client may have the slots by now.
        if ways.get(&slots).is_some_and(|it| Arc::ptr_eq(it, client)) {
            ways.remove(&slots);
        }
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

    /// The client whose reply slots have `len` bytes at `at`, and their place in the slots.
    pub fn way_to(&self, at: RemoteAddr, len: usize) -> Option<(Arc<Admitted>, u32)> {
        let [begin, end] = &self.slots;
        let [begin, end] = [begin, end].map(|bound| bound.load(Ordering::Relaxed));
        if !(begin..end).contains(&at.offset()) {
            return None;
        }
        let RegionId(region) = at.region();
        let ways = lock(&self.ways);
        let (_, client) = ways.range(..=(region, at.offset())).next_back()?;
        let place = client.replies()?.place_of(at, len)?;
        Some((client.clone(), place))
    }
}

fn slots_of(client: &Admitted) -> Option<Slots> {
    client.replies().map(|Replies { at, .. }| (at.region().0, at.offset()))
}

/// The node's side of one client's connection. Dropping it cuts the client off, and is the *fence*:
/// afterwards no verb that the client has posted is executed any more.
#[must_use = "the client is cut off when this is dropped"]
pub struct Accepted {
    client: Arc<Admitted>,
    token: Token,
    lent: Weak<Lent>,
}

#[cfg(test)]
impl Accepted {
    /// Sends what a node should not send.
    pub(super) fn push_for_test(&self, told: super::frame::Told, bytes: &[u8]) -> bool {
        let pushed = self.client.push(told, &[bytes]);
        self.client.flush();
        pushed == super::admission::Push::First
    }
}

impl Drop for Accepted {
    fn drop(&mut self) {
        if let Some(lent) = self.lent.upgrade() {
            lent.forget(&self.client, &self.token);
            if lent.planted.is(Fault::FenceForgotten) {
                return;
            }
        }
        self.client.shut();
    }
}
