//! The messages between a client and a node, over the node's unix socket.
//!
//! A frame is a length, four bytes little-endian, and so many bytes of JSON, which are one message.
//! The client sends requests, and the node answers each once and in order. The first request is
//! `hello`. Its answer, `welcome`, carries the region's file descriptor (SCM_RIGHTS).
//!
//! ```text
//! client   hello      open_session    close_session     (closes)
//! node       welcome+fd       session            closed
//! ```
//! If the welcome says that the cluster's memory is reached over a network, only the node's own
//! region comes with it. The node is then its client's *broker*: it tells what it knows of the
//! other nodes (`member`), and has them let the client's connections in (`connect`). The node can
//! answer `refused` to any request. Every version must understand `refused`.
//!
//! # Invariants
//! 1. When the connection is closed, the sessions that were opened over it end. A client keeps the
//!    connection open for as long as it uses one of them.
//! 2. Only exact messages of this version are accepted: unknown fields are errors. A `hello` of
//!    another version differs from garbage, whatever else it holds. Requests that only some nodes
//!    offer do not make another version.
//! 3. The memory for a frame is bounded by [`FRAME_BYTES_MAX`] before its bytes arrive.

use std::path::PathBuf;

use loch_engines::region::{Header, TableEntry};
use loch_engines::scan::{Page, Step};
use loch_engines::serve::Report;
use serde::{Deserialize, Serialize};

use crate::Usage;
pub(crate) use crate::layout::facts::MemberFacts;
use crate::limits::{FRAME_BYTES_MAX, TABLES_MAX, TOLD_BYTES_MAX, TOLD_MAX};

/// The version of everything in this module, and of what clients do in shared memory: since version
/// 2 they wake the workers to which they send requests; version 3 names the fabric; version 4 has
/// scans; version 5 tells clients to lock their slots, and readers end with the connection over
/// which they asked.
pub(crate) const PROTOCOL: u32 = 5;

/// A request of a client to its node.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", deny_unknown_fields)]
pub(crate) enum Request {
    /// Tells what the client is.
    Hello {
        /// The [`PROTOCOL`] of the client.
        protocol: u32,
        /// The client's name for the node's log.
        client: String,
        /// Whether the region is to be mapped for reading only.
        read_only: bool,
    },
    /// Asks for a session, which may write.
    OpenSession {},
    /// Ends a session. The client holds nothing in memory any more.
    CloseSession {
        /// The session's slot.
        slot: u32,
        /// The session's incarnation.
        incarnation: u64,
    },
    /// Asks what the node knows of a node.
    Member {
        /// The number of that node.
        node: u16,
    },
    /// Asks for a connection to be let in.
    Connect(Connect),
    /// Asks the workers of a node.
    Ask {
        /// The node. Where memory is not shared, the client's own node asks the others.
        node: u16,
        /// The question.
        question: Question,
    },
}

/// A question to the workers of a table on a node: what they have, or for keys.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Question {
    /// The number of the table in the directory.
    pub table: u32,
    /// Whether the workers verify all that they have. Otherwise they only count it.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub check: bool,
    /// The keys that are asked for.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub scan: Option<WorkerScan>,
}

/// A step of a scan by one worker.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct WorkerScan {
    /// The worker's number on its node.
    pub worker: u16,
    /// The step.
    pub step: Step,
}

/// The answer to a question.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", deny_unknown_fields)]
pub(crate) enum Told {
    /// What the workers have.
    Inspected(Inspected),
    /// The keys that the worker has found.
    Scanned(Page),
}

/// Asks for access to a table's memory on a node.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Connect {
    /// The session that will write, by slot and incarnation. A reader has none.
    pub session: Option<(u32, u64)>,
    /// The secret that seals the session's datagrams. A session needs one for a table with workers.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub secret: Option<SessionSecret>,
    /// The number of the reader among those of the client's connection.
    pub endpoint: u64,
    /// The node with the memory.
    pub node: u16,
    /// The identity of the memory whose layout the client knows.
    pub identity: u64,
    /// The number of the table in the directory.
    pub table: u32,
    /// Whether the connection is for WRITEs that may get lost. A client may have one connection of
    /// each kind.
    pub unreliable: bool,
    /// The client's side of the connection, in the fabric's format.
    pub offer: serde_json::Value,
}

