//! The memory of requests and replies on one node, as a part of a table.
//!
//! ```text
//! worker lines     workers × 64 bytes: the worker's incarnation, where it receives (4 words), and
//!                  its bell
//! request slots    workers × clients × window slots of request_bytes     (herd §4.2, Figure 8)
//! reply slots      sessions_per_node × replies slots of reply_bytes
//! ```
//!
//! The request slots are those of the node's own workers, the reply slots those of the node's own
//! clients. All of it starts zeroed, and a message never has number 0.

use std::ops::Range;

use loch_fabric::{MessageAddress, RegionId, RemoteAddr};

use super::message::{
    REPLY_OVERHEAD_BYTES, REPLY_TRAILER_BYTES, REQUEST_OVERHEAD_BYTES, REQUEST_TRAILER_BYTES,
};
use crate::error::LayoutError;
use crate::limits::{NODES_MAX, REPLIES_MAX, REQUEST_AREA_BYTES_MAX, WINDOW_MAX, WORKERS_MAX};
use crate::region::{Service, session_bell_addr};

/// Bytes of a worker's line.
const LINE_BYTES: u64 = 64;
/// Where the bell stands in a worker's line: behind its incarnation and its address.
const BELL_AT: u64 = 8 + 8 * MessageAddress::WORDS as u64;
/// Slots start at multiples of this, so that two of them never share a cache line.
pub const SLOT_ALIGN_BYTES: u32 = 64;

impl Service {
    /// The bytes of a request slot for keys and values up to these lengths.
    ///
    /// # Errors
    /// [`LayoutError::Geometry`] if a slot cannot be so long.
    pub fn request_bytes_for(key_bytes: u64, value_bytes: u64) -> Result<u32, LayoutError> {
        slot_bytes(REQUEST_OVERHEAD_BYTES as u64, key_bytes.saturating_add(value_bytes))
    }

    /// The bytes of a reply slot for values up to this length.
    ///
    /// # Errors
    /// [`LayoutError::Geometry`] if a slot cannot be so long.
    pub fn reply_bytes_for(value_bytes: u64) -> Result<u32, LayoutError> {
        slot_bytes(REPLY_OVERHEAD_BYTES as u64, value_bytes)
    }
}

fn slot_bytes(overhead: u64, payload: u64) -> Result<u32, LayoutError> {
    let bytes = payload.checked_add(overhead + 7).and_then(|bytes| {
        u32::try_from(bytes.checked_next_multiple_of(u64::from(SLOT_ALIGN_BYTES))?).ok()
    });
    bytes.ok_or_else(|| LayoutError::Geometry(format!("no slot holds {payload} bytes")))
}

/// A [`Service`] for a cluster of a given number of nodes, with every field checked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Area {
    service: Service,
    nodes: u16,
    /// Where the reply slots start.
    replies_at: u64,
    bytes: u64,
}

