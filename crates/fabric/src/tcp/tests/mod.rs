//! What a node's agent does with clients that are hostile, broken or gone.

mod hostile;
mod promises;
mod sealed;
mod turns;
mod waiting;
mod workers;

use std::future::{Future, poll_fn};
use std::io::{ErrorKind, Read, Write};
use std::net::{Ipv4Addr, TcpListener, TcpStream};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::pin::pin;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};
use std::time::{Duration, Instant};

use proptest::prelude::*;
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use zerocopy::{FromBytes, IntoBytes};

use super::connection::{Connection, Cut, Next, Scratch};
use super::frame::{
    ANSWER_BYTES, Answer as Answered, AnswerHeader, HELLO_BYTES, Hello, Refusal, Request,
    SwapWords, Token, Told, Unwelcome, Verb, WELCOME_BYTES, Wanted, Welcome,
};
use super::keys::Keys;
use super::lent::{Lent, Redeemed};
use super::{Accepted, Agent, AgentOptions, Answer, Client, TcpEndpoint, TcpError};
use crate::lanes::block_on;
use crate::limits::{
    TCP_CHUNK_BYTES, TCP_HELLO_PATIENCE, TCP_STRAIGHT_BYTES_MIN, TCP_STRANGERS_MAX,
    WHOLE_WORDS_BYTES_MAX,
};
use crate::shm::{Region, parking};
use crate::{Access, Buf, Fabric, FabricError, Grant, RegionId, RemoteAddr};

const BYTES: u64 = 8 << 20;
const PATIENCE: Duration = Duration::from_secs(20);
const HOME: RegionId = RegionId(0);
const AWAY: RegionId = RegionId(1);

struct Node {
    region: Arc<Region>,
    agent: Agent,
}

impl Node {
    fn new() -> Self {
        Self::of(AgentOptions::default())
    }

    fn of(options: AgentOptions) -> Self {
        let region = Arc::new(Region::anonymous(BYTES).unwrap());
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
        let agent = Agent::start(region.clone(), listener, options).unwrap();
        Self { region, agent }
    }

    fn stranger(&self) -> TcpStream {
        let stream = TcpStream::connect(self.agent.address()).unwrap();
        stream.set_read_timeout(Some(PATIENCE)).unwrap();
        stream.set_nodelay(true).unwrap();
        stream
    }

    fn greeted(&self, token: Token) -> (TcpStream, Result<(), Unwelcome>) {
        let mut stream = self.stranger();
        stream.write_all(Hello::new(token, false).as_bytes()).unwrap();
        let mut welcome = [0; WELCOME_BYTES];
        stream.read_exact(&mut welcome).unwrap();
        let welcome = Welcome::read_from_bytes(&welcome).unwrap();
        (stream, welcome.result().unwrap())
    }

    /// A client that speaks for itself.
    fn client(&self, grants: &[Grant]) -> (Accepted, Raw) {
        let (accepted, answer) = self.agent.accept(client(grants)).unwrap();
        let (stream, welcome) = self.greeted(answer.token);
        assert_eq!(welcome, Ok(()));
        (accepted, Raw { stream, answer, tag: 0 })
    }

    fn endpoint(&self) -> (Accepted, TcpEndpoint) {
        let home = Arc::new(Region::anonymous(1 << 16).unwrap());
        let endpoint = TcpEndpoint::new(HOME, home);
        (self.connect(&endpoint), endpoint)
    }

    fn connect(&self, endpoint: &TcpEndpoint) -> Accepted {
        self.connect_as(AWAY, endpoint)
    }

    fn connect_as(&self, region: RegionId, endpoint: &TcpEndpoint) -> Accepted {
        let (accepted, answer) = self.agent.accept(client(&all(Access::Full))).unwrap();
        endpoint.connect(region, BYTES, self.agent.address(), &answer, PATIENCE).unwrap();
        accepted
    }

    fn word(&self, offset: u64) -> u64 {
        self.region.word(offset).load(std::sync::atomic::Ordering::SeqCst)
    }
}

/// A client with these rights, and no more.
fn client(grants: &[Grant]) -> Client<'_> {
    Client { grants, replies: None, bells: Vec::new(), seat: None }
}

fn all(access: Access) -> [Grant; 1] {
    [Grant { offset: 0, len: BYTES, access }]
}

fn at(offset: u64) -> RemoteAddr {
    RemoteAddr::new(AWAY, offset)
}