/// A session's secret: random words, which are never printed.
#[derive(Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct SessionSecret(pub [u64; 2]);

impl std::fmt::Debug for SessionSecret {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("SessionSecret(_)")
    }
}

/// A reply of a node to its client.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", deny_unknown_fields)]
pub(crate) enum Reply {
    /// The client may attach. The region's descriptor comes with this message.
    Welcome(Welcome),
    /// The session was opened. The client has to lock its slot ([`slot_lock`](super::slot_lock)).
    Session {
        /// The session's slot.
        slot: u32,
        /// Names the session among all sessions that ever had the slot.
        incarnation: u64,
    },
    /// The session has ended; its slot is free, or will be when the session is fenced. Or the
    /// endpoint is forgotten.
    Closed {},
    /// The facts of a node.
    Member(MemberFacts),
    /// The connection was let in.
    Connected {
        /// The node's side of the connection, in the fabric's format.
        answer: serde_json::Value,
    },
    /// The workers' answer.
    Told(Told),
    /// The request was refused.
    Refused(Refused),
}

/// The data that a node's workers have of a table.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Inspected {
    /// The slots of their indexes.
    pub slots: u64,
    /// The bytes of those slots.
    pub index_bytes: u64,
    /// The bytes that they have for entries.
    pub data_bytes: u64,
    /// The number of entries.
    pub entries: u64,
    /// The bytes of those entries.
    pub entry_bytes: u64,
    /// Broken invariants, in words.
    pub broken: Vec<String>,
}

impl From<Report> for Inspected {
    fn from(report: Report) -> Self {
        let Report { slots, index_bytes, data_bytes, entries, entry_bytes, broken, .. } = report;
        Self { slots, index_bytes, data_bytes, entries, entry_bytes, broken }
    }
}

impl Inspected {
    /// Adds two reports.
    pub fn and(mut self, other: Self) -> Self {
        self.slots += other.slots;
        self.index_bytes += other.index_bytes;
        self.data_bytes += other.data_bytes;
        self.entries += other.entries;
        self.entry_bytes += other.entry_bytes;
        self.broken.extend(other.broken);
        self.broken.truncate(TOLD_MAX);
        self.broken.iter_mut().for_each(shorten);
        self
    }

    /// The same as a table's usage.
    pub fn usage(&self) -> Usage {
        Usage {
            index_bytes: self.index_bytes,
            data_bytes: self.data_bytes,
            entry_bytes: self.entry_bytes,
            entries: self.entries,
            ..Usage::default()
        }
    }
}

/// A message has a bounded length.
fn shorten(text: &mut String) {
    let end = (0..=TOLD_BYTES_MAX.min(text.len())).rev().find(|at| text.is_char_boundary(*at));
    text.truncate(end.unwrap_or(0));
}

/// A node and its memory.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Welcome {
    /// The [`PROTOCOL`] of the node.
    pub protocol: u32,
    /// The node's name.
    pub name: String,
    /// The node's number in the cluster.
    pub node: u16,
    /// The number of nodes of the cluster.
    pub nodes: u16,
    /// The sockets of all nodes, in order, or over a network their addresses.
    pub cluster: Vec<PathBuf>,
    /// The bytes of the region.
    pub region_bytes: u64,
    /// Identifies the memory.
    pub identity: u64,
    /// The number of session slots for clients.
    pub sessions: u32,
    /// The fabric over which memory is reached, where it is not shared.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub medium: Option<MediumChoice>,
    /// Why it is that fabric.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub reason: String,
}

/// The fabric between the machines of a cluster.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", deny_unknown_fields)]
pub(crate) enum MediumChoice {
    /// TCP, to the agents of the nodes.
    Tcp {},
    /// Verbs, over this device.
    Verbs(DeviceChoice),
}

