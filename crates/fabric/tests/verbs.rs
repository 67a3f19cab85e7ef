//! The verbs backend's promises beyond the trait: rights, the fence, errors, and what happens
//! when more is posted than fits. Needs an RDMA device; `vm/run` makes one.

#![cfg(feature = "verbs")]

#[allow(dead_code, reason = "the suites share it")]
mod backends;
#[allow(dead_code, reason = "the suites share it")]
mod tools;

use std::io::{BufRead, Write};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use backends::verbs::{Node, device};
use backends::{BYTES, all};
use loch_fabric::lanes::{block_on, run};
use loch_fabric::verbs::{
    Accepted, Access, Address, Answer, Datagrams, Device, DeviceError, Grant, Selection, Transport,
    VerbsEndpoint, VerbsError, survey,
};
use loch_fabric::{Buf, Fabric, FabricError, Messages, RegionId, RemoteAddr, UnreliableWrites};
use tools::{HERE, THERE, at, bytes, pattern, put, settle, word};

/// Two nodes, and an endpoint whose home is the first.
struct Pair {
    device: Arc<Device>,
    here: Node,
    there: Node,
    f: VerbsEndpoint,
}

/// `None` on a machine without a device.
fn pair() -> Option<Pair> {
    let device = device()?;
    let (here, there) = (Node::new(&device), Node::new(&device));
    let f = VerbsEndpoint::new(device.clone(), HERE, here.region.clone()).expect("there is room");
    Some(Pair { device, here, there, f })
}

impl Pair {
    fn connect(&self, grants: &[Grant]) -> Accepted {
        self.there.accept(&self.f, THERE, grants)
    }

    /// Connects with an answer that says what is not so.
    fn connect_with(&self, grants: &[Grant], lie: impl FnOnce(&mut Answer)) -> Accepted {
        let offer = self.f.offer(THERE).expect("there is room");
        let (accepted, mut answer) = self.there.host.accept(&offer, grants).expect("it is sound");
        lie(&mut answer);
        self.f.connect(THERE, BYTES, &answer).expect("the lie cannot be seen");
        accepted
    }

    fn another(&self) -> VerbsEndpoint {
        let region = self.here.region.clone();
        VerbsEndpoint::new(self.device.clone(), HERE, region).expect("there is room")
    }
}

/// Three ranges with different rights, and nothing from 12 KiB on.
fn ladder() -> [Grant; 3] {
    let grant = |index: u64, access| Grant { offset: index * 4096, len: 4096, access };
    [grant(0, Access::Read), grant(1, Access::ReadAtomic), grant(2, Access::Full)]
}

/// An answer's grants, all of them said to be rights to everything.
fn all_full(answer: &mut Answer) {
    answer.grants.iter_mut().for_each(|granted| granted.access = Access::Full);
}

#[test]
fn rights_are_checked_before_anything_is_posted() {
    let Some(pair) = pair() else { return };
    let _accepted = pair.connect(&ladder());
    let f = &pair.f;
    block_on(async {
        let (read, atomic, full, none) =
            (at(THERE, 64), at(THERE, 4096), at(THERE, 8192), at(THERE, 3 * 4096));
        assert_eq!((word(f, read).await, word(f, atomic).await, word(f, full).await), (0, 0, 0));
        assert_eq!(f.fetch_add(full, 1).await, Ok(0));
        assert_eq!(f.fetch_add(atomic, 1).await, Ok(0));
        assert_eq!(f.fetch_add(read, 1).await, Err(FabricError::ReadOnly { at: read }));
        put(f, full, &[1; 4096]).await;
        for at in [read, atomic, at(THERE, 8100)] {
            let refused = Err(FabricError::ReadOnly { at });
            assert_eq!(f.write(at, Buf::from(vec![1; 300])).await.1, refused);
            assert_eq!(f.write_unsignaled(at, &[1; 8]), refused);
        }
        let outside = |at| Err(FabricError::AccessDenied { at });
        assert_eq!(f.read(none, 8, Buf::new()).await.1, outside(none));
        assert_eq!(f.fetch_add(none, 1).await, outside(none).map(|()| 0));
        let across = at(THERE, 3 * 4096 - 8);
        assert_eq!(f.read(across, 9, Buf::new()).await.1, outside(across));
        assert_eq!(bytes(f, at(THERE, 4000), 8000).await.len(), 8000, "READs cross keys");
        assert!(f.broken().is_empty(), "no card was asked");
    });
}