struct Raw {
    stream: TcpStream,
    answer: Answer,
    tag: u32,
}

impl Raw {
    fn request(&mut self, verb: Verb, grant: usize, offset: u64, len: u32) -> Request {
        self.tag += 1;
        let key = self.answer.grants[grant].rkey;
        Request { verb, is_signaled: true, tag: self.tag, key, offset, len }
    }

    fn send(&mut self, request: Request, body: &[u8]) {
        self.stream.write_all(&[request.header().as_bytes(), body].concat()).unwrap();
    }

    fn answered(&mut self) -> (Answered, Vec<u8>) {
        let mut header = [0; ANSWER_BYTES];
        self.stream.read_exact(&mut header).unwrap();
        let told = Told::parse(&AnswerHeader::read_from_bytes(&header).unwrap()).unwrap();
        let Told::Answer(answer) = told else { panic!("nobody has sent {told:?}") };
        let mut body = vec![0; answer.result.unwrap_or(0) as usize];
        self.stream.read_exact(&mut body).unwrap();
        (answer, body)
    }

    fn ask(&mut self, request: Request, body: &[u8]) -> Result<Vec<u8>, Refusal> {
        self.send(request, body);
        let (answer, body) = self.answered();
        assert_eq!(answer.tag, request.tag);
        answer.result.map(|_| body)
    }

    /// Waits until the agent has ended the connection.
    fn assert_cut_off(mut self) {
        let mut rest = Vec::new();
        match self.stream.read_to_end(&mut rest) {
            Ok(_) => (),
            Err(error) => assert_eq!(error.kind(), ErrorKind::ConnectionReset),
        }
    }
}

fn swap_words(expect: u64, new: u64) -> Vec<u8> {
    SwapWords { expect: expect.into(), new: new.into() }.as_bytes().to_vec()
}

#[test]
fn a_long_write_that_is_refused_is_skipped() {
    let node = Node::new();
    let (_accepted, mut client) = node.client(&all(Access::Read));
    let long = vec![9; 3 * TCP_CHUNK_BYTES];
    for (offset, refusal) in [(64, Refusal::ReadOnly), (u64::MAX - 64, Refusal::OutOfBounds)] {
        let request = client.request(Verb::Write, 0, offset, long.len() as u32);
        assert_eq!(client.ask(request, &long), Err(refusal));
    }
    let request = client.request(Verb::Read, 0, 64, long.len() as u32);
    assert_eq!(client.ask(request, &[]), Ok(vec![0; long.len()]));
}

#[test]
fn a_write_without_an_answer_that_is_refused_ends_the_connection() {
    let node = Node::new();
    let (_accepted, mut client) = node.client(&all(Access::Read));
    let mut request = client.request(Verb::Write, 0, 0, 8);
    request.is_signaled = false;
    client.send(request, &[1; 8]);
    client.assert_cut_off();
    assert_eq!(node.word(0), 0);
}

#[test]
fn a_token_opens_one_connection_of_its_own_node() {
    let (node, other) = (Node::new(), Node::new());
    let (accepted, answer) = node.agent.accept(client(&all(Access::Full))).unwrap();
    assert_eq!(other.greeted(answer.token).1, Err(Unwelcome::Token), "another node's");
    let (_first, welcome) = node.greeted(answer.token);
    assert_eq!(welcome, Ok(()));
    assert_eq!(node.greeted(answer.token).1, Err(Unwelcome::Token), "it was used");
    drop(accepted);
    let (accepted, answer) = node.agent.accept(client(&all(Access::Full))).unwrap();
    drop(accepted);
    assert_eq!(node.greeted(answer.token).1, Err(Unwelcome::Token), "the client was fenced");
    let home = Arc::new(Region::anonymous(1 << 16).unwrap());
    let endpoint = TcpEndpoint::new(HOME, home);
    let refused = endpoint.connect(AWAY, BYTES, node.agent.address(), &answer, PATIENCE);
    assert!(matches!(refused, Err(TcpError::Unwelcome(Unwelcome::Token))));
}