/// The choice of an RDMA device. A field without a value is not chosen.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct DeviceChoice {
    /// The device's name.
    pub name: Option<String>,
    /// The device's port.
    pub port: Option<u8>,
    /// The index of the port's address.
    pub gid_index: Option<u8>,
}

/// A refusal. Other versions understand it, because fields are only ever added.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Refused {
    /// The reason, for programs.
    pub code: Code,
    /// The reason in words.
    pub text: String,
    /// The [`PROTOCOL`] of the node.
    pub protocol: u32,
    /// The address of the node that is the reason, if it is another than the one that refuses.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub at: Option<String>,
}

/// The reason of a refusal, for programs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Code {
    /// The client speaks another version of the protocol.
    Protocol,
    /// The bytes are not a message.
    Garbage,
    /// The message may not come at this time: `hello` comes first, and once.
    Order,
    /// The client is another user's.
    ForeignUser,
    /// All session slots are taken.
    SessionsExhausted,
    /// A client that attached for reading has no session.
    ReadOnly,
    /// There is no such session, or it is another process's.
    NoSuchSession,
    /// The client's process cannot be seen from the node.
    Unseen,
    /// The node listens, but its memory is not there yet.
    Preparing,
    /// The request takes longer, and is under way. The client has to ask again.
    Busy,
    /// Another node cannot be reached now.
    Away,
    /// Another node does not fit into the cluster.
    Misfit,
    /// Another node is of another release.
    Release,
    /// Another node could not prove that it is one, or this node could not prove it.
    Untrusted,
    /// The node has other memory than the client knows.
    OtherMemory,
    /// A reason of a later version.
    #[serde(other)]
    Other,
}

const _: () = {
    // Header and directory are in one frame, in hexadecimal, and little else is.
    let bytes = size_of::<Header>() + TABLES_MAX * size_of::<TableEntry>();
    assert!(2 * bytes + 4096 < FRAME_BYTES_MAX);
};

/// The error of bytes that are not a message.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum WireError {
    /// The announced frame is longer than frames can be.
    #[error("a frame of {len} bytes was announced: a frame has 1 to {FRAME_BYTES_MAX}")]
    Length {
        /// The announced length.
        len: u32,
    },
    /// The frame is not one of the messages.
    #[error("the frame is no message: {text}")]
    Garbage {
        /// The parser's message.
        text: String,
    },
    /// A `hello` of another version.
    #[error("protocol version {theirs} is spoken there, {PROTOCOL} here")]
    Protocol {
        /// The other version.
        theirs: u32,
    },
}

impl Refused {
    pub fn new(code: Code, text: impl Into<String>) -> Self {
        Self { code, text: text.into(), protocol: PROTOCOL, at: None }
    }

    /// Names another node as the reason. The error of a node that cannot be reached begins with the
    /// address, so its text has only the number.
    pub fn of_node(self, node: usize, address: &str) -> Self {
        let text = match self.code {
            Code::Away => format!("node {node}: {}", self.text),
            _ => format!("node {node} at {address}: {}", self.text),
        };
        Self { text, at: Some(address.to_owned()), ..self }
    }
}

impl From<&WireError> for Refused {
    fn from(error: &WireError) -> Self {
        let code = match error {
            WireError::Protocol { .. } => Code::Protocol,
            WireError::Length { .. } | WireError::Garbage { .. } => Code::Garbage,
        };
        Self::new(code, error.to_string())
    }
}

/// Encodes a message as a frame.
pub(crate) fn encode<M: Serialize>(message: &M) -> Vec<u8> {
    let mut frame = vec![0; 4];
    serde_json::to_writer(&mut frame, message)
        .expect("messages have string keys, and paths were checked to be UTF-8");
    let len = (frame.len() - 4) as u32;
    frame[..4].copy_from_slice(&len.to_le_bytes());
    frame
}

