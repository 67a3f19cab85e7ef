//! Messages in shared memory beyond the trait's promises: which are lost when, processes that are
//! killed and stopped in the middle of sending, and memory with arbitrary bytes.

use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::time::{Duration, Instant};

use loch_fabric::limits::MAIL_MESSAGE_BYTES_MAX;
use loch_fabric::shm::{MailboxShape, Peer, Region, ShmMessages};
use loch_fabric::{Buf, FabricError, MessageAddress, Messages, RegionId, RemoteAddr};
use proptest::prelude::*;

const SHAPE: MailboxShape = MailboxShape::new(9, 8192);
/// The shortest messages that a ring holds.
const RING_RECORDS: u64 = 8192 / 64;
const HERE: RegionId = RegionId(3);

fn region(mailboxes: u64) -> Arc<Region> {
    let region = Region::anonymous(mailboxes * SHAPE.bytes()).expect("a megabyte is free");
    (0..mailboxes).for_each(|number| SHAPE.format(&region, number * SHAPE.bytes()));
    Arc::new(region)
}

fn place(number: u64) -> RemoteAddr {
    RemoteAddr::new(HERE, number * SHAPE.bytes())
}

fn open(region: &Arc<Region>, number: u64) -> ShmMessages {
    ShmMessages::open([(HERE, region.clone())], place(number)).expect("there is a mailbox")
}

fn peer(from: &ShmMessages, to: &ShmMessages) -> Peer {
    from.peer(&to.address()).expect("there is a ring")
}

/// All that has arrived.
fn drain(messages: &ShmMessages) -> Vec<(Peer, Vec<u8>)> {
    let next = || messages.try_receive(Buf::new()).ok();
    std::iter::from_fn(next).map(|(from, buf)| (from, buf.into_vec())).collect()
}

#[test]
fn a_full_ring_loses_what_comes_last_and_no_other() {
    let region = region(3);
    let [a, b, other] = [0, 1, 2].map(|number| open(&region, number));
    let (to_b, other_to_b) = (peer(&a, &b), peer(&other, &b));
    for i in 0..RING_RECORDS + 50 {
        a.send(to_b, &i.to_le_bytes()).expect("it is short");
    }
    assert_eq!(a.lost(), 50);
    other.send(other_to_b, b"beside").expect("it is short");
    let from_a = |all: &[(Peer, Vec<u8>)]| {
        let words = all.iter().filter(|(_, one)| one.len() == 8);
        words.map(|(_, w)| u64::from_le_bytes(w[..].try_into().unwrap())).collect::<Vec<_>>()
    };
    let all = drain(&b);
    assert_eq!(from_a(&all), (0..RING_RECORDS).collect::<Vec<_>>());
    assert_eq!(all.len() as u64, RING_RECORDS + 1, "the other's arrived");
    // There is room again, also for the longest.
    for _ in 0..5 {
        a.send(to_b, &[7; MAIL_MESSAGE_BYTES_MAX]).expect("it is not too long");
        assert_eq!(drain(&b)[0].1, [7; MAIL_MESSAGE_BYTES_MAX]);
    }
    assert_eq!((a.lost(), other.lost()), (50, 0));
}

#[test]
fn a_receiver_that_starts_again_starts_clean_at_its_address() {
    let region = region(2);
    let [a, b] = [0, 1].map(|number| open(&region, number));
    let to_b = peer(&a, &b);
    let address = b.address();
    for round in 0..300u32 {
        a.send(to_b, b"old").expect("it is short");
        if round % 3 == 0 {
            b.try_receive(Buf::new()).ok();
            a.send(to_b, b"older").expect("it is short");
        }
        let b = open(&region, 1);
        assert_eq!(b.address(), address);
        a.send(to_b, &round.to_le_bytes()).expect("it is short");
        let all = drain(&b);
        assert_eq!(all.len(), 1, "{all:?}");
        assert_eq!(all[0].1, round.to_le_bytes());
        // It answers who it heard, though it was never told of them.
        b.send(all[0].0, b"yes").expect("it is short");
        assert_eq!(drain(&a), [(to_b, b"yes".to_vec())]);
    }
    assert_eq!(a.lost(), 0);
}

#[test]
fn a_successor_sends_in_its_predecessor_s_ring() {
    let region = region(2);
    let b = open(&region, 1);
    let mut from = None;
    // Many more than the mailbox has rings.
    for round in 0..100u32 {
        let a = open(&region, 0);
        a.send(peer(&a, &b), &round.to_le_bytes()).expect("it is short");
        let all = drain(&b);
        assert_eq!(all.len(), 1);
        assert_eq!(all[0].1, round.to_le_bytes());
        assert!(from.replace(all[0].0).is_none_or(|before| before == all[0].0));
    }
}