/// Requests that a node has received are not executed after the fence.
#[test]
fn nothing_is_executed_after_the_fence() {
    let node = Node::new();
    for _ in 0..20 {
        let (accepted, mut client) = node.client(&all(Access::Full));
        let mut adds = Vec::new();
        for _ in 0..5000 {
            let request = client.request(Verb::FetchAdd, 0, 0, 8);
            adds.extend_from_slice(request.header().as_bytes());
            adds.extend_from_slice(&1u64.to_le_bytes());
        }
        let before = node.word(0);
        let mut stream = client.stream.try_clone().unwrap();
        // Nobody takes the answers, so it may not get rid of all of them.
        let sends = std::thread::spawn(move || _ = stream.write_all(&adds));
        let begun = Instant::now();
        while node.word(0) == before && begun.elapsed() < PATIENCE {
            std::thread::yield_now();
        }
        drop(accepted);
        let fenced = node.word(0);
        assert!(fenced > before, "the client was served");
        sends.join().unwrap();
        std::thread::sleep(Duration::from_millis(5));
        assert_eq!(node.word(0), fenced);
        client.assert_cut_off();
    }
}

#[test]
fn garbage_ends_a_connection_and_others_go_on() {
    let node = Node::new();
    let (_accepted, endpoint) = node.endpoint();
    let mut stranger = node.stranger();
    stranger.write_all(b"GET / HTTP/1.1\r\nHost: loch.example\r\n\r\n").unwrap();
    assert_eq!(stranger.read(&mut [0; 8]).unwrap_or(0), 0, "it is told nothing");
    for change in [
        (|bytes| bytes[0] = 99) as fn(&mut [u8]),
        |bytes| bytes[1] = 0x80,
        |bytes| bytes[2] = 1,
        |bytes| bytes[16..20].copy_from_slice(&u32::MAX.to_le_bytes()),
        |bytes| bytes[..2].copy_from_slice(&[Verb::Read as u8, 0]),
    ] {
        let (_accepted, mut client) = node.client(&all(Access::Full));
        let mut header = client.request(Verb::Write, 0, 0, 8).header();
        change(header.as_mut_bytes());
        client.stream.write_all(header.as_bytes()).unwrap();
        client.assert_cut_off();
    }
    assert_eq!(block_on(endpoint.fetch_add(at(0), 1)), Ok(0));
}

#[test]
fn who_does_not_say_who_it_is_is_cut_off() {
    let node = Node::new();
    let (silent, mut half) = (node.stranger(), node.stranger());
    half.write_all(b"loch-").unwrap();
    let begun = Instant::now();
    for mut stranger in [silent, half] {
        assert_eq!(stranger.read(&mut [0; 8]).unwrap_or(0), 0);
    }
    assert!(begun.elapsed() >= TCP_HELLO_PATIENCE);
}

/// A client that takes no answers is not served until it does; then it gets all of them.
#[test]
fn answers_that_nobody_takes_wait_in_bounded_memory() {
    let node = Node::new();
    let (_accepted, mut client) = node.client(&all(Access::Full));
    let (_other, endpoint) = node.endpoint();
    node.region.copy_in(0, &[5; 1 << 16]);
    client.stream.set_nonblocking(true).unwrap();
    let lens = [8, 100, 8192, 60_000];
    let (mut sent, mut left) = (0, Vec::new());
    loop {
        if left.is_empty() {
            let request = client.request(Verb::Read, 0, 0, lens[sent % lens.len()]);
            left = request.header().as_bytes().to_vec();
            sent += 1;
        }
        match client.stream.write(&left) {
            Ok(bytes) => _ = left.drain(..bytes),
            // The agent may be about to take more.
            Err(error) if error.kind() == ErrorKind::WouldBlock => {
                std::thread::sleep(Duration::from_millis(20));
                match client.stream.write(&left) {
                    Ok(bytes) => _ = left.drain(..bytes),
                    Err(_) => break,
                }
            }
            Err(error) => panic!("{error}"),
        }
        assert!(sent < 10_000_000, "the agent takes requests for ever");
    }
    assert_eq!(block_on(endpoint.fetch_add(at(1 << 20), 1)), Ok(0), "others do not notice");
    client.stream.set_nonblocking(false).unwrap();
    let mut stream = client.stream.try_clone().unwrap();
    let whole = std::thread::spawn(move || stream.write_all(&left).unwrap());
    for number in 0..sent {
        let (answer, body) = client.answered();
        assert_eq!(answer.tag as usize, number + 1);
        assert_eq!(body, vec![5; lens[number % lens.len()] as usize]);
    }
    whole.join().unwrap();
}

