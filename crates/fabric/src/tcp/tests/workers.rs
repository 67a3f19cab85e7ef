//! Workers of a node and its clients: messages, replies that are WRITTEN, and bells.

use std::future::{Future, poll_fn};
use std::pin::pin;
use std::sync::mpsc;
use std::task::Poll;

use super::sealed::encrypting;
use super::*;
use crate::limits::{MAIL_MESSAGE_BYTES_MAX, TCP_MAILBOX_BYTES_MAX, TCP_UNANSWERED_MAX};
use crate::shm::Bell;
use crate::tcp::{AgentEndpoint, Replies, SeatId, TcpClient, TcpMailbox, TcpMessages, TcpWorker};
use crate::{MessageAddress, Messages};

const NODE: RegionId = AWAY;

/// Runs a worker in a thread of its own until the client is done.
fn with_worker(
    node: &Node,
    mut turn: impl FnMut(&TcpMailbox) + Send,
    client: impl FnOnce(MessageAddress),
) {
    let mailbox = node.agent.mailbox(NODE, None);
    let address = mailbox.address();
    let (done, is_done) = mpsc::channel::<()>();
    std::thread::scope(|scope| {
        scope.spawn(move || {
            while is_done.try_recv() == Err(mpsc::TryRecvError::Empty) {
                turn(&mailbox);
            }
        });
        client(address);
        drop(done);
    });
}

fn receive(messages: &TcpMessages) -> (TcpWorker, Vec<u8>) {
    let (from, message) = block_on(messages.receive(Buf::new()));
    (from, message.to_vec())
}

/// Answers each message with the same bytes, backwards.
fn turn_around(mailbox: &TcpMailbox) {
    while let Ok((from, message)) = mailbox.try_receive(Buf::new()) {
        let answer: Vec<u8> = message.iter().rev().copied().collect();
        mailbox.send(from, &answer).unwrap();
    }
    mailbox.flush();
}

/// Plain, and encrypted.
fn both(test: fn(&Node)) {
    test(&Node::new());
    test(&encrypting());
}

#[test]
fn messages_of_any_length_arrive_and_are_answered() {
    both(messages_are_answered);
}

fn messages_are_answered(node: &Node) {
    let (_accepted, endpoint) = node.endpoint();
    let messages = endpoint.messages();
    with_worker(node, turn_around, |address| {
        let worker = messages.peer(&MessageAddress::from_words(address.words())).unwrap();
        for len in [0, 1, 63, 4095, MAIL_MESSAGE_BYTES_MAX] {
            let sent: Vec<u8> = (0..len).map(|at| at as u8).collect();
            messages.send(worker, &sent).unwrap();
            let (from, mut back) = receive(&messages);
            back.reverse();
            assert_eq!((from, back), (worker, sent));
        }
        // Many at once, and verbs between them.
        let some: Vec<[u8; 2]> = (0..500u16).map(u16::to_be_bytes).collect();
        let all: Vec<_> = some.iter().map(|bytes| (worker, &bytes[..])).collect();
        messages.send_all(&all).unwrap();
        assert_eq!(block_on(endpoint.fetch_add(at(64), 5)), Ok(0));
        for bytes in &some {
            let (_, back) = receive(&messages);
            assert_eq!(back, [bytes[1], bytes[0]], "they come in their order");
        }
        assert_eq!(node.word(64), 5);
    });
}

#[test]
fn what_cannot_be_sent_is_refused_and_what_has_no_receiver_is_lost() {
    let node = Node::new();
    let (_accepted, endpoint) = node.endpoint();
    let messages = endpoint.messages();
    let mailbox = node.agent.mailbox(NODE, None);
    let worker = messages.peer(&mailbox.address()).unwrap();
    let long = vec![0; MAIL_MESSAGE_BYTES_MAX + 1];
    for refused in [messages.send(worker, &long), mailbox.send(TcpClient::of(0), &long)] {
        assert!(matches!(refused, Err(FabricError::TooLong { .. })), "{refused:?}");
    }
    assert!(mailbox.peer(&mailbox.address()).is_err(), "a client sends first");
    let [region, number, rest, kind] = mailbox.address().words();
    for words in [[256, number, rest, kind], [region, 1 << 32, rest, kind], [0; 4]] {
        assert!(messages.peer(&MessageAddress::from_words(words)).is_err(), "{words:?}");
    }
    // Nobody is there: of this client, of this mailbox, of this node.
    mailbox.send(TcpClient::of(77), b"lost").unwrap();
    let mut nobody = worker;
    nobody.mailbox ^= 1;
    messages.send(nobody, b"lost").unwrap();
    nobody.region = RegionId(9);
    messages.send(nobody, b"lost").unwrap();
    messages.send(worker, b"not lost").unwrap();
    block_on(endpoint.fetch_add(at(0), 1)).unwrap();
    let (_, message) = mailbox.try_receive(Buf::new()).unwrap();
    assert_eq!(&message[..], b"not lost");
    assert!(mailbox.try_receive(Buf::new()).is_err());
}