/// Decodes the request in a frame.
pub(crate) fn decode_request(frame: &[u8]) -> Result<Request, WireError> {
    let request = serde_json::from_slice(frame);
    match other_version(frame) {
        Some(theirs) if theirs != PROTOCOL => Err(WireError::Protocol { theirs }),
        _ => request.map_err(garbage),
    }
}

/// Decodes the reply in a frame.
pub(crate) fn decode_reply(frame: &[u8]) -> Result<Reply, WireError> {
    serde_json::from_slice(frame).map_err(garbage)
}

fn garbage(error: serde_json::Error) -> WireError {
    WireError::Garbage { text: error.to_string() }
}

/// Reads the version from a `hello` of any version.
fn other_version(frame: &[u8]) -> Option<u32> {
    #[derive(Deserialize)]
    struct AnyHello {
        hello: Version,
    }
    #[derive(Deserialize)]
    struct Version {
        protocol: u32,
    }
    let any: AnyHello = serde_json::from_slice(frame).ok()?;
    Some(any.hello.protocol)
}

/// Cuts a stream of bytes into frames.
#[derive(Debug, Default)]
pub(crate) struct Decoder {
    bytes: Vec<u8>,
}

impl Decoder {
    /// Takes the bytes that came. The caller takes all whole frames out before it gives more, so
    /// the decoder never holds more than a frame and these bytes.
    pub fn push(&mut self, bytes: &[u8]) {
        self.bytes.extend_from_slice(bytes);
    }

    /// Returns the next whole frame.
    ///
    /// # Errors
    /// [`WireError::Length`]; the stream cannot be used after that.
    pub fn next(&mut self) -> Result<Option<Vec<u8>>, WireError> {
        let Some(len) = self.bytes.first_chunk::<4>() else {
            return Ok(None);
        };
        let len = u32::from_le_bytes(*len);
        if len == 0 || len as usize > FRAME_BYTES_MAX {
            return Err(WireError::Length { len });
        }
        let end = 4 + len as usize;
        if self.bytes.len() < end {
            return Ok(None);
        }
        let frame = self.bytes[4..end].to_vec();
        self.bytes.drain(..end);
        Ok(Some(frame))
    }
}

#[cfg(test)]
mod tests {
    use loch_engines::limits::KEY_BYTES_MAX;
    use loch_engines::scan::{Cursor, Key};

    use super::*;
    use loch_engines::operation::Version;
    use proptest::prelude::*;

    fn hello() -> Request {
        Request::Hello { protocol: PROTOCOL, client: "test".into(), read_only: false }
    }

    fn requests() -> Vec<Request> {
        let close = Request::CloseSession { slot: 7, incarnation: u64::MAX };
        let connect = Request::Connect(Connect {
            session: Some((7, u64::MAX)),
            secret: Some(SessionSecret([u64::MAX, 1])),
            endpoint: 1,
            node: 2,
            identity: u64::MAX,
            table: 3,
            unreliable: true,
            offer: serde_json::json!({"qp": u64::MAX}),
        });
        let inspect =
            Request::Ask { node: 1, question: Question { table: 2, check: true, scan: None } };
        let from = Cursor { place: 9, noted: vec![u64::MAX, 2], waited: 3 };
        let step = Step { from, prefix: vec![0, 255] };
        let scan = Some(WorkerScan { worker: 4, step });
        let scan = Request::Ask { node: 1, question: Question { table: 2, check: false, scan } };
        let (open, member) = (Request::OpenSession {}, Request::Member { node: 1 });
        vec![hello(), open, close, member, connect, inspect, scan]
    }

    fn all(decoder: &mut Decoder) -> Result<Vec<Vec<u8>>, WireError> {
        std::iter::from_fn(|| decoder.next().transpose()).collect()
    }