#[test]
fn strangers_do_not_keep_clients_out() {
    // Both ends of each connection are in this process.
    let limit = getrlimit(Resource::Nofile);
    setrlimit(Resource::Nofile, Rlimit { current: limit.maximum, ..limit }).unwrap();
    let node = Node::new();
    let opened = |_| TcpStream::connect(node.agent.address()).unwrap();
    let mut strangers: Vec<_> = (0..TCP_STRANGERS_MAX + 100).map(opened).collect();
    for _ in 0..50 {
        let (_accepted, endpoint) = node.endpoint();
        assert!(block_on(endpoint.fetch_add(at(0), 1)).is_ok());
        strangers.extend((0..5).map(opened));
    }
}

#[test]
fn all_threads_of_an_agent_serve_clients() {
    let node = Node::of(AgentOptions { threads: 2, ..AgentOptions::default() });
    let clients: Vec<_> = (0..5).map(|_| node.endpoint()).collect();
    std::thread::scope(|scope| {
        for (accepted, endpoint) in clients {
            scope.spawn(move || {
                let _accepted = accepted;
                for _ in 0..1000 {
                    block_on(endpoint.fetch_add(at(64), 1)).unwrap();
                }
            });
        }
    });
    assert_eq!(node.word(64), 5000, "atomics of different threads are atomic");
}

#[test]
fn the_verbs_of_a_connection_are_executed_in_their_order() {
    let node = Node::new();
    let (_accepted, endpoint) = node.endpoint();
    let swaps: Vec<_> =
        (0..500).map(|word| endpoint.compare_swap(at(64), word, word + 1)).collect();
    block_on(async {
        for (word, swap) in swaps.into_iter().enumerate() {
            assert_eq!(swap.await, Ok(word as u64));
        }
    });
}

#[test]
fn long_values_come_and_go_whole() {
    let node = Node::new();
    let (_accepted, endpoint) = node.endpoint();
    let lens = [
        TCP_STRAIGHT_BYTES_MIN - 1,
        TCP_STRAIGHT_BYTES_MIN,
        WHOLE_WORDS_BYTES_MAX,
        WHOLE_WORDS_BYTES_MAX + 1,
        TCP_CHUNK_BYTES,
        TCP_CHUNK_BYTES + 1,
        5_000_001,
    ];
    block_on(async {
        for (salt, len) in lens.into_iter().enumerate() {
            let what: Vec<_> = (0..len).map(|byte| (byte * 31 + salt) as u8).collect();
            let write = endpoint.write(at(3), Buf::from(what.clone()));
            // Posted behind it, before it has left.
            let (short, long) =
                (endpoint.read(at(3), 10, Buf::new()), endpoint.read(at(3), len, Buf::new()));
            let many = [(at(3), 20), (at(3), len), (at(4), 7)];
            let many = endpoint.read_many(&many, Buf::from(b"kept".to_vec()));
            let (written, done) = write.await;
            assert_eq!((&written[..], done), (&what[..], Ok(())));
            assert_eq!(&short.await.0[..], &what[..10]);
            assert!(long.await.0[..] == what[..]);
            let (many, done) = many.await;
            assert_eq!(done, Ok(()));
            let expected = [b"kept", &what[..20], &what, &what[1..8]].concat();
            assert!(many[..] == expected[..]);
        }
    });
}

/// Such a lane may ask for something next, which then waits for nothing.
#[test]
fn a_lane_that_names_no_bell_goes_on_at_once() {
    let node = Node::new();
    let (_accepted, endpoint) = node.endpoint();
    let goes_on = |bell| {
        block_on(poll_fn(|cx| {
            Poll::Ready(parking::is_polled_again_after(|| endpoint.poll_wait(cx, bell)))
        }))
    };
    assert!(goes_on(None), "it yields");
    assert!(!goes_on(Some(RemoteAddr::new(HOME, 64))), "it waits for others");
}

#[test]
fn a_connection_that_breaks_is_noticed_and_made_again() {
    let node = Node::new();
    let (accepted, endpoint) = node.endpoint();
    assert_eq!(block_on(endpoint.fetch_add(at(0), 1)), Ok(0));
    drop(accepted);
    let lost = block_on(endpoint.fetch_add(at(0), 1));
    assert!(
        matches!(lost, Err(FabricError::OutcomeUnknown { .. } | FabricError::Unreachable { .. })),
        "{lost:?}"
    );
    assert_eq!(endpoint.broken(), [AWAY]);
    let gone = Err(FabricError::Unreachable { region: AWAY });
    assert_eq!(block_on(endpoint.fetch_add(at(0), 1)), gone);
    let mark = endpoint.posted();
    let was_sent = matches!(lost, Err(FabricError::OutcomeUnknown { .. }));
    assert_eq!(endpoint.is_settled(mark), !was_sent, "its outcome is unknown");
    let _accepted = node.connect(&endpoint);
    assert!(endpoint.is_settled(mark) && endpoint.broken().is_empty());
    assert_eq!(block_on(endpoint.fetch_add(at(0), 1)), Ok(1), "the fence came first");
    drop(node);
    let lost = block_on(endpoint.fetch_add(at(0), 1));
    assert!(lost.is_err(), "the node has ended");
}