impl Area {
    /// Checks every field.
    ///
    /// # Errors
    /// [`LayoutError::Geometry`], which names the field and its valid values.
    pub fn new(service: Service, nodes: u16) -> Result<Self, LayoutError> {
        let wrong = |text: String| Err(LayoutError::Geometry(text));
        let Service {
            workers, window, replies, sessions_per_node, request_bytes, reply_bytes, ..
        } = service;
        if nodes == 0 || usize::from(nodes) > NODES_MAX {
            return wrong(format!("nodes is {nodes}, it may be 1 to {NODES_MAX}"));
        }
        if workers == 0 || workers > WORKERS_MAX {
            return wrong(format!("workers is {workers}, it may be 1 to {WORKERS_MAX}"));
        }
        if window == 0 || window > WINDOW_MAX {
            return wrong(format!("window is {window}, it may be 1 to {WINDOW_MAX}"));
        }
        if replies == 0 || replies > REPLIES_MAX {
            return wrong(format!("replies is {replies}, it may be 1 to {REPLIES_MAX}"));
        }
        let clients = u64::from(sessions_per_node) * u64::from(nodes);
        if sessions_per_node == 0 || clients > u64::from(u32::MAX) {
            return wrong(format!("{sessions_per_node} sessions a node are none, or too many"));
        }
        for (name, bytes, least) in [
            ("request_bytes", request_bytes, REQUEST_TRAILER_BYTES as u32),
            ("reply_bytes", reply_bytes, REPLY_TRAILER_BYTES as u32),
        ] {
            if bytes != 0 && (bytes < least || !bytes.is_multiple_of(SLOT_ALIGN_BYTES)) {
                return wrong(format!(
                    "{name} is {bytes}: a slot has a multiple of {SLOT_ALIGN_BYTES} bytes, {least} \
                     at least"
                ));
            }
        }
        if service.reserved != 0 || service.reserved_too != 0 {
            return wrong("a reserved field is not zero".into());
        }
        let mut area = Self { service, nodes, replies_at: 0, bytes: 0 };
        let Some((replies_at, bytes)) = area.lay_out() else {
            return wrong(format!(
                "{} request slots of {request_bytes} bytes and {} reply slots of {reply_bytes} a \
                 node are more than {REQUEST_AREA_BYTES_MAX} bytes: give the table fewer workers, a \
                 smaller window, fewer sessions or shorter values",
                u64::from(workers) * clients * u64::from(window),
                u64::from(sessions_per_node) * u64::from(replies),
            ));
        };
        (area.replies_at, area.bytes) = (replies_at, bytes);
        Ok(area)
    }

    /// The checked service.
    pub fn service(&self) -> &Service {
        &self.service
    }

    /// Nodes of the cluster.
    pub fn nodes(&self) -> u16 {
        self.nodes
    }

    /// The number of clients: each session slot of each node is one (herd's N<sub>C</sub>).
    pub fn clients(&self) -> u32 {
        self.service.sessions_per_node * u32::from(self.nodes)
    }

    /// The client number of a session slot.
    ///
    /// # Panics
    /// If there is no such node or slot.
    pub fn client(&self, node: u16, session_slot: u32) -> u32 {
        assert!(node < self.nodes && session_slot < self.service.sessions_per_node, "no such slot");
        u32::from(node) * self.service.sessions_per_node + session_slot
    }

    /// The node and session slot of a client.
    pub fn seat(&self, client: u32) -> (u16, u32) {
        let sessions = self.service.sessions_per_node;
        ((client / sessions) as u16, client % sessions)
    }

    /// A worker's number among all workers of the cluster.
    pub fn source(&self, node: u16, worker: u16) -> u16 {
        node * self.service.workers + worker
    }

    /// Workers of all nodes.
    pub fn workers(&self) -> u32 {
        u32::from(self.nodes) * u32::from(self.service.workers)
    }

    /// The worker with this number among all workers of the cluster.
    #[inline]
    pub fn worker(&self, source: u32) -> WorkerId {
        let workers = u32::from(self.service.workers);
        WorkerId { node: (source / workers) as u16, worker: (source % workers) as u16 }
    }

    /// Bytes of the area on one node.
    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    fn requests_at(&self) -> u64 {
        u64::from(self.service.workers) * LINE_BYTES
    }

    /// Where the reply slots start and end, if the offsets are not too large.
    fn lay_out(&self) -> Option<(u64, u64)> {
        let slots = u64::from(self.service.workers)
            .checked_mul(u64::from(self.clients()))?
            .checked_mul(u64::from(self.service.window))?;
        let requests = slots.checked_mul(u64::from(self.service.request_bytes))?;
        let replies_at = requests.checked_add(self.requests_at())?;
        let replies = u64::from(self.service.sessions_per_node) * u64::from(self.service.replies);
        let replies = replies.checked_mul(u64::from(self.service.reply_bytes))?;
        let bytes = replies_at.checked_add(replies)?;
        (bytes <= REQUEST_AREA_BYTES_MAX).then_some((replies_at, bytes))
    }

