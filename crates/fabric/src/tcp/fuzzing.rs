//! Both parsers of frames, fed with arbitrary bytes: what the fuzz targets need of this module.

use std::io::Write;
use std::os::fd::AsFd;
use std::os::unix::net::UnixStream;
use std::sync::Arc;

use zerocopy::{FromBytes, IntoBytes};

use super::admission::{Client, Replies};
use super::connection::{Connection, Next, Scratch};
use super::frame::{ANSWER_BYTES, AnswerHeader, Hello, Told};
use super::keys::Keys;
use super::lent::{Accepted, Lent, Redeemed, Ticket};
use super::link::{Flight, Link, Then};
use super::noise::Dialing;
use super::pushed::Pushed;
use super::sealed::Broken;
use super::socket::Moved;
use super::stream::{Halves, Outward};
use crate::away::Task;
use crate::away::keys::Remote;
use crate::away::ops::Ops;
use crate::limits::TCP_CHUNK_BYTES;
use crate::rights::{Access, Grant};
use crate::shm::Region;
use crate::{Buf, RegionId, RemoteAddr};

/// Bytes of the regions.
pub const REGION_BYTES: u64 = 64 << 10;
/// The keys, and what they open.
pub const KEYS: [(u32, Grant); 3] = [
    (1, Grant { offset: 16 << 10, len: 16 << 10, access: Access::Full }),
    (2, Grant { offset: 40 << 10, len: 4 << 10, access: Access::ReadAtomic }),
    (3, Grant { offset: 48 << 10, len: 4 << 10, access: Access::Read }),
];
/// More pieces take long, and show nothing new.
const PIECES_MAX: usize = 256;
const SLOTS: Replies = Replies { at: RemoteAddr::new(RegionId(0), 8192), len: 4096 };

/// A node and a client's connection to it.
pub struct FuzzAgent {
    /// The same region without and with encryption.
    lent: [Arc<Lent>; 2],
    scratch: Scratch,
    image: Vec<u8>,
    zeros: Vec<u8>,
}

impl FuzzAgent {
    /// A node that lends [`REGION_BYTES`].
    ///
    /// # Panics
    /// If there is no memory for them.
    pub fn new() -> Self {
        let region = Arc::new(Region::anonymous(REGION_BYTES).expect("some memory"));
        let lent = [false, true].map(|encrypts| Arc::new(Lent::new(region.clone(), encrypts)));
        let zeros = vec![0; REGION_BYTES as usize];
        Self { lent, scratch: Scratch::new(), image: zeros.clone(), zeros }
    }

    /// Lets a client send these bytes on its way, in pieces of `piece`, and end.
    ///
    /// # Panics
    /// If memory changes that no key opens for WRITEs or atomics, if the node sends what is no
    /// frame, or holds more than a few chunks.
    pub fn receive(&mut self, bytes: &[u8], piece: usize, way: FuzzWay) {
        let lent = self.lent[usize::from(way != FuzzWay::Plain)].clone();
        let (theirs, ours) = UnixStream::pair().expect("descriptors");
        theirs.set_nonblocking(true).expect("a socket");
        let (_accepted, mut connection, mut halves) = connected(&lent, ours, way);
        let (mut pieces, mut sent, mut told) =
            (bytes.chunks(piece.max(bytes.len() / PIECES_MAX).max(1)), &[][..], Vec::new());
        loop {
            if sent.is_empty() {
                sent = pieces.next().unwrap_or_default();
            }
            if sent.is_empty() {
                let _ = theirs.shutdown(std::net::Shutdown::Write);
            } else if let Ok(Moved::Bytes(count)) = halves.outward.send(theirs.as_fd(), sent) {
                // Otherwise the node has to take something first.
                sent = &sent[count..];
            }
            let turn = connection.turn(&lent, &mut self.scratch);
            assert!(connection.held_bytes() <= 6 * TCP_CHUNK_BYTES, "{}", connection.held_bytes());
            let mut some = [0; 4096];
            while let Moved::Bytes(count) = halves
                .inward
                .receive(theirs.as_fd(), &mut some)
                .unwrap_or_else(|broken| ended(&broken))
            {
                told.extend_from_slice(&some[..count]);
            }
            match turn {
                Err(_) => break,
                Ok(Next::Worker) => panic!("nobody has a mailbox"),
                Ok(Next::Read | Next::Write | Next::Turn) => (),
            }
        }
        are_frames(&told);
        lent.region.copy_out(0, &mut self.image);
        for (_, grant) in KEYS.iter().filter(|(_, it)| it.access.includes(Access::ReadAtomic)) {
            let open = grant.offset as usize..(grant.offset + grant.len) as usize;
            lent.region.copy_in(grant.offset, &self.zeros[open.clone()]);
            self.image[open.clone()].copy_from_slice(&self.zeros[open]);
        }
        assert!(self.image == self.zeros, "what no key opens has changed");
    }
}

impl Default for FuzzAgent {
    fn default() -> Self {
        Self::new()
    }
}

/// How the bytes of a client come to its node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FuzzWay {
    /// As they are.
    Plain,
    /// In records.
    Sealed,
    /// As they are, on a connection that is encrypted.
    Unsealed,
}