#[test]
fn a_worker_that_starts_again_has_another_mailbox() {
    let node = Node::new();
    let (_accepted, endpoint) = node.endpoint();
    let messages = endpoint.messages();
    let before = node.agent.mailbox(NODE, None);
    let old = messages.peer(&before.address()).unwrap();
    drop(before);
    let next = node.agent.mailbox(NODE, None);
    messages.send(old, b"to the one before").unwrap();
    messages.send(messages.peer(&next.address()).unwrap(), b"to the next").unwrap();
    block_on(endpoint.fetch_add(at(0), 1)).unwrap();
    let (_, message) = next.try_receive(Buf::new()).unwrap();
    assert_eq!(&message[..], b"to the next");
}

/// Messages to a worker wait while it takes nothing, and are lost when there are too many. No
/// thread waits for that.
#[test]
fn a_full_mailbox_holds_nobody_up() {
    both(a_full_mailbox_holds_up_no_thread);
}

fn a_full_mailbox_holds_up_no_thread(node: &Node) {
    let (_accepted, endpoint) = node.endpoint();
    let messages = endpoint.messages();
    let (_other, other) = node.endpoint();
    let mailbox = node.agent.mailbox(NODE, None);
    let worker = messages.peer(&mailbox.address()).unwrap();
    // More than the mailbox, the sockets and the client's queue hold.
    let count = 8 * TCP_MAILBOX_BYTES_MAX as u32 / 4096;
    let send = |number: u32| {
        let mut message = vec![0; 4000];
        message[..4].copy_from_slice(&number.to_le_bytes());
        messages.send(worker, &message).unwrap();
    };
    (0..count).for_each(send);
    assert_eq!(block_on(other.fetch_add(at(0), 1)), Ok(0), "it does not wait");
    assert!(endpoint.broken().is_empty());
    let taken = std::thread::scope(|scope| {
        let taking = scope.spawn(move || {
            let mut taken = Vec::new();
            while taken.last() != Some(&count) {
                let (_, message) = block_on(mailbox.receive(Buf::new()));
                taken.push(u32::from_le_bytes(message[..4].try_into().unwrap()));
            }
            taken
        });
        // Once this is executed there is room.
        block_on(endpoint.fetch_add(at(8), 1)).unwrap();
        send(count);
        block_on(endpoint.fetch_add(at(8), 1)).unwrap();
        taking.join().unwrap()
    });
    assert!(taken.is_sorted_by(|one, next| one < next), "they come in order, and once");
    assert!(taken[1] == 1 && taken.len() < count as usize, "the last ones are lost");
}

/// A mailbox, a client that has written to it, and how the client is reached.
fn written_to(node: &Node) -> (TcpMailbox, (Accepted, Raw), TcpClient) {
    let mailbox = node.agent.mailbox(NODE, None);
    let [_, number, ..] = mailbox.address().words();
    let (accepted, mut raw) = node.client(&all(Access::Read));
    let wanted = Wanted::Message { mailbox: number as u32, len: 2 };
    raw.stream.write_all(&[wanted.header().as_bytes(), b"hi"].concat()).unwrap();
    let (from, _) = block_on(mailbox.receive(Buf::new()));
    (mailbox, (accepted, raw), from)
}

/// The next frame of a node.
fn next_told(raw: &mut Raw) -> (Told, Vec<u8>) {
    let mut header = [0; ANSWER_BYTES];
    raw.stream.read_exact(&mut header).unwrap();
    let told = Told::parse(&AnswerHeader::read_from_bytes(&header).unwrap()).unwrap();
    let len = match &told {
        Told::Message { len, .. } => *len as usize,
        Told::Answer(answer) => answer.result.unwrap() as usize,
        Told::Write { .. } => panic!("nobody has written"),
    };
    let mut body = vec![1; len];
    raw.stream.read_exact(&mut body).unwrap();
    (told, body)
}

