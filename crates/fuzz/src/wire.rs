//! The socket protocol, in both directions: however the bytes are split they mean the same; what is
//! understood survives the trip; what is not is refused, once, and nothing is read after it.

use std::cell::RefCell;

use loch::fuzzing::{FRAME_BYTES_MAX, FuzzNode, attach, frames, reply, request};

use crate::input::Input;

/// A stream up to this length is also split at every byte.
const SPLIT_EVERYWHERE_MAX: usize = 512;

thread_local! {
    static NODE: RefCell<FuzzNode> = RefCell::new(FuzzNode::new().expect("4 MiB of memory"));
}

/// A byte that says how to read them, and bytes that a client or a node sends.
///
/// # Panics
/// If something is understood in two ways, or a node answers what no client understands.
pub fn wire(bytes: &[u8]) {
    let mut input = Input::new(bytes);
    let mode = input.byte();
    let cut = input.u16() as usize;
    // Most bytes are no frames: lines may stand for them, so that messages are found sooner.
    let stream = if mode & 1 == 0 { input.rest().to_vec() } else { framed(input.rest()) };
    let whole = frames(std::iter::once(&stream[..]));
    for frame in &whole.0 {
        assert!((1..=FRAME_BYTES_MAX).contains(&frame.len()), "a frame of {} bytes", frame.len());
        survives(frame, request);
        survives(frame, reply);
    }
    let at = cut % (stream.len() + 1);
    let (head, tail) = stream.split_at(at);
    assert_eq!(frames([head, tail].into_iter()), whole, "split at {at}");
    if stream.len() <= SPLIT_EVERYWHERE_MAX {
        assert_eq!(frames(stream.chunks(1)), whole, "a byte at a time");
    }
    if mode & 2 == 0 {
        exchange(&stream, at);
    } else {
        let _ = attach(&stream);
    }
}

/// Each line as a frame.
fn framed(bytes: &[u8]) -> Vec<u8> {
    let lines = bytes.split(|b| *b == b'\n');
    lines.flat_map(|line| [&(line.len() as u32).to_le_bytes(), line].concat()).collect()
}

fn survives(frame: &[u8], read: impl Fn(&[u8]) -> Result<Vec<u8>, String>) {
    if let Ok(written) = read(frame) {
        assert_eq!(read(&written[4..]), Ok(written.clone()), "a message survives the trip");
    }
}

/// A client that sends the stream to a node, at once and in two parts.
fn exchange(stream: &[u8], at: usize) {
    let (once, twice) = NODE.with_borrow_mut(|node| {
        let (head, tail) = stream.split_at(at);
        (node.exchange(std::iter::once(stream)), node.exchange([head, tail].into_iter()))
    });
    let answers = |(bytes, closed): &(Vec<u8>, bool)| {
        let (answers, wrong) = frames(std::iter::once(&bytes[..]));
        assert_eq!(wrong, None, "a node sends frames");
        let said: Vec<bool> = answers.iter().map(|a| reply(a).is_ok()).collect();
        assert!(said.iter().all(|understood| *understood), "a node sends replies");
        (said.len(), *closed)
    };
    assert_eq!(answers(&once), answers(&twice), "split at {at}");
}