/// A client's connection, and the client's ways.
fn connected(lent: &Arc<Lent>, socket: UnixStream, way: FuzzWay) -> (Accepted, Connection, Halves) {
    let client = Client { grants: &[], replies: None, bells: Vec::new(), seat: None };
    let (accepted, Ticket { token, key }) = lent.admit(Keys::of(&KEYS), client);
    let hello = Hello::new(token, key.is_some());
    let begun = key.map(|key| Dialing::begin(&key, hello.as_bytes()));
    let asked = begun.as_ref().map(|(_, message)| message);
    let redeemed = lent.redeem(&token, &hello, asked).unwrap_or_else(|why| panic!("{why}"));
    let Redeemed { client, answer, halves } = redeemed;
    let connection = Connection::new(Arc::new(socket.into()), client, halves, &[]);
    let mut theirs = match (begun, answer) {
        (Some((dialing, _)), Some(answer)) => dialing.end(&answer).expect("they have one key"),
        _ => Halves::plain(),
    };
    if way == FuzzWay::Unsealed {
        theirs.outward = Outward::Plain;
    }
    (accepted, connection.expect("nobody has fenced the client"), theirs)
}

/// The node has ended the connection. It never sends bad records.
fn ended(broken: &Broken) -> Moved {
    assert!(matches!(broken, Broken::Io(_)), "{broken}");
    Moved::End
}

/// Checks that a node has sent frames, of which the last may be a part.
fn are_frames(mut told: &[u8]) {
    while let Ok((header, rest)) = AnswerHeader::read_from_prefix(told) {
        let len = match Told::parse(&header).expect("a node keeps to the protocol") {
            Told::Answer(answer) => answer.result.unwrap_or(0),
            Told::Write { len, .. } | Told::Message { len, .. } => len,
        };
        told = rest.get(len as usize..).unwrap_or_default();
    }
}

/// A client with reply slots.
pub struct FuzzClient {
    home: Arc<Region>,
    scratch: Vec<u8>,
    image: Vec<u8>,
    zeros: Vec<u8>,
}

impl FuzzClient {
    /// A client whose home region has [`REGION_BYTES`].
    ///
    /// # Panics
    /// If there is no memory for them.
    pub fn new() -> Self {
        let home = Arc::new(Region::anonymous(REGION_BYTES).expect("some memory"));
        let zeros = vec![0; REGION_BYTES as usize];
        Self { home, scratch: vec![0; TCP_CHUNK_BYTES], image: zeros.clone(), zeros }
    }

    /// Lets the client, with requests under way, receive these bytes, in pieces of `piece`.
    ///
    /// # Panics
    /// If its home region changes outside of its reply slots, if a READ brings more than was asked
    /// for, or an operation does not end.
    pub fn receive(&mut self, bytes: &[u8], piece: usize) {
        answers(bytes, piece, &self.home, &mut self.scratch);
        self.home.copy_out(0, &mut self.image);
        let slots = SLOTS.at.offset() as usize..(SLOTS.at.offset() + u64::from(SLOTS.len)) as usize;
        self.home.copy_in(SLOTS.at.offset(), &self.zeros[slots.clone()]);
        self.image[slots.clone()].copy_from_slice(&self.zeros[slots]);
        assert!(self.image == self.zeros, "a byte outside of the reply slots has changed");
    }
}

impl Default for FuzzClient {
    fn default() -> Self {
        Self::new()
    }
}

fn answers(bytes: &[u8], piece: usize, home: &Arc<Region>, scratch: &mut [u8]) {
    let (ours, mut theirs) = UnixStream::pair().expect("descriptors");
    ours.set_nonblocking(true).expect("a socket");
    let mut pushed = Pushed::new(home.clone(), RegionId(0));
    pushed.replies = Some(SLOTS);
    let mut ops = Ops::default();
    let mut link = Link::new(ours.into(), Halves::plain(), REGION_BYTES);
    let (at, to) = (RemoteAddr::new(RegionId(1), 0), Remote { address: 0, rkey: 1 });
    let tasks = [
        (Task::Words(0), 64),
        (Task::Append, 100),
        (Task::CompareSwap { expect: 1, new: 2 }, 8),
        (Task::Append, 20_000),
        (Task::FetchAdd { add: 1 }, 8),
    ];
    let all = tasks.map(|(task, len)| {
        let op = ops.add(1, false);
        ops.lend(op, Buf::new());
        let flight = Flight { number: 0, op: Some(op), task: Then::Verb(task), at, len };
        link.push(flight, to, 0, &[], &mut ops);
        (op, len)
    });
    link.send(&mut ops).expect("the socket has room");
    for piece in bytes.chunks(piece.max(bytes.len() / PIECES_MAX).max(1)) {
        if theirs.write_all(piece).is_err() || link.receive(&mut ops, &mut pushed, scratch).is_err()
        {
            break;
        }
        while pushed.take().is_some() {}
    }
    for (op, len) in all {
        assert!(ops.get(op).buf.len() <= len, "more than was asked for");
    }
    link.break_off(&mut ops);
    for (op, _) in all {
        assert!(ops.outcome(op).is_some(), "an operation does not end");
    }
}

/// Bytes of a request's header.
pub fn request_header(fields: [u64; 6]) -> Vec<u8> {
    let [verb, flags, key, offset, len, tag] = fields;
    let mut header = vec![verb as u8, flags as u8, 0, 0];
    header.extend((key as u32).to_le_bytes());
    header.extend(offset.to_le_bytes());
    header.extend((len as u32).to_le_bytes());
    header.extend((tag as u32).to_le_bytes());
    header
}

/// Bytes of an answer's header.
pub fn answer_header(tag: u32, status: u32, len: u64) -> [u8; ANSWER_BYTES] {
    let mut header = [0; ANSWER_BYTES];
    header[..4].copy_from_slice(tag.as_bytes());
    header[4..8].copy_from_slice(status.as_bytes());
    header[8..].copy_from_slice(len.as_bytes());
    header
}