/// A client that takes no replies costs the node a bounded amount of memory, and the worker no
/// time.
#[test]
fn replies_that_nobody_takes_are_lost() {
    let node = Node::new();
    let (mailbox, (_accepted, mut raw), from) = written_to(&node);
    let reply = vec![7; MAIL_MESSAGE_BYTES_MAX];
    for _ in 0..10_000 {
        mailbox.send(from, &reply).unwrap();
        mailbox.flush();
    }
    // What had room arrives whole, and the connection goes on.
    let request = raw.request(Verb::Read, 0, 0, 8);
    raw.send(request, &[]);
    let mut whole = 0;
    while let (Told::Message { .. }, body) = next_told(&mut raw) {
        assert_eq!(body, reply);
        whole += 1;
    }
    assert!((1..10_000).contains(&whole), "{whole} replies have come");
}

/// A worker's message does not come between the bytes of an answer that has begun.
#[test]
fn a_reply_waits_until_the_answer_that_was_begun_has_left() {
    const ANSWERS: usize = 4;
    let node = Node::new();
    let (mailbox, (_accepted, mut raw), from) = written_to(&node);
    // More than the sockets take: an answer is half sent.
    for _ in 0..ANSWERS {
        let request = raw.request(Verb::Read, 0, 0, BYTES as u32);
        raw.send(request, &[]);
    }
    let reply = vec![7; 3000];
    for _ in 0..20 {
        std::thread::sleep(Duration::from_millis(5));
        mailbox.send(from, &reply).unwrap();
        mailbox.flush();
    }
    let (mut answers, mut replies) = (0, 0);
    while answers < ANSWERS || replies == 0 {
        let (told, body) = next_told(&mut raw);
        let (byte, count) = match told {
            Told::Message { .. } => (7, &mut replies),
            _ => (0, &mut answers),
        };
        *count += 1;
        assert!(body.iter().all(|it| *it == byte), "of {answers} answers, {replies} replies");
    }
}

const SLOTS: Replies =
    Replies { at: RemoteAddr::new(HOME, 4096), len: 4 * TCP_STRAIGHT_BYTES_MIN as u32 };

/// A client with reply slots, and its home region.
fn asker(node: &Node, bells: Vec<Bell>) -> (Accepted, TcpEndpoint, Arc<Region>) {
    let home = Arc::new(Region::anonymous(1 << 20).unwrap());
    let endpoint = TcpEndpoint::new(HOME, home.clone());
    endpoint.take_replies(SLOTS);
    let grants = all(Access::Full);
    let client = Client { grants: &grants, replies: Some(SLOTS), bells, seat: None };
    let (accepted, answer) = node.agent.accept(client).unwrap();
    endpoint.connect(AWAY, BYTES, node.agent.address(), &answer, PATIENCE).unwrap();
    (accepted, endpoint, home)
}

#[test]
fn a_reply_is_written_into_the_slots_of_its_client() {
    both(a_reply_is_written);
}

fn a_reply_is_written(node: &Node) {
    let (accepted, endpoint, home) = asker(node, Vec::new());
    let serving = node.agent.endpoint(AWAY, None).unwrap();
    let slot = |place| RemoteAddr::new(HOME, 4096 + place);
    let long = 3 * TCP_STRAIGHT_BYTES_MIN;
    for (place, len) in
        [(0, 8), (64, 1000), (4096, long), (4 * TCP_STRAIGHT_BYTES_MIN as u64 - 8, 8)]
    {
        let bytes: Vec<u8> = (0..len).map(|at| (at % 251 + 1) as u8).collect();
        let (back, written) = block_on(serving.write(slot(place), Buf::from(bytes.clone())));
        assert_eq!((&back[..], written), (&bytes[..], Ok(())));
        serving.turn();
        let begun = Instant::now();
        let mut seen = vec![0; len];
        while seen != bytes {
            block_on(endpoint.yield_now());
            home.copy_out(4096 + place, &mut seen);
            assert!(begun.elapsed() < PATIENCE, "{len} bytes at {place} have not come");
        }
    }
    // No place: before, behind, over the end, and in another region.
    let end = u64::from(SLOTS.len);
    for at in
        [RemoteAddr::new(HOME, 4088), slot(end), slot(end - 7), RemoteAddr::new(RegionId(7), 4096)]
    {
        let refused = serving.write_unsignaled(at, &[1; 8]);
        assert_eq!(refused, Err(FabricError::Unreachable { region: at.region() }), "{at:?}");
    }
    drop(accepted);
    assert!(serving.write_unsignaled(slot(0), &[1; 8]).is_err(), "the client is fenced");
    let (_accepted, _endpoint, _) = asker(node, Vec::new());
    assert_eq!(serving.write_unsignaled(slot(0), &[1; 8]), Ok(()), "another client has the slots");
}

