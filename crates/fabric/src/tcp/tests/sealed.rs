//! Connections that are encrypted: who is let in, and what becomes of records that are not those
//! of the other end.

use super::*;
use crate::tcp::noise::{ConnectionKey, Dialing, MESSAGE_BYTES};
use crate::tcp::sealed::BadRecord;
use crate::tcp::socket::Moved;
use crate::tcp::stream::{Halves, Outward};

pub(super) fn encrypting() -> Node {
    Node::of(AgentOptions { encrypt: true, ..AgentOptions::default() })
}

/// A client that speaks for itself, in records.
struct Sealed {
    stream: TcpStream,
    halves: Halves,
}

impl Read for Sealed {
    fn read(&mut self, into: &mut [u8]) -> std::io::Result<usize> {
        loop {
            match self.halves.inward.receive(self.stream.as_fd(), into).unwrap() {
                Moved::Bytes(bytes) => return Ok(bytes),
                Moved::Nothing => std::thread::yield_now(),
                Moved::End => return Ok(0),
            }
        }
    }
}

impl Write for Sealed {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        loop {
            match self.halves.outward.send(self.stream.as_fd(), bytes)? {
                Moved::Bytes(bytes) => return Ok(bytes),
                Moved::Nothing => std::thread::yield_now(),
                Moved::End => return Ok(0),
            }
        }
    }

    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}

/// The bytes with which a client begins.
fn greeting(token: Token, key: &ConnectionKey) -> (Dialing, Vec<u8>) {
    let hello = Hello::new(token, true);
    let (dialing, message) = Dialing::begin(key, hello.as_bytes());
    (dialing, [hello.as_bytes(), &message].concat())
}

/// What a node says to a client that begins like this.
fn said(node: &Node, greeting: &[u8]) -> (TcpStream, Result<(), Unwelcome>) {
    let mut stream = node.stranger();
    stream.write_all(greeting).unwrap();
    let mut welcome = [0; WELCOME_BYTES];
    stream.read_exact(&mut welcome).unwrap();
    let welcome = Welcome::read_from_bytes(&welcome).unwrap();
    (stream, welcome.result().unwrap())
}

/// A client that was let in, what it has begun with, and its rights.
fn dialed(node: &Node) -> (Accepted, Sealed, Vec<u8>, Answer) {
    let (accepted, answer) = node.agent.accept(client(&all(Access::Full))).unwrap();
    let (dialing, begun) = greeting(answer.token, answer.key.as_ref().unwrap());
    let (mut stream, welcome) = said(node, &begun);
    assert_eq!(welcome, Ok(()));
    let mut message = [0; MESSAGE_BYTES];
    stream.read_exact(&mut message).unwrap();
    let halves = dialing.end(&message).expect("it is the node");
    (accepted, Sealed { stream, halves }, begun, answer)
}

fn add(answer: &Answer) -> Vec<u8> {
    let (verb, key) = (Verb::FetchAdd, answer.grants[0].rkey);
    let request = Request { verb, is_signaled: true, tag: 1, key, offset: 0, len: 8 };
    [request.header().as_bytes(), &1u64.to_le_bytes()].concat()
}

/// The bytes of an answer to [`add`].
const ADDED: usize = ANSWER_BYTES + 8;

#[test]
fn verbs_of_any_length_go_over_an_encrypted_connection() {
    let node = encrypting();
    let (_accepted, endpoint) = node.endpoint();
    for len in [1, 8, 1000, TCP_STRAIGHT_BYTES_MIN - 1, TCP_STRAIGHT_BYTES_MIN, 70_000, 3 << 20] {
        let bytes: Vec<u8> = (0..len).map(|at| (at % 251 + len % 7) as u8).collect();
        let (_, written) = block_on(endpoint.write(at(64), Buf::from(bytes.clone())));
        assert_eq!(written, Ok(()), "{len} bytes");
        let mut seen = vec![0; len];
        node.region.copy_out(64, &mut seen);
        assert!(seen == bytes, "{len} bytes");
        let (read, done) = block_on(endpoint.read(at(64), len, Buf::new()));
        assert_eq!((read.len(), done), (len, Ok(())));
        assert!(read[..] == bytes[..], "{len} bytes");
    }
    assert_eq!(block_on(endpoint.fetch_add(at(0), 5)), Ok(0));
    assert_eq!(block_on(endpoint.compare_swap(at(0), 5, 6)), Ok(5));
    assert_eq!(node.word(0), 6);
}