    /// Where the incarnation of a worker stands, from the area's first byte.
    pub fn incarnation_at(&self, worker: u16) -> u64 {
        u64::from(worker) * LINE_BYTES
    }

    /// Where the request slot of a client's request `number` at a worker starts, from the area's
    /// first byte: slot s·(W·N<sub>C</sub>) + c·W + r mod W (herd §4.2).
    #[inline]
    pub fn request_at(&self, worker: u16, client: u32, number: u64) -> u64 {
        self.slot_at(worker, self.slot_of(client, number))
    }

    /// The slot of a request among those of one worker: c·W + r mod W.
    #[inline]
    pub fn slot_of(&self, client: u32, number: u64) -> u64 {
        let window = u64::from(self.service.window);
        u64::from(client) * window + remainder(number, window)
    }

    /// Where a slot among those of one worker starts, from the area's first byte.
    #[inline]
    pub fn slot_at(&self, worker: u16, slot: u64) -> u64 {
        let slots = u64::from(self.clients()) * u64::from(self.service.window);
        let slot = u64::from(worker) * slots + slot;
        self.requests_at() + slot * u64::from(self.service.request_bytes)
    }

    /// The lines of all workers, from the area's first byte.
    pub fn worker_lines(&self) -> Range<u64> {
        0..self.requests_at()
    }

    /// All request slots of a client at a worker, from the area's first byte. A process with the
    /// right to write these slots can speak in the client's name.
    ///
    /// # Panics
    /// If there is no such worker or client.
    pub fn request_slots_of(&self, worker: u16, client: u32) -> Range<u64> {
        assert!(worker < self.service.workers && client < self.clients(), "no such slots");
        let window = u64::from(self.service.window);
        let start = self.slot_at(worker, u64::from(client) * window);
        start..start + window * u64::from(self.service.request_bytes)
    }

    /// The reply slots of all clients of a node, from the area's first byte.
    pub fn reply_slots(&self) -> Range<u64> {
        self.replies_at..self.bytes
    }

    /// Where a reply slot of a node's session slot starts, from the area's first byte.
    #[inline]
    pub fn reply_at(&self, session_slot: u32, reply: u16) -> u64 {
        let slot = u64::from(session_slot) * u64::from(self.service.replies) + u64::from(reply);
        self.replies_at + slot * u64::from(self.service.reply_bytes)
    }
}

/// `number` mod `window`. Most windows need no division for it.
#[inline]
pub(super) fn remainder(number: u64, window: u64) -> u64 {
    if window.is_power_of_two() { number & (window - 1) } else { number % window }
}

/// An [`Area`], with its address on each node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RequestMap {
    area: Area,
    bases: Vec<RemoteAddr>,
}

/// A worker of the cluster.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WorkerId {
    /// The place of the worker's node in the map.
    pub node: u16,
    /// The worker's number among those of its node.
    pub worker: u16,
}

impl RequestMap {
    /// The map of an area that starts at these addresses, one for each node.
    ///
    /// # Panics
    /// If there are not as many addresses as the area has nodes.
    pub fn new(area: Area, bases: Vec<RemoteAddr>) -> Self {
        assert_eq!(bases.len(), usize::from(area.nodes), "one area on each node");
        Self { area, bases }
    }

    /// The area on each node.
    pub fn area(&self) -> &Area {
        &self.area
    }

    /// The first byte of the area on a node.
    pub fn base(&self, node: u16) -> RemoteAddr {
        self.bases[usize::from(node)]
    }

    /// The node whose part of the area lies in a region.
    ///
    /// # Panics
    /// If no node's part lies there.
    pub fn node_of(&self, region: RegionId) -> u16 {
        let node = self.bases.iter().position(|base| base.region() == region);
        node.expect("a session's home is one of the table's nodes") as u16
    }

