//! Nodes that are silent, and waits of one lane that do not hold up the thread.

use std::cell::Cell;
use std::future::{Future, poll_fn};
use std::io::{Read, Write};
use std::net::{Ipv4Addr, TcpListener, TcpStream};
use std::pin::pin;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};
use std::time::Instant;

use zerocopy::IntoBytes;

use super::{AWAY, BYTES, HOME, Node, PATIENCE, at};
use crate::lanes::block_on;
use crate::limits::{TCP_SILENCE_MAX, TCP_UNAWAITED_BYTES_MAX};
use crate::shm::Region;
use crate::tcp::frame::{HELLO_BYTES, Welcome};
use crate::tcp::pushed::TcpWorker;
use crate::tcp::{Answer, TcpEndpoint};
use crate::{Access, Fabric, FabricError, Granted, Messages, RegionId, RemoteAddr};

/// A node beside the others.
const OTHER: RegionId = RegionId(2);

/// Longer than any thread may be held up, and short for a test.
const LONG_US: u64 = 50_000;
/// Turns that another lane has meanwhile, at least. There are dozens, each after a millisecond at
/// most; a pause that holds the thread up leaves one or two.
const TURNS: u32 = 10;

/// How many turns another lane has during a long pause.
async fn turns_meanwhile(endpoint: &TcpEndpoint) -> u32 {
    let (turns, mut pause) = (Cell::new(0), pin!(endpoint.pause(LONG_US)));
    poll_fn(|cx| {
        turns.set(turns.get() + 1);
        pause.as_mut().poll(cx)
    })
    .await;
    turns.get()
}

#[test]
fn a_long_pause_leaves_other_lanes_their_turns() {
    let node = Node::new();
    let (_accepted, endpoint) = node.endpoint();
    let began = endpoint.now_us();
    let turns = block_on(turns_meanwhile(&endpoint));
    assert!(turns >= TURNS, "{turns} turns in lanes");
    assert!(endpoint.now_us() - began >= LONG_US, "it pauses");
    let mut task = pin!(turns_meanwhile(&endpoint));
    let turns = loop {
        if let Poll::Ready(turns) = task.as_mut().poll(&mut Context::from_waker(Waker::noop())) {
            break turns;
        }
    };
    assert!(turns >= TURNS, "{turns} turns of another executor");
}

/// A node that takes nothing is given up only later. Until then there is as little memory for what
/// nobody awaits as at any time, and the thread does what needs another node.
#[test]
fn a_full_queue_does_not_hold_up_the_thread() {
    let ((endpoint, mut stream), other) = (mute(), Node::new());
    let _accepted = other.connect_as(OTHER, &endpoint);
    let (word, there) = ([7; 64], RemoteAddr::new(OTHER, 0));
    let messages = endpoint.messages();
    let worker = TcpWorker { region: AWAY, mailbox: 0 };
    for number in 0..100 {
        // The system's buffers hold some megabytes, and may grow a little.
        let refused = (0..1 << 20).find_map(|_| endpoint.write_unsignaled(at(0), &word).err());
        assert_eq!(refused, Some(FabricError::Unreachable { region: AWAY }));
        assert_eq!(messages.send(worker, &word), Ok(()), "it is lost");
        assert_eq!(block_on(endpoint.fetch_add(there, 1)), Ok(number), "another node is asked");
    }
    assert!(endpoint.unsent() <= TCP_UNAWAITED_BYTES_MAX + 2 * 64);
    assert!(endpoint.broken().is_empty(), "the thread has not waited until the node is given up");

    // There is room again when the node takes something.
    let taking =
        std::thread::spawn(move || while stream.read(&mut [0; 1 << 16]).is_ok_and(|n| n > 0) {});
    let begun = Instant::now();
    while endpoint.write_unsignaled(at(0), &word).is_err() {
        assert!(begun.elapsed() < PATIENCE);
    }
    drop((endpoint, messages));
    taking.join().unwrap();
}

/// An endpoint whose node has let it in and says nothing more, and the node's side.
fn mute() -> (TcpEndpoint, TcpStream) {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
    let address = listener.local_addr().unwrap();
    let mute = std::thread::spawn(move || {
        let (mut stream, _) = listener.accept().unwrap();
        stream.read_exact(&mut [0; HELLO_BYTES]).unwrap();
        stream.write_all(Welcome::new(Ok(())).as_bytes()).unwrap();
        stream
    });
    let home = Arc::new(Region::anonymous(1 << 16).unwrap());
    let endpoint = TcpEndpoint::new(HOME, home);
    let granted = Granted { offset: 0, len: BYTES, access: Access::Full, address: 0, rkey: 7 };
    let answer = Answer { token: [1; 16], key: None, grants: vec![granted] };
    endpoint.connect(AWAY, BYTES, address, &answer, PATIENCE).unwrap();
    (endpoint, mute.join().unwrap())
}

/// A host that is gone, or a wire that is cut, ends no connection.
#[test]
fn a_node_that_is_silent_is_given_up() {
    let (endpoint, mut stream) = mute();
    let begun = Instant::now();
    let mut word = [0];
    let lost = block_on(endpoint.read_words(&[at(0)], &mut word));
    assert_eq!(lost, Err(FabricError::Unreachable { region: AWAY }), "a READ changes nothing");
    assert!(begun.elapsed() < 3 * TCP_SILENCE_MAX);
    assert_eq!(endpoint.broken(), [AWAY]);
    let refused = endpoint.write_unsignaled(at(0), &[1; 8]);
    assert_eq!(refused, Err(FabricError::Unreachable { region: AWAY }));
    let mut asked = Vec::new();
    assert!(stream.read_to_end(&mut asked).is_ok_and(|bytes| bytes > 0), "it was asked once");
}