/// A node may write into a client's reply slots, and nowhere else.
#[test]
fn a_reply_that_has_no_place_ends_the_connection() {
    for (offset, len) in [(SLOTS.len - 7, 8), (u32::MAX, 8), (SLOTS.len, 1)] {
        let node = Node::new();
        let (accepted, endpoint, home) = asker(&node, Vec::new());
        assert!(accepted.push_for_test(Told::Write { offset, len }, &vec![1; len as usize]));
        let begun = Instant::now();
        while endpoint.broken().is_empty() {
            assert!(begun.elapsed() < PATIENCE);
        }
        let mut image = vec![1; 1 << 20];
        home.copy_out(0, &mut image);
        assert!(image.iter().all(|byte| *byte == 0));
    }
    let node = Node::new();
    let (accepted, endpoint) = node.endpoint();
    assert!(accepted.push_for_test(Told::Write { offset: 0, len: 8 }, &[1; 8]));
    let begun = Instant::now();
    while endpoint.broken().is_empty() {
        assert!(begun.elapsed() < PATIENCE, "it has no slots at all");
    }
}

#[test]
fn a_worker_is_woken_by_what_is_written_and_sent() {
    let node = Node::new();
    let bell = || Bell::private().unwrap();
    let (written, sent) = (bell(), bell());
    let (_accepted, endpoint, _) = asker(&node, vec![written.clone()]);
    let mailbox = node.agent.mailbox(NODE, Some(sent.clone()));
    let messages = endpoint.messages();
    let worker = messages.peer(&mailbox.address()).unwrap();
    for bell in [&written, &sent] {
        bell.arm();
    }
    let mut word = [0];
    block_on(endpoint.read_words(&[at(0)], &mut word)).unwrap();
    assert!(!written.sleep(Duration::from_millis(1)), "nothing was written");
    endpoint.write_unsignaled(at(0), &[1; 8]).unwrap();
    block_on(endpoint.yield_now());
    assert!(written.sleep(PATIENCE));
    assert!(!sent.sleep(Duration::from_millis(1)), "nothing was sent");
    messages.send(worker, b"hi").unwrap();
    block_on(endpoint.yield_now());
    assert!(sent.sleep(PATIENCE));
}

/// A client whose requests have no answers goes on for ever, and its node is asked now and then
/// whether they are over.
#[test]
fn requests_without_answers_do_not_pile_up() {
    let (_accepted, endpoint, _) = asker(&Node::new(), Vec::new());
    let node = Node::new();
    let _accepted = node.connect(&endpoint);
    for number in 1..=u64::from(TCP_UNANSWERED_MAX) {
        assert!(number == 1 || endpoint.flights_held() > 0, "nothing has said that they are over");
        endpoint.write_unsignaled(at(0), &number.to_le_bytes()).unwrap();
    }
    let begun = Instant::now();
    while endpoint.flights_held() > 0 {
        block_on(endpoint.yield_now());
        assert!(begun.elapsed() < PATIENCE);
    }
    assert_eq!(node.word(0), u64::from(TCP_UNANSWERED_MAX));
}