#[test]
fn an_agent_that_encrypts_lets_nobody_in_who_does_not() {
    let node = encrypting();
    let (_accepted, answer) = node.agent.accept(client(&all(Access::Full))).unwrap();
    assert_eq!(node.greeted(answer.token).1, Err(Unwelcome::Plain));
    let home = Arc::new(Region::anonymous(1 << 16).unwrap());
    let endpoint = TcpEndpoint::new(HOME, home);
    let connect =
        |answer: &Answer| endpoint.connect(AWAY, BYTES, node.agent.address(), answer, PATIENCE);
    let refused = connect(&Answer { key: None, ..answer.clone() });
    assert!(matches!(refused, Err(TcpError::Unwelcome(Unwelcome::Plain))), "{refused:?}");
    connect(&answer).expect("the token is still good");
}

#[test]
fn an_agent_that_does_not_encrypt_says_so() {
    let node = Node::new();
    let (_accepted, answer) = node.agent.accept(client(&all(Access::Full))).unwrap();
    assert_eq!(answer.key, None);
    let encrypts = Answer { key: Some(ConnectionKey::random()), ..answer.clone() };
    let home = Arc::new(Region::anonymous(1 << 16).unwrap());
    let endpoint = TcpEndpoint::new(HOME, home);
    let refused = endpoint.connect(AWAY, BYTES, node.agent.address(), &encrypts, PATIENCE);
    assert!(matches!(refused, Err(TcpError::Unwelcome(Unwelcome::Encrypted))), "{refused:?}");
    assert_eq!(node.greeted(answer.token).1, Ok(()), "the token is still good");
}

#[test]
fn a_client_does_what_each_node_asks_for() {
    let (plain, encrypting) = (Node::new(), encrypting());
    let (_accepted, endpoint) = plain.endpoint();
    let other = RegionId(2);
    let (_other, answer) = encrypting.agent.accept(client(&all(Access::Full))).unwrap();
    endpoint.connect(other, BYTES, encrypting.agent.address(), &answer, PATIENCE).unwrap();
    assert_eq!(block_on(endpoint.fetch_add(at(0), 1)), Ok(0));
    assert_eq!(block_on(endpoint.fetch_add(RemoteAddr::new(other, 0), 2)), Ok(0));
    assert_eq!((plain.word(0), encrypting.word(0)), (1, 2));
}

/// Everybody on the way sees the token.
#[test]
fn a_token_without_its_key_opens_nothing_and_stays_good() {
    let node = encrypting();
    let (_accepted, answer) = node.agent.accept(client(&all(Access::Full))).unwrap();
    let (_, forged) = greeting(answer.token, &ConnectionKey::random());
    assert_eq!(said(&node, &forged).1, Err(Unwelcome::Key));
    let (_, mut changed) = greeting(answer.token, answer.key.as_ref().unwrap());
    *changed.last_mut().unwrap() ^= 1;
    assert_eq!(said(&node, &changed).1, Err(Unwelcome::Key));
    let (_, good) = greeting(answer.token, answer.key.as_ref().unwrap());
    assert_eq!(said(&node, &good).1, Ok(()));
    let (_, again) = greeting(answer.token, answer.key.as_ref().unwrap());
    assert_eq!(said(&node, &again).1, Err(Unwelcome::Token), "it was used");
}