#[test]
fn no_sender_keeps_others_from_the_receiver() {
    let region = region(10);
    let worker = open(&region, 9);
    let clients: Vec<_> = (0..9).map(|number| open(&region, number)).collect();
    let to_worker: Vec<_> = clients.iter().map(|client| peer(client, &worker)).collect();
    let flood = || {
        while clients[0].lost() == 0 {
            clients[0].send(to_worker[0], b"flood").expect("it is short");
        }
    };
    flood();
    for (client, to) in clients.iter().zip(&to_worker).skip(1) {
        client.send(*to, b"one").expect("it is short");
    }
    let mut heard = 0;
    // The first keeps its ring full all the time: two rings' messages hide nobody.
    for _ in 0..2 * RING_RECORDS + 8 {
        let (_, message) = worker.try_receive(Buf::new()).expect("it is flooded");
        heard += u32::from(message[..] == *b"one");
        clients[0].send(to_worker[0], b"flood").expect("it is short");
    }
    assert_eq!(heard, 8);
}

#[test]
fn an_end_without_a_place_is_refused() {
    let region = region(12);
    let all: Vec<_> = (0..12).map(|number| open(&region, number)).collect();
    let worker = all[11].address();
    for client in &all[..9] {
        client.peer(&worker).expect("it has nine rings");
    }
    let full = FabricError::PeersExhausted { max: 9 };
    assert_eq!(all[9].peer(&worker), Err(full));
    assert!(all[8].peer(&worker).is_ok(), "who has one keeps it");
    let open = |at, region: Region| ShmMessages::open([(HERE, Arc::new(region))], at).err();
    let own_fd = || region.fd().try_clone_to_owned().expect("there are free descriptors");
    let map = |writable| Region::from_fd(own_fd(), region.len(), writable).expect("it is mapped");
    assert_eq!(open(place(0), map(false)), Some(FabricError::ReadOnly { at: place(0) }));
    assert_eq!(
        open(RemoteAddr::new(RegionId(1), 0), map(true)),
        Some(FabricError::Unattached { region: RegionId(1) })
    );
    for offset in [8, 64, SHAPE.bytes() - 64, region.len(), region.len() - 64, (1 << 56) - 64] {
        let refused = open(RemoteAddr::new(HERE, offset), map(true));
        assert!(matches!(refused, Some(FabricError::BadAddress { .. })), "{offset}: {refused:?}");
    }
    // A header that claims more than there is.
    for shape in [10u64 << 32, 1, 0, 1 << 32 | 4096, 8192 << 32, u64::MAX, 5 << 44 | 9] {
        region.copy_in(8, &shape.to_le_bytes());
        let refused = open(place(0), map(true));
        assert!(matches!(refused, Some(FabricError::BadAddress { .. })), "{shape:x}: {refused:?}");
    }
}

/// A message whose bytes tell whether it is whole.
fn stamped(number: u64) -> Vec<u8> {
    let len = 16 + number.wrapping_mul(0x9E37_79B9_7F4A_7C15) as usize % 600;
    let mut bytes = number.to_le_bytes().to_vec();
    bytes.resize(len, number as u8 ^ 0x5A);
    bytes
}

fn number_of(message: &[u8]) -> u64 {
    let number = u64::from_le_bytes(message[..8].try_into().expect("it has a number"));
    assert_eq!(message, stamped(number), "a torn message was received");
    number
}

/// Not a test: a sender, in a process of its own, that does not stop.
#[test]
fn the_other_process() {
    let Some(path) = std::env::var_os("LOCH_MAILBOX_FILE") else { return };
    let own: u64 =
        std::env::var("LOCH_MAILBOX_OWN").expect("it is told").parse().expect("a number");
    let region = Arc::new(Region::open(path.as_ref(), true).expect("its parent has made it"));
    let messages = open(&region, own);
    let to = MessageAddress::from_words({
        let mut words = messages.address().words();
        words[0] = place(0).to_word();
        words
    });
    let to = messages.peer(&to).expect("there is a ring");
    // Of two processes with one mailbox the messages can be told apart.
    let mut number = u64::from(std::process::id()) << 32;
    // An orphan ends by itself.
    let until = Instant::now() + Duration::from_secs(60);
    while Instant::now() < until {
        let some = [0, 1, 2, 3].map(|i| stamped(number + i));
        messages.send_all(&some.each_ref().map(|one| (to, &one[..]))).expect("they are short");
        number += 4;
    }
}