/// A verb that the peer's card refuses changes nothing, and breaks the connection, which can be
/// made again.
async fn is_denied<T: std::fmt::Debug + PartialEq>(
    pair: &Pair,
    verb: impl Future<Output = Result<T, FabricError>>,
    at: RemoteAddr,
) {
    let words = || (0..64).map(|i| pair.there.region.word(i * 4096).load(Ordering::Acquire));
    let before: Vec<u64> = words().collect();
    assert_eq!(verb.await, Err(FabricError::AccessDenied { at }));
    assert_eq!(pair.f.broken(), [THERE]);
    assert!(pair.f.is_settled(pair.f.posted()), "it was refused, which is no unknown outcome");
    let gone = Err(FabricError::Unreachable { region: THERE });
    assert_eq!(pair.f.read(at, 1, Buf::new()).await.1, gone);
    assert!(words().eq(before), "nothing was changed");
    let _accepted = pair.connect(&all(Access::Full));
    assert!(pair.f.broken().is_empty());
    assert_eq!(pair.f.fetch_add(tools::at(THERE, BYTES - 8), 1).await.map(drop), Ok(()));
}

#[test]
fn the_card_enforces_rights_whatever_is_posted() {
    let Some(pair) = pair() else { return };
    block_on(async {
        let (read, atomic) = (at(THERE, 0), at(THERE, 4096));
        let _accepted = pair.connect_with(&ladder(), all_full);
        is_denied(&pair, async { pair.f.write(read, Buf::from(vec![1; 9])).await.1 }, read).await;
        let _accepted = pair.connect_with(&ladder(), all_full);
        is_denied(&pair, pair.f.compare_swap(read, 0, 1), read).await;
        let _accepted = pair.connect_with(&ladder(), all_full);
        is_denied(&pair, async { pair.f.write(atomic, Buf::from(vec![1; 9])).await.1 }, atomic)
            .await;
        // A queue pair of which no key allows it refuses before it looks at the key.
        let _accepted = pair.connect_with(&all(Access::Read), all_full);
        is_denied(&pair, pair.f.fetch_add(read, 1), read).await;
        let _accepted = pair.connect_with(&all(Access::Read), all_full);
        is_denied(&pair, async { pair.f.write(read, Buf::from(vec![1; 9])).await.1 }, read).await;
    });
}

#[test]
fn a_key_ends_where_its_range_ends() {
    let Some(pair) = pair() else { return };
    block_on(async {
        let grants = [Grant { offset: 4096, len: 100, access: Access::Full }];
        let longer = |answer: &mut Answer| answer.grants[0].len = 4096;
        let earlier = |answer: &mut Answer| {
            answer.grants[0].offset -= 8;
            answer.grants[0].address -= 8;
        };
        let _accepted = pair.connect_with(&grants, longer);
        assert_eq!(bytes(&pair.f, at(THERE, 4096), 100).await, [0; 100]);
        let last = at(THERE, 4096 + 99);
        is_denied(&pair, async { pair.f.read(last, 2, Buf::new()).await.1 }, last).await;
        let _accepted = pair.connect_with(&grants, earlier);
        let first = at(THERE, 4088);
        is_denied(&pair, async { pair.f.write(first, Buf::from(vec![1; 16])).await.1 }, first)
            .await;
    });
}

#[test]
fn a_key_of_another_set_of_grants_opens_nothing() {
    let Some(pair) = pair() else { return };
    block_on(async {
        let other = pair.another();
        let offer = other.offer(THERE).expect("there is room");
        let (_other, answer) = pair.there.host.accept(&offer, &all(Access::Full)).expect("sound");
        let key = answer.grants[0].rkey;
        let reads = all(Access::Read);
        let _accepted = pair.connect_with(&reads, |answer| answer.grants[0].rkey = key);
        let place = at(THERE, 0);
        is_denied(&pair, async { pair.f.read(place, 8, Buf::new()).await.1 }, place).await;
    });
}

/// A bound for what has to be noticed within a second, on a machine that is emulated.
const NOTICED: Duration = Duration::from_secs(5);