#[test]
fn a_connection_that_is_no_clients_is_passed_on() {
    let (passed, others) = mpsc::channel();
    let take = Box::new(move |stream, from| drop(passed.send((stream, from))));
    let region = Arc::new(Region::anonymous(BYTES).unwrap());
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
    let options = AgentOptions { others: Some(take), ..AgentOptions::default() };
    let agent = Agent::start(region.clone(), listener, options).unwrap();
    let node = Node { region, agent };
    let mut stranger = node.stranger();
    stranger.write_all(b"L").unwrap();
    let (mut stream, from): (TcpStream, _) = others.recv_timeout(PATIENCE).unwrap();
    assert_eq!(from, Ipv4Addr::LOCALHOST);
    stranger.write_all(b"OCH").unwrap();
    let mut said = [0; 4];
    stream.read_exact(&mut said).unwrap();
    assert_eq!(&said, b"LOCH");
    // Clients are served beside it, even those that begin slowly.
    let (_accepted, answer) = node.agent.accept(client(&all(Access::Full))).unwrap();
    let mut slow = node.stranger();
    for byte in Hello::new(answer.token, false).as_bytes() {
        slow.write_all(&[*byte]).unwrap();
    }
    let mut welcome = [0; WELCOME_BYTES];
    slow.read_exact(&mut welcome).unwrap();
    assert_eq!(Welcome::read_from_bytes(&welcome).unwrap().result(), Ok(Ok(())));
    drop(node);
    stream.write_all(b"still").unwrap();
    let mut still = [0; 5];
    stranger.read_exact(&mut still).unwrap();
    assert_eq!(&still, b"still", "it is another's by now");
}

/// A client at the node's own region waits for its connection, so its replies come there.
#[test]
fn a_reply_to_a_client_of_the_same_host_goes_on_its_connection() {
    let node = Node::new();
    let endpoint = TcpEndpoint::new(AWAY, node.region.clone());
    let slots = Replies { at: at(4096), len: 4096 };
    endpoint.take_replies(slots);
    let serving = node.agent.endpoint(AWAY, None).unwrap();
    serving.store(at(4096), &[b"be", b"fore.."]).unwrap();
    let seen = |offset| node.word(offset).to_le_bytes();
    assert_eq!(&seen(4096), b"before..", "there is no connection, so it is stored");
    let grants = all(Access::Full);
    let client = Client { grants: &grants, replies: Some(slots), bells: Vec::new(), seat: None };
    let (_accepted, answer) = node.agent.accept(client).unwrap();
    endpoint.connect(AWAY, BYTES, node.agent.address(), &answer, PATIENCE).unwrap();
    serving.store(at(4096), &[b"af", b"ter..."]).unwrap();
    serving.store(at(8192), &[b"elsewher"]).unwrap();
    assert_eq!((&seen(4096), &seen(8192)), (b"before..", b"elsewher"), "it has not left");
    serving.turn();
    let begun = Instant::now();
    while &seen(4096) != b"after..." {
        block_on(endpoint.yield_now());
        assert!(begun.elapsed() < PATIENCE);
    }
}

/// A client whose worker has this seat.
fn seated(node: &Node, seat: SeatId) -> (Accepted, TcpEndpoint) {
    let endpoint = TcpEndpoint::new(HOME, Arc::new(Region::anonymous(1 << 20).unwrap()));
    let grants = all(Access::Full);
    let client = Client { grants: &grants, replies: None, bells: Vec::new(), seat: Some(seat) };
    let (accepted, answer) = node.agent.accept(client).unwrap();
    endpoint.connect(AWAY, BYTES, node.agent.address(), &answer, PATIENCE).unwrap();
    (accepted, endpoint)
}

/// Does turns until the worker drives so many connections.
fn until_driven(worker: &AgentEndpoint, connections: usize) {
    let begun = Instant::now();
    while worker.connections() != connections {
        worker.turn();
        assert!(begun.elapsed() < PATIENCE, "{} connections", worker.connections());
    }
}

/// A worker that drives the connection of its client.
struct Driven {
    bell: Bell,
    worker: AgentEndpoint,
    accepted: Accepted,
    endpoint: TcpEndpoint,
}

fn driven(node: &Node) -> Driven {
    let bell = Bell::private().unwrap();
    let seat = node.agent.seat(bell.clone());
    let worker = node.agent.endpoint(AWAY, Some(seat)).unwrap();
    let (accepted, endpoint) = seated(node, seat);
    until_driven(&worker, 1);
    Driven { bell, worker, accepted, endpoint }
}

/// Adds 1 to the first word; whether it was done while the worker did `turns` turns.
fn adds_within(endpoint: &TcpEndpoint, worker: &AgentEndpoint, turns: u32) -> bool {
    let mut adding = pin!(endpoint.fetch_add(at(0), 1));
    let mut left = turns;
    let begun = Instant::now();
    block_on(poll_fn(|cx| {
        if adding.as_mut().poll(cx).is_ready() {
            return Poll::Ready(true);
        }
        // The agent's thread has time to do what is not its own.
        if begun.elapsed() > Duration::from_millis(30) && left == 0 {
            return Poll::Ready(false);
        }
        if left > 0 {
            left -= 1;
            worker.turn();
        }
        cx.waker().wake_by_ref();
        Poll::Pending
    }))
}

