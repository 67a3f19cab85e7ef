//! The frames of the fabric `tcp`: what a client sends to an agent, and what a node sends to a
//! client.

use std::cell::RefCell;

use loch_fabric::tcp::fuzzing::{
    FuzzAgent, FuzzClient, FuzzWay, KEYS, REGION_BYTES, answer_header, request_header,
};

use crate::input::Input;

thread_local! {
    static AGENT: RefCell<FuzzAgent> = RefCell::new(FuzzAgent::new());
    static CLIENT: RefCell<FuzzClient> = RefCell::new(FuzzClient::new());
}

/// Lengths about which something changes.
const LENGTHS: [u64; 8] = [0, 1, 8, 64, 4096, 16 << 10, (16 << 10) + 1, u32::MAX as u64];

/// Adds the bytes after a header: bytes of the input, or as many as the header says.
fn add_body(to: &mut Vec<u8>, input: &mut Input<'_>, len: u64, byte: u8) {
    let given = usize::from(input.byte());
    match input.below(2) {
        0 => to.extend_from_slice(input.take(given)),
        _ => to.resize(to.len() + len as usize, byte),
    }
}

/// A byte that says whether the rest is frames, and whether it comes in records; in which pieces it
/// comes; and requests, or any bytes.
///
/// # Panics
/// If a client changes what no key of its opens, or the agent does not keep to the protocol.
pub fn tcp_agent(bytes: &[u8]) {
    let mut input = Input::new(bytes);
    let (mode, piece) = (input.byte(), usize::from(input.u16()) + 1);
    let mut sent = Vec::new();
    while mode & 1 == 0 && !input.is_empty() {
        let (verb, flags) = (input.byte() % 7, input.byte() % 4);
        let key = match input.below(5) {
            at @ 0..3 => u64::from(KEYS[at].0),
            _ => input.u64(),
        };
        let (_, grant) = input.pick(&KEYS);
        let offset = match input.below(4) {
            0 => grant.offset,
            1 => grant.offset + u64::from(input.u16()),
            2 => REGION_BYTES.wrapping_sub(input.byte().into()),
            _ => input.u64(),
        };
        let len = match input.below(3) {
            0 => input.pick(&LENGTHS),
            1 => input.byte().into(),
            _ => input.u16().into(),
        };
        sent.extend(request_header([verb.into(), flags.into(), key, offset, len, 0]));
        add_body(&mut sent, &mut input, len.min(64 << 10), 0xA5);
    }
    sent.extend_from_slice(input.rest());
    let way = match mode >> 1 & 3 {
        0 | 1 => FuzzWay::Plain,
        2 => FuzzWay::Sealed,
        _ => FuzzWay::Unsealed,
    };
    AGENT.with_borrow_mut(|agent| agent.receive(&sent, piece, way));
}

/// The same for answers to a client with requests under way.
///
/// # Panics
/// If memory of the client changes that is not for replies, or an operation does not end.
pub fn tcp_client(bytes: &[u8]) {
    let mut input = Input::new(bytes);
    let (mode, piece) = (input.byte(), usize::from(input.u16()) + 1);
    let mut told = Vec::new();
    while mode & 1 == 0 && !input.is_empty() {
        let tag = match input.below(3) {
            0 => input.u64() as u32,
            _ => input.byte().into(),
        };
        let status = input.pick(&[0, 0, 1, 2, 3, 4, 5, 0x100, 0x101, 0x102]);
        let len = match input.below(4) {
            0 => input.pick(&[64, 100, 8, 20_000]),
            1 => input.pick(&LENGTHS),
            2 => input.u64(),
            _ => input.byte().into(),
        };
        told.extend(answer_header(tag, status, len));
        add_body(&mut told, &mut input, len.min(32 << 10), 0x5A);
    }
    told.extend_from_slice(input.rest());
    CLIENT.with_borrow_mut(|client| client.receive(&told, piece));
}
