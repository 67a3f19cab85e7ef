//! The node's side: a region on a device, lent to peers by rights.
//!
//! There is one protection domain for each distinct set of grants, and the region's memory is
//! registered in each domain with that set's rights. A queue pair belongs to the domain of its
//! grants. So a key of another set opens no memory for it, and a peer has exactly the rights that
//! it was given, whatever it posts.
//!
//! Memory is registered when a set is first requested, and stays registered. Several threads
//! register the pieces of a large range at once, because pinning pages takes most of the time. The
//! answer lists the pieces, and the endpoint splits verbs that cross them.

use std::collections::BTreeMap;
use std::io;
use std::num::NonZero;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread;

use rand::Rng;

use crate::limits::{PASSIVE_COMPLETIONS, REGISTER_BYTES_MIN, REGISTER_THREADS_MAX};
use crate::rights::{Access, Grant, Granted};
use crate::shm::Region;

use super::setup::{Answer, Offer, Transport, check_ranges};
use super::sys::{Allowed, Caps, Cq, Kind, Mr, Pd, Qp, Registration};
use super::{Device, VerbsError};

/// The node's side of verbs: lends a region to peers. Any thread may use it.
pub struct Host {
    device: Arc<Device>,
    region: Arc<Region>,
    /// Passive ends complete nothing; a queue pair must have a queue nevertheless.
    cq: Arc<Cq>,
    domains: Mutex<BTreeMap<Vec<Grant>, Arc<Domain>>>,
}

/// The rights of one set of grants.
struct Domain {
    pd: Arc<Pd>,
    /// What is registered; nothing before the first connection.
    pieces: Mutex<Vec<Piece>>,
}

struct Piece {
    grant: Grant,
    mr: Mr<Arc<Region>>,
}

/// The passive end of one connection. Dropping it cuts the peer off, and is the *fence*: afterwards
/// no verb that the peer posted is executed any more.
///
/// Destroying a queue pair returns after the card has reported that it stopped the queue pair. The
/// card writes this report to memory after everything that it wrote for the queue pair, because
/// registrations here do not allow relaxed ordering. So a verb that the peer had under way is then
/// either in memory or never will be.
#[must_use = "the peer is cut off when this is dropped"]
pub struct Accepted {
    _qp: Qp,
}

impl Host {
    /// Lends `region` by way of `device`.
    ///
    /// # Errors
    /// [`VerbsError::Os`].
    pub fn new(device: Arc<Device>, region: Arc<Region>) -> Result<Self, VerbsError> {
        let cq = Cq::new(&device.context, PASSIVE_COMPLETIONS);
        let cq = cq.map_err(os("make a completion queue"))?;
        Ok(Self { device, region, cq, domains: Mutex::default() })
    }

    /// Makes the passive end of a connection whose other end has the rights in `grants`, and no
    /// others.
    ///
    /// The first call with a set of grants registers memory, which takes some 100 ms a gigabyte.
    ///
    /// # Errors
    /// [`VerbsError::Hostile`] for an invalid offer or invalid grants,
    /// [`VerbsError::ReadOnlyRegion`], [`VerbsError::Register`] or [`VerbsError::Os`].
    pub fn accept(
        &self,
        offer: &Offer,
        grants: &[Grant],
    ) -> Result<(Accepted, Answer), VerbsError> {
        offer.validate()?;
        let grants = self.sorted(grants)?;
        let domain = self.domain(&grants)?;
        let mut pieces = lock(&domain.pieces);
        if pieces.is_empty() {
            *pieces = self.register(&domain.pd, &grants)?;
        }
        self.accept_in(&domain.pd, &pieces, offer, &grants)
    }

    fn accept_in(
        &self,
        pd: &Arc<Pd>,
        pieces: &[Piece],
        offer: &Offer,
        grants: &[Grant],
    ) -> Result<(Accepted, Answer), VerbsError> {
        let kind = match offer.transport {
            Transport::Reliable => Kind::Rc,
            Transport::Unreliable => Kind::Uc,
        };
        let caps = Caps { send: 1, receive: 1, inline_bytes: 0 };
        let made = Qp::new(pd, kind, &self.cq, &self.cq, caps);
        let (qp, _) = made.map_err(os("make a QP"))?;
        let psn = rand::rng().next_u32() >> 8;
        let (mtu_bytes, rd_atomic) = self.device.agree(offer);
        let path = self.device.path(&offer.from, psn, (mtu_bytes, rd_atomic));
        qp.connect(&path, allowed(offer.transport, grants)).map_err(os("connect a QP"))?;
        let answer = Answer {
            transport: offer.transport,
            from: self.device.address(&qp, psn),
            mtu_bytes,
            rd_atomic,
            grants: pieces.iter().map(|piece| self.granted(piece)).collect(),
        };
        Ok((Accepted { _qp: qp }, answer))
    }

    /// Grants in order, checked.
    fn sorted(&self, grants: &[Grant]) -> Result<Vec<Grant>, VerbsError> {
        check_ranges(grants.iter().map(|g| (g.offset, g.len)).collect(), self.region.len())?;
        if !self.region.is_writable() && grants.iter().any(|g| g.access != Access::Read) {
            return Err(VerbsError::ReadOnlyRegion);
        }
        let mut grants = grants.to_vec();
        grants.sort_unstable();
        Ok(grants)
    }