/// A thread drops a future and turns to other things, so it takes no answer any more.
#[test]
fn a_word_that_is_left_is_stored_although_its_thread_does_nothing() {
    let node = Node::new();
    let (_accepted, endpoint) = node.endpoint();
    let word = RemoteAddr::new(HOME, 128);
    let begun = Instant::now();
    for value in [7, 8] {
        _ = pin!(endpoint.fetch_add(at(0), 1)).poll(&mut Context::from_waker(Waker::noop()));
        let mark = endpoint.posted();
        endpoint.store_when_settled(word, value);
        while endpoint.load(word).unwrap() != value {
            assert!(begun.elapsed() < PATIENCE);
            std::thread::yield_now();
        }
        assert!(endpoint.is_settled(mark));
    }
    _ = pin!(endpoint.fetch_add(at(0), 1)).poll(&mut Context::from_waker(Waker::noop()));
    endpoint.store_when_settled(word, 9);
    endpoint.take_back();
    endpoint.store(word, &[&10u64.to_le_bytes()]).unwrap();
    assert_eq!(block_on(endpoint.fetch_add(at(0), 1)), Ok(3));
    assert_eq!(endpoint.load(word), Ok(10), "it was taken back");
}

/// A node without an agent.
fn lent(bytes: u64) -> Arc<Lent> {
    Arc::new(Lent::new(Arc::new(Region::anonymous(bytes).unwrap()), false))
}

/// A connection to it, its client's end, and the client's keys.
fn pair(lent: &Arc<Lent>, client: Client<'_>) -> (Accepted, Connection, UnixStream, Vec<u32>) {
    let (theirs, server) = UnixStream::pair().unwrap();
    let (keys, told) = Keys::new(client.grants);
    let (accepted, ticket) = lent.admit(keys, client);
    let hello = Hello::new(ticket.token, false);
    let Redeemed { client, halves, .. } = lent.redeem(&ticket.token, &hello, None).unwrap();
    let connection = Connection::new(Arc::new(OwnedFd::from(server)), client, halves, &[]).unwrap();
    (accepted, connection, theirs, told)
}

/// The client had sent it before the fence, and the node had received it.
#[test]
fn a_connection_at_rest_holds_nothing() {
    let lent = lent(BYTES);
    let (_accepted, mut connection, mut theirs, keys) = pair(&lent, client(&all(Access::Full)));
    let (key, is_signaled) = (keys[0], true);
    let read = Request { verb: Verb::Read, is_signaled, tag: 0, key, offset: 0, len: 4096 };
    theirs.write_all(&read.header().as_bytes().repeat(10)).unwrap();
    assert_eq!(connection.turn(&lent, &mut Scratch::new()).unwrap(), Next::Read);
    assert_eq!(connection.held_bytes(), 0);
    let mut answers = vec![0; 10 * (ANSWER_BYTES + 4096)];
    theirs.read_exact(&mut answers).unwrap();
}

#[test]
fn a_turn_ends_also_while_there_is_more_to_do() {
    let lent = lent(BYTES);
    let (_accepted, mut connection, mut theirs, keys) = pair(&lent, client(&all(Access::Full)));
    let (key, is_signaled, offset) = (keys[0], true, 0);
    let mut scratch = Scratch::new();
    // Short answers, one long answer, and one long WRITE.
    let long = 2 * WHOLE_WORDS_BYTES_MAX;
    for (verb, len, times) in
        [(Verb::Read, 1000, 20), (Verb::Read, long, 1), (Verb::Write, long, 1)]
    {
        let request = Request { verb, is_signaled, tag: 0, key, offset, len: len as u32 };
        let body = if verb == Verb::Write { vec![1; len] } else { vec![] };
        theirs.write_all(&[request.header().as_bytes(), &body].concat().repeat(times)).unwrap();
        let mut turns = 1;
        while connection.turn_within(&lent, &mut scratch, 4096).unwrap() == Next::Turn {
            turns += 1;
        }
        let moved = len * times;
        assert!((moved / 8192..=moved / 2048).contains(&turns), "{turns} turns for {moved} bytes");
        let mut answers = vec![0; times * (ANSWER_BYTES + if body.is_empty() { len } else { 0 })];
        theirs.read_exact(&mut answers).unwrap();
    }
}