    /// The lines of a node's workers, in its region: the part that clients have to READ.
    pub fn worker_lines_of(&self, node: u16) -> Range<u64> {
        let (base, lines) = (self.base(node).offset(), self.area.worker_lines());
        base + lines.start..base + lines.end
    }

    /// The word that holds a worker's incarnation.
    pub fn incarnation_addr(&self, at: WorkerId) -> RemoteAddr {
        self.base(at.node).add(self.area.incarnation_at(at.worker))
    }

    /// The words that say where a worker receives messages; they follow its incarnation.
    pub fn worker_address_addr(&self, at: WorkerId) -> RemoteAddr {
        self.incarnation_addr(at).add(8)
    }

    /// The bell at which a worker sleeps.
    #[inline]
    pub fn bell_addr(&self, at: WorkerId) -> RemoteAddr {
        self.incarnation_addr(at).add(BELL_AT)
    }

    /// The bell at which the thread of a client sleeps: a word of its session slot.
    #[inline]
    pub fn client_bell_addr(&self, client: u32) -> RemoteAddr {
        let (node, session_slot) = self.area.seat(client);
        session_bell_addr(self.base(node).region(), session_slot)
    }

    /// The first byte of a request slot.
    #[inline]
    pub fn request_addr(&self, at: WorkerId, client: u32, number: u64) -> RemoteAddr {
        self.base(at.node).add(self.area.request_at(at.worker, client, number))
    }

    /// The first byte of a client's reply slot.
    #[inline]
    pub fn reply_addr(&self, client: u32, reply: u16) -> RemoteAddr {
        let (node, session_slot) = self.area.seat(client);
        self.base(node).add(self.area.reply_at(session_slot, reply))
    }
}