/// One who stands in the way of the client, and does not have the key.
#[test]
fn a_client_does_not_take_another_for_its_node() {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
    let address = listener.local_addr().unwrap();
    let node = encrypting();
    let (_accepted, answer) = node.agent.accept(client(&all(Access::Full))).unwrap();
    let impostor = std::thread::spawn(move || {
        let (mut stream, _) = listener.accept().unwrap();
        stream.read_exact(&mut [0; HELLO_BYTES + MESSAGE_BYTES]).unwrap();
        stream.write_all(Welcome::new(Ok(())).as_bytes()).unwrap();
        stream.write_all(&[9; MESSAGE_BYTES]).unwrap();
        let mut more = Vec::new();
        stream.read_to_end(&mut more).unwrap();
        more
    });
    let home = Arc::new(Region::anonymous(1 << 16).unwrap());
    let endpoint = TcpEndpoint::new(HOME, home);
    let refused = endpoint.connect(AWAY, BYTES, address, &answer, PATIENCE);
    assert!(matches!(refused, Err(TcpError::Hostile { .. })), "{refused:?}");
    assert!(impostor.join().unwrap().is_empty(), "it was told nothing");
}

/// Somebody repeats all that a client has sent.
#[test]
fn a_connection_that_is_repeated_opens_nothing() {
    let node = encrypting();
    let (accepted, mut sealed, begun, answer) = dialed(&node);
    sealed.write_all(&add(&answer)).unwrap();
    sealed.read_exact(&mut [0; ADDED]).unwrap();
    assert_eq!(node.word(0), 1);
    assert_eq!(said(&node, &begun).1, Err(Unwelcome::Token));
    drop(accepted);
    assert_eq!(said(&node, &begun).1, Err(Unwelcome::Token));
    assert_eq!(node.word(0), 1);
}

/// Nothing is executed of what comes behind a record that is not the client's next one.
#[test]
fn a_record_of_another_ends_the_connection() {
    let node = encrypting();
    for (number, kind) in ["forged", "changed", "repeated", "plain"].into_iter().enumerate() {
        let (_accepted, mut sealed, _, answer) = dialed(&node);
        let Outward::Sealed(sealer) = &mut sealed.halves.outward else { panic!() };
        let framed = |record: &[u8]| [&(record.len() as u16).to_le_bytes(), record].concat();
        let good = framed(&sealer.record_for_test(&add(&answer)));
        sealed.stream.write_all(&good).unwrap();
        sealed.read_exact(&mut [0; ADDED]).unwrap();
        let Outward::Sealed(sealer) = &mut sealed.halves.outward else { panic!() };
        let next = framed(&sealer.record_for_test(&add(&answer)));
        let bad = match kind {
            "forged" => framed(&[3; 64]),
            "changed" => [&next[..20], &[next[20] ^ 1], &next[21..]].concat(),
            "repeated" => good,
            _ => add(&answer).repeat(20),
        };
        sealed.stream.write_all(&[bad, next].concat()).unwrap();
        let mut rest = Vec::new();
        match sealed.stream.read_to_end(&mut rest) {
            Ok(_) => assert!(rest.is_empty(), "{kind}: {rest:?}"),
            Err(error) => assert_eq!(error.kind(), ErrorKind::ConnectionReset),
        }
        assert_eq!(node.word(0), number as u64 + 1, "{kind}");
    }
    let (_accepted, endpoint) = node.endpoint();
    assert_eq!(block_on(endpoint.fetch_add(at(0), 1)), Ok(4), "others go on");
}

/// A node without an agent, a connection to it, and its client's end.
fn sealed_pair(lent: &Arc<Lent>) -> (Accepted, Connection, Halves, UnixStream, Vec<u32>) {
    let (theirs, server) = UnixStream::pair().unwrap();
    let grants = all(Access::Full);
    let (keys, told) = Keys::new(&grants);
    let (accepted, ticket) = lent.admit(keys, client(&grants));
    let hello = Hello::new(ticket.token, true);
    let (dialing, message) = Dialing::begin(&ticket.key.unwrap(), hello.as_bytes());
    let redeemed = lent.redeem(&ticket.token, &hello, Some(&message));
    let Redeemed { client, answer, halves } = redeemed.unwrap();
    let connection = Connection::new(Arc::new(OwnedFd::from(server)), client, halves, &[]).unwrap();
    let halves = dialing.end(&answer.unwrap()).unwrap();
    (accepted, connection, halves, theirs, told)
}