    fn domain(&self, grants: &[Grant]) -> Result<Arc<Domain>, VerbsError> {
        let mut domains = lock(&self.domains);
        if let Some(domain) = domains.get(grants) {
            return Ok(domain.clone());
        }
        let pd = Pd::new(&self.device.context).map_err(os("allocate a protection domain"))?;
        let domain = Arc::new(Domain { pd, pieces: Mutex::default() });
        domains.insert(grants.to_vec(), domain.clone());
        Ok(domain)
    }

    fn register(&self, pd: &Arc<Pd>, grants: &[Grant]) -> Result<Vec<Piece>, VerbsError> {
        let threads = thread::available_parallelism().map_or(1, NonZero::get);
        let threads = threads.min(REGISTER_THREADS_MAX);
        let cuts: Vec<Grant> = grants
            .iter()
            .flat_map(|grant| pieces(grant, threads as u64, REGISTER_BYTES_MIN))
            .collect();
        // One thread for each piece of the largest grant; small grants are not worth a thread.
        let share = cuts.len().div_ceil(threads);
        let is_small = cuts.iter().map(|cut| cut.len).sum::<u64>() < REGISTER_BYTES_MIN;
        if is_small || threads == 1 {
            return self.register_all(pd, &cuts);
        }
        let made = thread::scope(|scope| {
            let work = |share| scope.spawn(move || self.register_all(pd, share));
            let threads: Vec<_> = cuts.chunks(share).map(work).collect();
            let join = |thread: thread::ScopedJoinHandle<'_, _>| {
                thread.join().expect("registering does not panic")
            };
            threads.into_iter().map(join).collect::<Result<Vec<_>, VerbsError>>()
        })?;
        Ok(made.into_iter().flatten().collect())
    }

    fn register_all(&self, pd: &Arc<Pd>, cuts: &[Grant]) -> Result<Vec<Piece>, VerbsError> {
        let register = |grant: &Grant| {
            let what = match grant.access {
                Access::Read => Registration::Read,
                Access::ReadAtomic => Registration::ReadAtomic,
                Access::Full => Registration::Full,
            };
            let region = self.region.clone();
            let start = region.place(grant.offset, grant.len);
            // SAFETY: `place` has checked the range; the region stays mapped for as long as the
            // `Arc` that the registration holds, is writable unless `what` is `Read` (`sorted` has
            // checked it), and its bytes are never referenced (invariant 1 of `shm`).
            let mr = unsafe { Mr::new(pd, start, grant.len as usize, what, region) };
            let mr = mr.map_err(|source| VerbsError::Register { bytes: grant.len, source })?;
            Ok(Piece { grant: *grant, mr })
        };
        cuts.iter().map(register).collect()
    }

    fn granted(&self, piece: &Piece) -> Granted {
        let Grant { offset, len, access } = piece.grant;
        let address = self.region.place(offset, len) as u64;
        Granted { offset, len, access, address, rkey: piece.mr.rkey() }
    }
}

/// Cuts a grant into at most `count` pieces of `min` bytes or more each, at multiples of 2 MiB.
fn pieces(grant: &Grant, count: u64, min: u64) -> Vec<Grant> {
    const ALIGN_BYTES: u64 = 2 << 20;
    let count = (grant.len / min.max(1)).clamp(1, count);
    let each = (grant.len.div_ceil(count)).next_multiple_of(ALIGN_BYTES.min(min.max(1)));
    let starts = (0..grant.len.div_ceil(each)).map(|i| i * each);
    let piece = |start| {
        let len = each.min(grant.len - start);
        Grant { offset: grant.offset + start, len, access: grant.access }
    };
    starts.map(piece).collect()
}

/// The rights of the queue pair as a whole; the keys say to which bytes.
fn allowed(transport: Transport, grants: &[Grant]) -> Allowed {
    let any = |access| grants.iter().any(|grant| grant.access.includes(access));
    let is_reliable = transport == Transport::Reliable;
    let (write, atomic) = (any(Access::Full), is_reliable && any(Access::ReadAtomic));
    Allowed { read: is_reliable, write, atomic }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    // A panic leaves no state behind these locks half-changed.
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

pub(super) fn os(action: &'static str) -> impl Fn(io::Error) -> VerbsError {
    move |source| VerbsError::Os { action, source }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn pieces_cover_a_grant_without_gap(
            offset in 0u64..1 << 40,
            len in 1u64..1 << 34,
            count in 1u64..9,
            min_exponent in 12u32..31,
        ) {
            let min = 1 << min_exponent;
            let grant = Grant { offset, len, access: Access::ReadAtomic };
            let pieces = pieces(&grant, count, min);
            prop_assert!(!pieces.is_empty() && pieces.len() as u64 <= count);
            let mut next = offset;
            for piece in &pieces {
                prop_assert_eq!((piece.offset, piece.access), (next, Access::ReadAtomic));
                prop_assert!(piece.len > 0);
                next += piece.len;
            }
            prop_assert_eq!(next, offset + len);
        }
    }

    #[test]
    fn a_small_grant_is_one_piece() {
        let grant = Grant { offset: 5, len: 100, access: Access::Full };
        assert_eq!(pieces(&grant, 8, 1 << 30), [grant]);
    }

    #[test]
    fn a_queue_pair_allows_what_some_grant_does() {
        let of = |access| allowed(Transport::Reliable, &[Grant { offset: 0, len: 8, access }]);
        let unreliable = allowed(Transport::Unreliable, &[]);
        assert!(!unreliable.read && !unreliable.write && !unreliable.atomic);
        assert!(!of(Access::Read).atomic && !of(Access::Read).write);
        assert!(of(Access::ReadAtomic).atomic && !of(Access::ReadAtomic).write);
        assert!(of(Access::Full).atomic && of(Access::Full).write);
    }
}