#[test]
fn what_is_posted_behind_the_fence_is_not_executed() {
    let Some(pair) = pair() else { return };
    let f = &pair.f;
    block_on(async {
        let accepted = pair.connect(&all(Access::Full));
        assert_eq!(f.fetch_add(at(THERE, 0), 1).await, Ok(0));
        drop(accepted);
        let began = Instant::now();
        let mark = f.posted();
        f.write_unsignaled(at(THERE, 8), &[1; 8]).expect("it is not known yet");
        let unknown = FabricError::OutcomeUnknown { at: at(THERE, 0) };
        assert_eq!(f.fetch_add(at(THERE, 0), 1).await, Err(unknown));
        assert!(began.elapsed() < NOTICED, "after {:?}", began.elapsed());
        assert_eq!(f.broken(), [THERE]);
        let gone = FabricError::Unreachable { region: THERE };
        assert_eq!(f.write_unsignaled(at(THERE, 8), &[1; 8]), Err(gone));
        assert!(f.is_settled(mark) && !f.is_settled(f.posted()), "nobody knows here");
        let _accepted = pair.connect(&all(Access::Full));
        assert!(f.is_settled(f.posted()), "now nobody executes it any more");
        assert_eq!((word(f, at(THERE, 0)).await, word(f, at(THERE, 8)).await), (1, 0));
    });
}

#[test]
fn the_fence_holds_against_a_peer_that_does_not_stop() {
    let Some(pair) = pair() else { return };
    let (stop, words) = (AtomicBool::new(false), || {
        [0, 8, 4096, 8192].map(|offset| pair.there.region.word(offset).load(Ordering::Acquire))
    });
    for _ in 0..5 {
        let accepted = pair.connect(&all(Access::Full));
        stop.store(false, Ordering::Release);
        let f = pair.another();
        let hammering = pair.there.accept(&f, THERE, &all(Access::Full));
        std::thread::scope(|scope| {
            let (stop, began) = (&stop, words());
            scope.spawn(move || {
                for i in 1u64.. {
                    // It goes on for as long as it is let.
                    let posted = f.write_unsignaled(at(THERE, 0), &i.to_le_bytes());
                    drop(f.write(at(THERE, 4096), Buf::from(vec![i as u8; 8192])));
                    drop(f.fetch_add(at(THERE, 8), 1));
                    block_on(f.pause(0));
                    if posted.is_err() || stop.load(Ordering::Acquire) {
                        break;
                    }
                }
            });
            let until = Instant::now() + NOTICED;
            while words() == began {
                assert!(Instant::now() < until, "nothing was executed at all");
                std::thread::yield_now();
            }
            drop(hammering);
            let cut = words();
            let until = Instant::now() + Duration::from_millis(50);
            while Instant::now() < until {
                assert_eq!(words(), cut, "something was executed behind the fence");
                std::thread::yield_now();
            }
            stop.store(true, Ordering::Release);
        });
        drop(accepted);
    }
}

#[test]
fn unreliable_writes_to_nobody_break_nothing() {
    let Some(pair) = pair() else { return };
    let f = &pair.f;
    block_on(async {
        let _reliable = pair.connect(&all(Access::Full));
        let over =
            |grants: &[Grant]| pair.there.accept_over(Transport::Unreliable, f, THERE, grants);
        let unreliable = over(&all(Access::Full));
        f.write_unreliable(at(THERE, 0), &[1; 8]).expect("it is in bounds");
        settle_slowly(f).await;
        assert_eq!(word(f, at(THERE, 0)).await, u64::from_le_bytes([1; 8]));
        drop(unreliable);
        for _ in 0..300 {
            f.write_unreliable(at(THERE, 0), &[2; 8]).expect("nobody tells");
        }
        settle_slowly(f).await;
        assert!(f.broken().is_empty());
        assert_eq!(word(f, at(THERE, 0)).await, u64::from_le_bytes([1; 8]), "it was cut off");
        let _unreliable = over(&all(Access::Read));
        let refused = Err(FabricError::ReadOnly { at: at(THERE, 0) });
        assert_eq!(f.write_unreliable(at(THERE, 0), &[3; 8]), refused);
        let _unreliable = over(&all(Access::Full));
        f.write_unreliable(at(THERE, 0), &[4; 8]).expect("it is in bounds");
        settle_slowly(f).await;
        assert_eq!(word(f, at(THERE, 0)).await, u64::from_le_bytes([4; 8]));
    });
}