struct Sender(Child);

impl Sender {
    fn start(path: &std::path::Path, own: u64) -> Self {
        let this = std::env::current_exe().expect("it is running");
        let child = Command::new(this)
            .args(["--exact", "the_other_process", "--nocapture"])
            .env("LOCH_MAILBOX_FILE", path)
            .env("LOCH_MAILBOX_OWN", own.to_string())
            .stdout(Stdio::null())
            .spawn();
        Self(child.expect("this program runs"))
    }

    fn signal(&self, signal: rustix::process::Signal) {
        let pid = rustix::process::Pid::from_child(&self.0);
        rustix::process::kill_process(pid, signal).expect("it lives");
    }
}

impl Drop for Sender {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Receives for a while, until a message has come from each of so many peers.
fn hear(messages: &ShmMessages, peers: usize) {
    let until = Instant::now() + Duration::from_secs(30);
    let mut last = std::collections::HashMap::new();
    let mut buf = Buf::new();
    let mut count = 0;
    while last.len() < peers || count < 2000 {
        assert!(Instant::now() < until, "{count} messages of {} peers", last.len());
        buf.clear();
        match messages.try_receive(buf) {
            Ok((from, message)) => {
                let number = number_of(&message);
                if let Some(before) = last.insert(from, number) {
                    let is_same_process = number >> 32 == before >> 32;
                    assert!(number > before || !is_same_process, "{number} after {before}");
                }
                count += 1;
                buf = message;
            }
            Err(back) => {
                buf = back;
                std::thread::yield_now();
            }
        }
    }
}

#[test]
fn senders_that_are_killed_and_stopped_harm_nobody() {
    const ROUNDS: u64 = 10;
    let dir = tempfile::tempdir().expect("a temporary directory");
    let path = dir.path().join("region");
    let region = Arc::new(Region::create(&path, 4 * SHAPE.bytes()).expect("there is room"));
    (0..4).for_each(|number| SHAPE.format(&region, number * SHAPE.bytes()));
    let receiver = open(&region, 0);
    let steady = Sender::start(&path, 1);
    for round in 0..ROUNDS {
        let [killed, stopped] = [2, 3].map(|own| Sender::start(&path, own));
        hear(&receiver, 3);
        stopped.signal(rustix::process::Signal::STOP);
        // At another instruction each time: it is dropped after some more messages.
        for _ in 0..round * 7 {
            let _ = receiver.try_receive(Buf::new()).map(|(_, message)| number_of(&message));
        }
        drop(killed);
        hear(&receiver, 1);
        stopped.signal(rustix::process::Signal::CONT);
        hear(&receiver, 2);
    }
    drop(steady);
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 400, ..ProptestConfig::default() })]

    /// Somebody writes what he likes into the mailboxes, but for their headers.
    #[test]
    fn whatever_is_written_nobody_crashes_or_waits_for_ever(
        writes in prop::collection::vec((8u64..2 * SHAPE.bytes() / 8, word()), 1..60),
        seed: u64,
    ) {
        let region = region(2);
        let [a, b] = [0, 1].map(|number| open(&region, number));
        let to_b = peer(&a, &b);
        for (step, (at, word)) in writes.into_iter().enumerate() {
            let number = seed.wrapping_add(step as u64);
            a.send(to_b, &stamped(number)).expect("it is short");
            // The arrays of words are a small part of a mailbox: hit them half of the time.
            let at = if step % 2 == 0 { at } else { at % 2 * (SHAPE.bytes() / 8) + 8 + at % 48 };
            if at * 8 % SHAPE.bytes() >= 64 {
                region.copy_in(at * 8, &word.to_le_bytes());
            }
            let _ = b.try_receive(Buf::new());
            let _ = a.try_receive(Buf::new());
        }
        let _ = (drain(&a), drain(&b));
        // A process that starts again on clean memory works as before.
        (0..2).for_each(|number| SHAPE.format(&region, number * SHAPE.bytes()));
        let [a, b] = [0, 1].map(|number| open(&region, number));
        a.send(peer(&a, &b), b"well").expect("it is short");
        prop_assert_eq!(drain(&b).pop().map(|(_, message)| message), Some(b"well".to_vec()));
    }
}

fn word() -> impl Strategy<Value = u64> {
    let small = 0u64..9000;
    prop_oneof![any::<u64>(), small.clone(), small.prop_map(|w| w * 64), Just(u64::MAX)]
}