const _: () = {
    assert!(size_of::<Service>() == 24);
    assert!(BELL_AT + 8 <= LINE_BYTES);
    // A worker's number among all workers of the cluster has 16 bits in a reply.
    assert!(WORKERS_MAX as usize * NODES_MAX <= 1 << 16);
};

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use proptest::prelude::*;
    use zerocopy::FromBytes;

    use super::*;

    fn service() -> impl Strategy<Value = (Service, u16)> {
        (1u16..4, 1u16..5, 1u16..5, 1u32..5, 2u32..20, 0u32..20, 1u16..4).prop_map(
            |(workers, window, replies, sessions_per_node, request, reply, nodes)| {
                let service = Service {
                    workers,
                    window,
                    replies,
                    sessions_per_node,
                    request_bytes: request * SLOT_ALIGN_BYTES,
                    reply_bytes: reply * SLOT_ALIGN_BYTES,
                    ..Service::default()
                };
                (service, nodes)
            },
        )
    }

    proptest! {
        #[test]
        fn slots_are_aligned_do_not_overlap_and_fill_the_area((service, nodes) in service()) {
            let area = Area::new(service, nodes).unwrap();
            let mut taken = BTreeMap::new();
            for worker in 0..service.workers {
                taken.insert(area.incarnation_at(worker), LINE_BYTES);
                for client in 0..area.clients() {
                    for number in 7..7 + u64::from(service.window) {
                        let at = area.request_at(worker, client, number);
                        if service.request_bytes > 0 {
                            prop_assert!(area.request_slots_of(worker, client).contains(&at));
                        }
                        let before = taken.insert(at, u64::from(service.request_bytes));
                        prop_assert_eq!(before, None);
                        let next = number + u64::from(service.window);
                        let next = area.request_at(worker, client, next);
                        prop_assert_eq!(at, next);
                    }
                }
            }
            for session in 0..service.sessions_per_node {
                for reply in 0..service.replies {
                    let at = area.reply_at(session, reply);
                    prop_assert!(service.reply_bytes == 0 || area.reply_slots().contains(&at));
                    if service.reply_bytes > 0 {
                        let before = taken.insert(at, u64::from(service.reply_bytes));
                        prop_assert_eq!(before, None);
                    }
                }
            }
            let mut end = 0;
            for (at, bytes) in taken {
                prop_assert_eq!(at, end);
                prop_assert!(at.is_multiple_of(u64::from(SLOT_ALIGN_BYTES)));
                end = at + bytes;
            }
            prop_assert_eq!(end, area.bytes());
        }

        #[test]
        fn clients_are_numbered_without_gaps((service, nodes) in service()) {
            let area = Area::new(service, nodes).unwrap();
            let mut next = 0;
            for node in 0..nodes {
                for slot in 0..service.sessions_per_node {
                    prop_assert_eq!(area.client(node, slot), next);
                    prop_assert_eq!(area.seat(next), (node, slot));
                    next += 1;
                }
            }
            prop_assert_eq!(next, area.clients());
        }

        #[test]
        fn a_remainder_is_one(number: u64, window in 1u64..600) {
            prop_assert_eq!(remainder(number, window), number % window);
        }

        #[test]
        fn any_fields_are_refused_or_laid_out(bytes in any::<[u8; 24]>(), nodes: u16) {
            let service = Service::read_from_bytes(&bytes).unwrap();
            if let Ok(area) = Area::new(service, nodes) {
                prop_assert!(area.bytes() <= REQUEST_AREA_BYTES_MAX);
            }
        }
    }

    /// The smallest possible area.
    fn smallest() -> Service {
        Service { workers: 1, window: 1, replies: 1, sessions_per_node: 1, ..Service::default() }
    }

    #[test]
    fn each_field_has_bounds_and_the_error_names_it() {
        type Set = fn(&mut Service, &mut u16, u32);
        let fields: [(&str, Set, &[u32], &[u32]); 7] = [
            ("nodes", |_, nodes, n| *nodes = n as u16, &[1, 256], &[0, 257]),
            ("workers", |it, _, n| it.workers = n as u16, &[1, 256], &[0, 257]),
            ("window", |it, _, n| it.window = n as u16, &[1, 256], &[0, 257]),
            ("replies", |it, _, n| it.replies = n as u16, &[1, 4096], &[0, 4097]),
            ("sessions", |it, _, n| it.sessions_per_node = n, &[1, u32::MAX], &[0]),
            ("request_bytes", |it, _, n| it.request_bytes = n, &[0, 64, 128], &[1, 63, 65, 96]),
            ("reply_bytes", |it, _, n| it.reply_bytes = n, &[0, 64, 128], &[1, 48, 63, 65, 96]),
        ];
        for (name, set, good, bad) in fields {
            for (n, is_good) in good.iter().map(|n| (n, true)).chain(bad.iter().map(|n| (n, false)))
            {
                let (mut service, mut nodes) = (smallest(), 1);
                set(&mut service, &mut nodes, *n);
                match Area::new(service, nodes) {
                    Ok(_) => assert!(is_good, "{name} = {n}"),
                    Err(error) => assert!(!is_good && error.to_string().contains(name), "{error}"),
                }
            }
        }
        let too_many = Service { sessions_per_node: 1 << 31, ..smallest() };
        assert!(Area::new(too_many, 1).is_ok() && Area::new(too_many, 2).is_err());
        for reserved in
            [Service { reserved: 1, ..smallest() }, Service { reserved_too: 1, ..smallest() }]
        {
            assert!(Area::new(reserved, 1).is_err());
        }
    }

    /// A million clients, each with a request slot of the greatest length that fits; one more step
    /// of length does not fit.
    #[test]
    fn an_area_ends_where_the_largest_one_does() {
        let sessions_per_node = 1 << 20;
        let of = |request_bytes, reply_bytes| {
            Area::new(Service { sessions_per_node, request_bytes, reply_bytes, ..smallest() }, 1)
        };
        let most = (REQUEST_AREA_BYTES_MAX >> 20) as u32;
        assert!(of(most, 0).is_err(), "the worker's line has no room");
        assert_eq!(of(most - 64, 0).map(|it| it.bytes()), Ok(64 + (u64::from(most - 64) << 20)));
        assert!(of(most - 64, 64).is_err() && of(most - 128, 64).is_ok());
        let many = Service { workers: 2, window: 3, replies: 5, request_bytes: most, ..smallest() };
        let error = Area::new(Service { sessions_per_node, reply_bytes: 128, ..many }, 1);
        let error = error.unwrap_err().to_string();
        let slots = format!("6291456 request slots of {most} bytes and 5242880 reply slots of 128");
        assert!(error.contains(&slots), "{error}");
    }

    #[test]
    fn places_are_counted_from_the_base_of_their_node() {
        let service = Service {
            workers: 2,
            window: 3,
            replies: 4,
            sessions_per_node: 5,
            request_bytes: 64,
            reply_bytes: 128,
            ..Service::default()
        };
        let area = Area::new(service, 2).unwrap();
        let bases = [(0, 1 << 16), (1, 1 << 20)];
        let bases = bases.map(|(node, at)| RemoteAddr::new(loch_fabric::RegionId(node), at));
        let map = RequestMap::new(area, bases.to_vec());
        let to = WorkerId { node: 1, worker: 1 };
        assert_eq!(map.incarnation_addr(to), bases[1].add(64));
        assert_eq!(map.worker_address_addr(to), bases[1].add(72));
        // The ten clients' slots at the first worker lie before those at the second.
        assert_eq!(map.request_addr(to, 7, 4), bases[1].add(128 + (30 + 7 * 3 + 1) * 64));
        assert_eq!(area.request_slots_of(1, 7), 128 + 51 * 64..128 + 54 * 64);
        // Client 7 is the third client of the second node.
        assert_eq!(map.reply_addr(7, 3), bases[1].add(128 + 60 * 64 + (2 * 4 + 3) * 128));
        assert_eq!(area.reply_slots(), 128 + 60 * 64..area.bytes());
        assert_eq!((area.worker_lines(), area.bytes()), (0..128, 128 + 60 * 64 + 20 * 128));
        let sources = [(0, 0), (0, 1), (1, 0), (1, 1)].map(|(node, w)| area.source(node, w));
        let owner = |source| area.worker(source);
        assert_eq!((area.workers(), owner(1), owner(3)), (4, WorkerId { node: 0, worker: 1 }, to));
        assert_eq!((sources, area.nodes(), *area.service()), ([0, 1, 2, 3], 2, service));
    }

    #[test]
    fn what_is_not_there_has_no_place() {
        let area = Area::new(Service { sessions_per_node: 2, ..smallest() }, 2).unwrap();
        for (node, slot) in [(2, 0), (0, 2)] {
            assert!(std::panic::catch_unwind(|| area.client(node, slot)).is_err());
        }
        for (worker, client) in [(1, 0), (0, 4)] {
            assert!(std::panic::catch_unwind(|| area.request_slots_of(worker, client)).is_err());
        }
        let bases = vec![RemoteAddr::new(loch_fabric::RegionId(0), 0)];
        assert!(std::panic::catch_unwind(|| RequestMap::new(area, bases)).is_err());
    }

    #[test]
    fn slots_have_room_for_the_longest_message() {
        assert_eq!(Service::request_bytes_for(16, 0), Ok(128));
        assert_eq!(Service::reply_bytes_for(0), Ok(64));
        // A message is a multiple of eight bytes long.
        assert_eq!([49, 50].map(|key| Service::request_bytes_for(key, 0)), [Ok(128), Ok(192)]);
        assert_eq!([1, 2].map(Service::reply_bytes_for), [Ok(64), Ok(128)]);
        assert!(Service::reply_bytes_for(1 << 30).is_ok());
        assert!(Service::reply_bytes_for(u64::MAX).is_err());
    }
}