/// As [`settle`], for what may linger in the network.
async fn settle_slowly(f: &VerbsEndpoint) {
    let mark = f.posted();
    for _ in 0..1000 {
        if f.is_settled(mark) {
            return;
        }
        f.pause(1000).await;
    }
    panic!("a WRITE is under way for ever");
}

#[test]
fn datagrams_that_find_no_room_are_lost_and_no_others() {
    let Some(device) = device() else { return };
    let [a, b] = [0, 1].map(|_| Datagrams::new(&device).expect("there is room"));
    let to_b = a.peer(&b.address()).expect("it is near");
    for i in 0..2000u32 {
        a.send(to_b, &i.to_le_bytes()).expect("it is short");
    }
    block_on(async {
        let mut last = None;
        let mut count = 0;
        a.send(to_b, b"end").expect("it is short");
        // The first messages were kept. The last may be lost, so it is sent until it arrives.
        loop {
            let (_, message) = b.receive(Buf::new()).await;
            if message[..] == *b"end" {
                break;
            }
            let number = u32::from_le_bytes(message[..].try_into().expect("a word"));
            assert!(last.is_none_or(|last| number > last), "{number} after {last:?}");
            last = Some(number);
            count += 1;
            a.send(to_b, b"end").expect("it is short");
        }
        assert!(count >= 100, "{count} were kept");
    });
    let bad = |address: Address| assert!(a.peer(&address).is_err(), "{address:?}");
    bad(Address { qp_number: 1 << 24, ..b.address() });
    bad(Address { gid: [0; 16], lid: 0, ..b.address() });
    // Another's key is dropped by the card.
    let stranger = Address { qkey: 7, ..b.address() };
    let stranger = a.peer(&stranger).expect("it cannot be seen");
    a.send(stranger, b"psst").expect("it is short");
    a.send(to_b, b"hello").expect("it is short");
    loop {
        let (_, message) = block_on(b.receive(Buf::new()));
        assert_ne!(&message[..], b"psst");
        if message[..] == *b"hello" {
            break;
        }
    }
}

#[test]
fn an_endpoint_that_is_dropped_takes_its_verbs_with_it() {
    let Some(pair) = pair() else { return };
    for _ in 0..10 {
        let f = pair.another();
        let _accepted = pair.there.accept(&f, THERE, &all(Access::Full));
        for _ in 0..200 {
            drop(f.read(at(THERE, 0), 9000, Buf::new()));
            drop(f.fetch_add(at(THERE, 0), 1));
        }
    }
    let _accepted = pair.connect(&all(Access::Full));
    assert!(block_on(word(&pair.f, at(THERE, 0))) <= 2000);
}

/// Not a test: the node of the test below, in a process of its own.
#[test]
fn the_other_process() {
    if std::env::var_os("LOCH_VERBS_NODE").is_none() {
        return;
    }
    let node = Node::new(&device().expect("the parent has one"));
    let mut accepted = Vec::new();
    for line in std::io::stdin().lines() {
        let offer = serde_json::from_str(&line.expect("it is text")).expect("it is an offer");
        let made = node.host.accept(&offer, &all(Access::Full)).expect("it is sound");
        println!("ANSWER {}", serde_json::to_string(&made.1).expect("it is plain data"));
        accepted.push(made.0);
    }
}

/// A node in a process of its own, which dies when this is dropped.
struct Process {
    child: std::process::Child,
    said: std::io::Lines<std::io::BufReader<std::process::ChildStdout>>,
}

impl Process {
    fn start() -> Self {
        let this = std::env::current_exe().expect("it is running");
        let mut child = std::process::Command::new(this)
            .args(["--exact", "the_other_process", "--nocapture"])
            .env("LOCH_VERBS_NODE", "1")
            .stdin(std::process::Stdio::piped())
            .stdout(std::process::Stdio::piped())
            .spawn()
            .expect("this program runs");
        let said = std::io::BufReader::new(child.stdout.take().expect("it was piped")).lines();
        Self { child, said }
    }