/// A client that takes nothing costs the node two chunks, and a little more.
#[test]
fn a_connection_that_waits_holds_little() {
    let lent = lent(BYTES);
    let (_accepted, mut connection, mut theirs, keys) = pair(&lent, client(&all(Access::Read)));
    let (key, is_signaled) = (keys[0], true);
    let read = Request { verb: Verb::Read, is_signaled, tag: 0, key, offset: 0, len: 8 << 10 };
    theirs.write_all(&read.header().as_bytes().repeat(1000)).unwrap();
    let next = connection.turn(&lent, &mut Scratch::new()).unwrap();
    assert_eq!(next, Next::Write);
    assert!(connection.held_bytes() < 2 * TCP_CHUNK_BYTES, "{}", connection.held_bytes());
}

/// A verb that is being executed is over when the fence is.
#[test]
fn a_fence_waits_for_the_turn_that_has_begun() {
    let lent = lent(1 << 16);
    let (keys, _) = Keys::new(&all(Access::Full));
    let (accepted, ticket) = lent.admit(keys, client(&all(Access::Full)));
    let hello = Hello::new(ticket.token, false);
    let client = lent.redeem(&ticket.token, &hello, None).unwrap().client;
    let turn = client.enter().unwrap();
    std::thread::scope(|scope| {
        let fence = scope.spawn(|| drop(accepted));
        std::thread::sleep(Duration::from_millis(50));
        assert!(!fence.is_finished());
        drop(turn);
    });
    assert!(client.enter().is_none());
}

/// Lets a connection have its turns with what a client sends.
fn turns(lent: &Arc<Lent>, grants: &[Grant], sent: impl FnOnce(u32) -> Vec<u8>) -> Result<(), Cut> {
    let (_accepted, mut connection, mut client, keys) = pair(lent, client(grants));
    client.set_nonblocking(true).unwrap();
    let sent = sent(keys[0]);
    let (mut rest, mut scratch) = (&sent[..], Scratch::new());
    loop {
        if let Ok(bytes) = client.write(rest) {
            rest = &rest[bytes..];
        }
        if rest.is_empty() {
            client.shutdown(std::net::Shutdown::Write).unwrap();
        }
        connection.turn(lent, &mut scratch)?;
        assert!(connection.held_bytes() <= 4 * TCP_CHUNK_BYTES);
        while client.read(&mut [0; 4096]).is_ok_and(|bytes| bytes > 0) {}
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 2000, ..ProptestConfig::default() })]

    /// Whatever a client sends, memory that no key opens stays as it is.
    #[test]
    fn arbitrary_bytes_open_nothing(
        bytes in prop::collection::vec(any::<u8>(), 0..600),
        headers in prop::collection::vec((0u8..7, 0u8..3, any::<u64>(), 0u32..200_000), 0..20),
    ) {
        let lent = lent(1 << 16);
        let sent = |known: u32| {
            let mut sent = Vec::new();
            for (verb, flags, offset, len) in headers {
                let key = if offset % 5 == 0 { 7 } else { known };
                let (any, tag, offset) = (Verb::Write, 0, offset % (1 << 17));
                let request =
                    Request { verb: any, is_signaled: true, tag, key, offset, len };
                let mut header = request.header();
                header.as_mut_bytes()[..2].copy_from_slice(&[verb, flags]);
                sent.extend_from_slice(header.as_bytes());
                sent.extend_from_slice(&bytes);
            }
            sent
        };
        let grants = [Grant { offset: 32 << 10, len: 16 << 10, access: Access::Full }];
        let ended = turns(&lent, &grants, sent);
        prop_assert!(ended.is_err(), "the client has shut its side");
        let mut image = vec![1; 1 << 16];
        lent.region.copy_out(0, &mut image);
        prop_assert!(image[..32 << 10].iter().chain(&image[48 << 10..]).all(|byte| *byte == 0));
    }
}