    #[test]
    fn messages_survive_the_trip() {
        for request in requests() {
            assert_eq!(decode_request(&encode(&request)[4..]), Ok(request));
        }
        let welcome = Reply::Welcome(Welcome {
            protocol: PROTOCOL,
            name: "a".into(),
            node: 1,
            nodes: 2,
            cluster: vec!["/a".into(), "/b".into()],
            region_bytes: 1 << 40,
            identity: u64::MAX,
            sessions: 9,
            medium: None,
            reason: String::new(),
        });
        let refused = Reply::Refused(Refused::new(Code::Order, "hello comes first"));
        // The longest key has room in a frame.
        let key = vec![0xab; KEY_BYTES_MAX];
        let key = Key {
            key,
            value_bytes: 1 << 40,
            version: Version::from_u64(u64::MAX),
            expires_at_ms: Some(0),
        };
        let page = Page { keys: vec![key.clone(); 1], next: Some(Cursor::default()) };
        let scanned = Reply::Told(Told::Scanned(page));
        for reply in [welcome, refused, scanned, Reply::Closed {}] {
            assert!(encode(&reply).len() <= FRAME_BYTES_MAX + 4);
            assert_eq!(decode_reply(&encode(&reply)[4..]), Ok(reply));
        }
    }

    #[test]
    fn split_at_every_byte_gives_the_same() {
        let stream: Vec<u8> = requests().iter().flat_map(encode).collect();
        for at in 0..=stream.len() {
            let mut decoder = Decoder::default();
            let mut frames = Vec::new();
            for part in [&stream[..at], &stream[at..]] {
                decoder.push(part);
                frames.extend(all(&mut decoder).unwrap());
            }
            let seen: Vec<_> = frames.iter().map(|f| decode_request(f).unwrap()).collect();
            assert_eq!(seen, requests(), "split at {at}");
        }
        let mut decoder = Decoder::default();
        let mut frames = Vec::new();
        for byte in stream {
            decoder.push(&[byte]);
            frames.extend(all(&mut decoder).unwrap());
        }
        assert_eq!(frames.len(), requests().len());
    }

    #[test]
    fn a_length_out_of_bounds_is_refused_before_its_bytes_come() {
        for len in [0, FRAME_BYTES_MAX as u32 + 1, u32::MAX] {
            let mut decoder = Decoder::default();
            decoder.push(&len.to_le_bytes());
            assert_eq!(decoder.next(), Err(WireError::Length { len }));
        }
    }

    #[test]
    fn other_versions_are_told_apart_from_garbage() {
        let newer = br#"{"hello":{"protocol":9,"client":"x","colours":["red"]}}"#;
        assert_eq!(decode_request(newer), Err(WireError::Protocol { theirs: 9 }));
        for bad in [
            &br#"{"hello":{"protocol":5,"client":"x","read_only":false,"more":1}}"#[..],
            br#"{"open_session":{"more":1}}"#,
            br#"{"open_session":{}} "tail""#,
            br#"{"close_session":{"slot":-1,"incarnation":1}}"#,
            br#"{"dance":{}}"#,
            b"",
            b"\xff\xfe",
        ] {
            let decoded = decode_request(bad);
            assert!(matches!(decoded, Err(WireError::Garbage { .. })), "{decoded:?}");
        }
    }

    #[test]
    fn the_digits_of_a_key_are_hexadecimal_and_come_in_pairs() {
        for bad in ["0", "0g", "\u{e9}0", "+1"] {
            let text =
                format!(r#"{{"from":{{"place":0,"noted":[],"waited":0}},"prefix":"{bad}"}}"#);
            assert!(serde_json::from_str::<Step>(&text).is_err(), "{bad}");
        }
    }

    #[test]
    fn a_refusal_of_a_later_version_is_understood() {
        let later = br#"{"refused":{"code":"full_moon","text":"no","protocol":9,"until":3}}"#;
        let Ok(Reply::Refused(refused)) = decode_reply(later) else {
            panic!("{:?}", decode_reply(later));
        };
        assert_eq!((refused.code, refused.protocol), (Code::Other, 9));
    }

    proptest! {
        #[test]
        fn no_bytes_make_it_panic(bytes: Vec<u8>) {
            let _ = decode_request(&bytes);
            let _ = decode_reply(&bytes);
            let mut decoder = Decoder::default();
            decoder.push(&bytes);
            let _ = all(&mut decoder);
        }
    }
}