    fn connect(&mut self, f: &VerbsEndpoint) {
        let offer = f.offer(THERE).expect("there is room");
        let stdin = self.child.stdin.as_mut().expect("it was piped");
        writeln!(stdin, "{}", serde_json::to_string(&offer).expect("plain data"))
            .expect("it lives");
        let lines = self.said.by_ref().map(|line| line.expect("it is text"));
        // The test harness writes before it, on the same line.
        let mut answers = lines.filter_map(|l| l.split_once("ANSWER ").map(|(_, a)| a.to_owned()));
        let answer = answers.next().expect("it answers");
        let answer = serde_json::from_str(&answer).expect("it is an answer");
        f.connect(THERE, BYTES, &answer).expect("it is sound");
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

#[test]
fn a_node_that_died_is_noticed_and_its_successor_reached() {
    let Some(pair) = pair() else { return };
    let f = &pair.f;
    let mut process = Process::start();
    process.connect(f);
    block_on(async {
        assert_eq!(f.fetch_add(at(THERE, 0), 1).await, Ok(0));
        drop(process);
        let began = Instant::now();
        let (first, second) = (f.fetch_add(at(THERE, 0), 1), f.read(at(THERE, 0), 99, Buf::new()));
        let unknown = FabricError::OutcomeUnknown { at: at(THERE, 0) };
        let unreachable = FabricError::Unreachable { region: THERE };
        assert_eq!((first.await, second.await.1), (Err(unknown), Err(unreachable)), "it READs");
        assert!(began.elapsed() < NOTICED, "after {:?}", began.elapsed());
        assert_eq!(f.broken(), [THERE]);
        assert!(!f.is_settled(f.posted()));
    });
    let mut process = Process::start();
    process.connect(f);
    block_on(async {
        assert!(f.broken().is_empty() && f.is_settled(f.posted()));
        assert_eq!(f.fetch_add(at(THERE, 0), 1).await, Ok(0), "its memory is new");
    });
}

#[test]
fn what_was_not_sent_is_known_not_to_be_executed() {
    let Some(pair) = pair() else { return };
    let f = &pair.f;
    const MANY: usize = 1000;
    block_on(async {
        let accepted = pair.connect(&all(Access::Full));
        drop(accepted);
        let adds: Vec<_> = (0..MANY).map(|_| f.fetch_add(at(THERE, 0), 1)).collect();
        let (mut unknown, mut unreachable) = (0, 0);
        for add in adds {
            match add.await {
                Err(FabricError::OutcomeUnknown { at: place }) if place == at(THERE, 0) => {
                    assert_eq!(unreachable, 0, "in order");
                    unknown += 1;
                }
                Err(FabricError::Unreachable { region: THERE }) => unreachable += 1,
                other => panic!("{other:?}"),
            }
        }
        assert_eq!(unknown + unreachable, MANY);
        assert!((1..MANY / 2).contains(&unknown), "{unknown} fit into the send queue");
        // All that they used is free again: as many fit as before.
        let _accepted = pair.connect(&all(Access::Full));
        let adds: Vec<_> = (0..MANY).map(|_| f.fetch_add(at(THERE, 0), 1)).collect();
        for (i, add) in adds.into_iter().enumerate() {
            assert_eq!(add.await, Ok(i as u64), "those before were not executed");
        }
    });
}

#[test]
fn a_connection_that_works_can_be_replaced() {
    let Some(pair) = pair() else { return };
    let f = &pair.f;
    block_on(async {
        let first = pair.connect(&all(Access::Full));
        for round in 0..5 {
            let add = f.fetch_add(at(THERE, 0), 1);
            // The offer alone changes nothing.
            let offer = f.offer(THERE).expect("there is room");
            assert_eq!(f.fetch_add(at(THERE, 8), 1).await, Ok(round));
            assert_eq!(add.await, Ok(round));
            let (again, answer) =
                pair.there.host.accept(&offer, &all(Access::Full)).expect("sound");
            f.connect(THERE, BYTES, &answer).expect("it is sound");
            assert!(f.broken().is_empty());
            std::mem::forget(again);
        }
        drop(first);
        assert_eq!(word(f, at(THERE, 0)).await, 5);
    });
}

#[test]
fn more_than_fits_waits_and_is_posted() {
    let Some(pair) = pair() else { return };
    let f = &pair.f;
    block_on(async {
        let _accepted = pair.connect(&all(Access::Full));
        let adds: Vec<_> = (0..3000).map(|_| f.fetch_add(at(THERE, 0), 1)).collect();
        for (i, add) in adds.into_iter().enumerate() {
            assert_eq!(add.await, Ok(i as u64), "in order");
        }
        // Twenty times the long slots that there are, and what comes back is what was there.
        let image = pattern(BYTES as usize, 3);
        put(f, at(THERE, 0), &image).await;
        let reads: Vec<_> =
            (0..40).map(|i| (i, f.read(at(THERE, i * 1000), 500_000, Buf::new()))).collect();
        for (i, read) in reads {
            let (buf, done) = read.await;
            let from = i as usize * 1000;
            assert!(done.is_ok() && buf[..] == image[from..from + 500_000], "READ {i}");
        }
    });
}

#[test]
fn many_unsignaled_writes_arrive_in_order() {
    let Some(pair) = pair() else { return };
    let f = &pair.f;
    block_on(async {
        let _accepted = pair.connect(&all(Access::Full));
        for i in 0..1000u64 {
            f.write_unsignaled(at(THERE, i % 10 * 8), &i.to_le_bytes()).expect("it is in bounds");
        }
        settle(f).await;
        for i in 990..1000 {
            assert_eq!(word(f, at(THERE, i % 10 * 8)).await, i);
        }
    });
}

#[test]
fn nobody_has_to_wait() {
    let Some(pair) = pair() else { return };
    let f = &pair.f;
    block_on(async {
        let _accepted = pair.connect(&all(Access::Full));
        for round in 0..20 {
            for _ in 0..50 {
                drop(f.read(at(THERE, 0), 70_000, Buf::new()));
                drop(f.fetch_add(at(THERE, 8), 1));
                drop(f.write(at(THERE, 100_000), Buf::from(vec![round; 70_000])));
            }
            settle(f).await;
            assert_eq!(word(f, at(THERE, 8)).await, u64::from(round + 1) * 50);
            assert_eq!(bytes(f, at(THERE, 100_000), 70_000).await, [round; 70_000]);
        }
    });
}

#[test]
fn transfers_cross_keys() {
    let Some(pair) = pair() else { return };
    let f = &pair.f;
    block_on(async {
        // Cut at odd places, one of them inside a word.
        let cuts = [0, 4093, 100_000, 100_001, 700_000, BYTES];
        let grant =
            |pair: &[u64]| Grant { offset: pair[0], len: pair[1] - pair[0], access: Access::Full };
        let grants: Vec<_> = cuts.windows(2).map(grant).collect();
        let _accepted = pair.connect(&grants);
        let image = pattern(BYTES as usize, 9);
        put(f, at(THERE, 0), &image).await;
        assert_eq!(bytes(f, at(THERE, 0), BYTES as usize).await, image);
        let mut words = [0; 8];
        assert_eq!(f.read_words(&[at(THERE, 4064)], &mut words).await, Ok(()));
        let expected =
            image[4064..4128].chunks(8).map(|w| u64::from_le_bytes(w.try_into().unwrap()));
        assert!(words.iter().copied().eq(expected));
        f.write_unsignaled(at(THERE, 99_990), &[7; 64]).expect("it is in bounds");
        settle(f).await;
        assert_eq!(bytes(f, at(THERE, 99_990), 64).await, [7; 64]);
        let split = at(THERE, 4088);
        let refused = FabricError::AccessDenied { at: split };
        assert_eq!(f.fetch_add(split, 1).await, Err(refused), "no key has all of the word");
    });
}

#[test]
fn a_doorbell_reaches_several_nodes() {
    let Some(pair) = pair() else { return };
    let f = &pair.f;
    block_on(async {
        let third = Node::new(&pair.device);
        let far = RegionId(9);
        let _here = pair.here.accept(f, HERE, &all(Access::Full));
        let _there = pair.connect(&all(Access::Full));
        let _far = third.accept(f, far, &all(Access::Full));
        let places = [at(far, 8), at(HERE, 8), at(THERE, 8), at(far, 16)];
        for (i, place) in places.iter().enumerate() {
            assert_eq!(f.fetch_add(*place, i as u64 + 1).await, Ok(0));
        }
        let before = f.counters().snapshot();
        let mut out = [0; 4];
        assert_eq!(f.read_words(&places, &mut out).await, Ok(()));
        assert_eq!(out, [1, 2, 3, 4]);
        let (buf, word) = f.read_word_and_bytes(places[1], places[2], 8, Buf::new()).await;
        assert_eq!((&buf[..], word), (&3u64.to_le_bytes()[..], Ok(2)));
        let cost = f.counters().snapshot() - before;
        assert_eq!((cost.round_trips, cost.reads, cost.remote_verbs), (2, 6, 4));
    });
}

#[test]
fn lanes_share_an_endpoint() {
    let Some(pair) = pair() else { return };
    let f = &pair.f;
    let _accepted = pair.connect(&all(Access::Full));
    let lane = |i: u64| async move {
        let place = at(THERE, i % 16 * 4096);
        let old = f.fetch_add(place, 1).await?;
        let (buf, done) = f.read(place, 8 + i as usize * 7, Buf::new()).await;
        done.map(|()| (old, buf.len()))
    };
    let mut ended = 0;
    block_on(run(32, (0..400).map(lane), |result| {
        assert!(result.is_ok(), "{result:?}");
        ended += 1;
    }));
    assert_eq!(ended, 400);
}

#[test]
fn answers_that_cannot_be_are_refused() {
    let Some(pair) = pair() else { return };
    let f = &pair.f;
    let offer = f.offer(THERE).expect("there is room");
    let (accepted, answer) = pair.there.host.accept(&offer, &all(Access::Full)).expect("sound");
    let hostile = |answer: &Answer| {
        assert!(matches!(f.connect(THERE, BYTES, answer), Err(VerbsError::Hostile { .. })));
    };
    hostile(&Answer { mtu_bytes: 1000, ..answer.clone() });
    hostile(&Answer { rd_atomic: 0, ..answer.clone() });
    assert!(matches!(f.connect(THERE, BYTES - 1, &answer), Err(VerbsError::Hostile { .. })));
    let elsewhere = f.connect(RegionId(8), BYTES, &answer);
    assert!(matches!(elsewhere, Err(VerbsError::NoOffer { region: RegionId(8) })));
    let home = f.connect(HERE, BYTES + 1, &answer);
    assert!(matches!(home, Err(VerbsError::OtherRegion { .. })));
    f.connect(THERE, BYTES, &answer).expect("this one is what was answered");
    assert!(matches!(f.connect(THERE, BYTES, &answer), Err(VerbsError::NoOffer { .. })), "once");
    assert_eq!(block_on(f.fetch_add(at(THERE, 0), 1)), Ok(0));
    let wrong = |grants: &[Grant]| {
        let offer = f.offer(THERE).expect("there is room");
        assert!(matches!(pair.there.host.accept(&offer, grants), Err(VerbsError::Hostile { .. })));
    };
    wrong(&[Grant { offset: 8, len: BYTES, access: Access::Read }]);
    wrong(&[Grant { offset: 8, len: 0, access: Access::Read }]);
    wrong(&[all(Access::Read)[0], Grant { offset: 8, len: 8, access: Access::Full }]);
    drop(accepted);
}

#[test]
fn a_device_says_what_it_is() {
    let Some(device) = device() else { return };
    let info = device.describe();
    assert!(info.has_atomics && info.rd_atomic_sent > 0 && info.mtu_bytes >= 256, "{info:?}");
    let all = survey().expect("there is a device");
    let same = |one: &&loch_fabric::verbs::Surveyed| {
        one.info.as_ref().is_some_and(|i| (i.port, i.gid_index) == (info.port, info.gid_index))
    };
    let found = all.iter().find(same).expect("what was opened is surveyed");
    assert_eq!(found.unusable, None);
    let other = Selection { gid_index: Some(254), ..Selection::default() };
    match Device::open(&other) {
        Err(DeviceError::NoneUsable { passed_over }) => {
            assert!(
                passed_over.iter().any(|why| why.contains("GID 254 was asked")),
                "{passed_over:?}"
            );
        }
        other => panic!("{:?}", other.map(|device| device.describe())),
    }
}