fn encrypted(bytes: u64) -> Arc<Lent> {
    Arc::new(Lent::new(Arc::new(Region::anonymous(bytes).unwrap()), true))
}

#[test]
fn a_bad_record_is_the_reason_of_the_end() {
    let lent = encrypted(BYTES);
    let (_accepted, mut connection, _, mut theirs, _) = sealed_pair(&lent);
    theirs.write_all(&[17, 0]).unwrap();
    assert_eq!(connection.turn(&lent, &mut Scratch::new()).unwrap(), Next::Read);
    theirs.write_all(&[0; 17]).unwrap();
    let cut = connection.turn(&lent, &mut Scratch::new()).unwrap_err();
    assert!(matches!(cut, Cut::Record(BadRecord::Seal)), "{cut}");
}

#[test]
fn an_encrypted_connection_holds_nothing_at_rest_and_little_while_it_waits() {
    let lent = encrypted(BYTES);
    let (_accepted, mut connection, mut halves, theirs, keys) = sealed_pair(&lent);
    theirs.set_nonblocking(true).unwrap();
    let (key, is_signaled) = (keys[0], true);
    let read = Request { verb: Verb::Read, is_signaled, tag: 0, key, offset: 0, len: 8 << 10 };
    let mut scratch = Scratch::new();
    let requests = read.header().as_bytes().repeat(1000);
    assert_eq!(
        halves.outward.send(theirs.as_fd(), &requests).unwrap(),
        Moved::Bytes(requests.len())
    );
    assert_eq!(connection.turn(&lent, &mut scratch).unwrap(), Next::Write);
    assert!(connection.held_bytes() > 0);
    let (mut some, mut come) = (vec![0; 1 << 16], 0);
    let begun = Instant::now();
    while come < 1000 * (ANSWER_BYTES + (8 << 10)) {
        if let Moved::Bytes(bytes) = halves.inward.receive(theirs.as_fd(), &mut some).unwrap() {
            come += bytes;
        }
        connection.turn(&lent, &mut scratch).unwrap();
        let held = connection.held_bytes();
        assert!(held <= 4 * TCP_CHUNK_BYTES, "{held}");
        assert!(begun.elapsed() < PATIENCE);
    }
    assert_eq!(connection.turn(&lent, &mut scratch).unwrap(), Next::Read);
    assert_eq!(connection.held_bytes(), 0);
}

/// Small turns, so that records are longer than what may be moved.
#[test]
fn long_transfers_go_on_over_turns_of_any_size() {
    let lent = encrypted(BYTES);
    let (_accepted, mut connection, mut halves, theirs, keys) = sealed_pair(&lent);
    theirs.set_nonblocking(true).unwrap();
    let (key, is_signaled, len) = (keys[0], true, 200_001);
    let bytes: Vec<u8> = (0..len).map(|at| (at % 253) as u8).collect();
    let write = Request { verb: Verb::Write, is_signaled, tag: 0, key, offset: 3, len: len as u32 };
    let read = Request { verb: Verb::Read, tag: 1, ..write };
    let sent = [write.header().as_bytes(), &bytes, read.header().as_bytes()].concat();
    let (mut rest, mut come, mut some) = (&sent[..], Vec::new(), vec![0; 1000]);
    let (mut scratch, begun) = (Scratch::new(), Instant::now());
    while come.len() < 2 * ANSWER_BYTES + len {
        if !rest.is_empty()
            && let Moved::Bytes(bytes) = halves.outward.send(theirs.as_fd(), rest).unwrap()
        {
            rest = &rest[bytes..];
        }
        connection.turn_within(&lent, &mut scratch, 777).unwrap();
        while let Moved::Bytes(bytes) = halves.inward.receive(theirs.as_fd(), &mut some).unwrap() {
            come.extend_from_slice(&some[..bytes]);
        }
        assert!(begun.elapsed() < PATIENCE);
    }
    assert!(come[2 * ANSWER_BYTES..] == bytes);
}