#[test]
fn a_worker_drives_its_clients_while_it_has_its_seat() {
    let node = Node::new();
    let seat = node.agent.seat(Bell::private().unwrap());
    let mut clients = vec![seated(&node, seat)];
    block_on(clients[0].1.fetch_add(at(0), 1)).unwrap();
    for _ in 0..3 {
        let worker = node.agent.endpoint(AWAY, Some(seat)).unwrap();
        clients.push(seated(&node, seat));
        // The agent hands over what it has driven, now or after the next requests.
        for (_, endpoint) in &clients {
            assert!(adds_within(endpoint, &worker, u32::MAX));
        }
        until_driven(&worker, clients.len());
        let was = node.word(0);
        for (_, endpoint) in &clients {
            assert!(!adds_within(endpoint, &worker, 0), "nobody but the worker executes it");
        }
        assert_eq!(node.word(0), was);
        assert!(adds_within(&clients[0].1, &worker, u32::MAX));
        drop(worker);
        for (_, endpoint) in &clients {
            block_on(endpoint.fetch_add(at(0), 1)).unwrap();
        }
    }
}

#[test]
fn a_worker_that_sleeps_is_woken_by_what_comes_on_its_connections() {
    let node = Node::new();
    let Driven { bell, worker, accepted: _accepted, endpoint } = driven(&node);
    for _ in 0..3 {
        bell.arm();
        worker.turn();
        assert!(!bell.sleep(Duration::from_millis(5)), "nothing has come");
        endpoint.write_unsignaled(at(8), &[1; 8]).unwrap();
        block_on(endpoint.yield_now());
        assert!(bell.sleep(PATIENCE), "nobody has rung");
        worker.turn();
        assert!(adds_within(&endpoint, &worker, u32::MAX));
    }
    // The last look finds a request that came before it, or the request rings.
    endpoint.write_unsignaled(at(8), &[2; 8]).unwrap();
    block_on(endpoint.yield_now());
    bell.arm();
    worker.turn();
    assert!(node.word(8) == u64::from_ne_bytes([2; 8]) || bell.sleep(PATIENCE));
}

/// A turn has an end while there is more to do, which no socket tells again.
#[test]
fn a_worker_does_not_sleep_while_a_connection_has_to_go_on() {
    let node = Node::new();
    let Driven { bell, worker, accepted: _accepted, endpoint } = driven(&node);
    let mut reads = Vec::new();
    for _ in 0..128 {
        reads.push(Box::pin(endpoint.read(at(0), 64 << 10, Buf::new())));
    }
    let (begun, mut turns_cut) = (Instant::now(), 0);
    block_on(poll_fn(|cx| {
        reads.retain_mut(|read| read.as_mut().poll(cx).is_pending());
        bell.arm();
        worker.turn();
        let goes_on = worker.has_more();
        turns_cut += usize::from(goes_on);
        assert!(!goes_on || !bell.is_armed(), "the worker would sleep");
        assert!(begun.elapsed() < PATIENCE);
        cx.waker().wake_by_ref();
        if reads.is_empty() { Poll::Ready(()) } else { Poll::Pending }
    }));
    assert!(turns_cut > 0, "8 MiB are more than a turn has");
}

#[test]
fn a_client_that_is_fenced_is_cut_off_by_its_worker_too() {
    let node = Node::new();
    let Driven { worker, accepted, endpoint, .. } = driven(&node);
    endpoint.write_unsignaled(at(0), &[1; 8]).unwrap();
    block_on(endpoint.yield_now());
    drop(accepted);
    until_driven(&worker, 0);
    assert_eq!(node.word(0), 0, "a fenced client's WRITE was executed");
    assert!(block_on(endpoint.fetch_add(at(0), 1)).is_err());
}

#[test]
fn a_worker_that_ends_after_its_agent_ends_its_connections() {
    let node = Node::new();
    let Driven { worker, accepted: _accepted, endpoint, .. } = driven(&node);
    drop(node);
    drop(worker);
    assert!(block_on(endpoint.fetch_add(at(0), 1)).is_err());
}
