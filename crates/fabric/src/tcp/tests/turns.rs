//! No connection takes more than its part of a thread's time.

use super::super::admission::{Admitted, Push, Replies};
use super::super::drive::Drive;
use super::super::inbox::Inbox;
use super::super::letters::Letters;
use super::super::noise::Dialing;
use super::super::stream::Outward;
use super::super::turns::{Turns, Waker as TurnWaker};
use super::*;
use crate::limits::TCP_PUSHED_BYTES_MAX;

/// The thread looked at it once more with each of its turns, and did not rest between them.
#[test]
fn a_client_that_hangs_up_before_a_full_mailbox_is_looked_at_once_a_turn() {
    const LEN: usize = 3000;
    let lent = lent(BYTES);
    let letters = Arc::new(Letters::new(None));
    let mailbox = lent.open_mailbox(&letters);
    let (_accepted, connection, mut theirs, _) = pair(&lent, client(&all(Access::Full)));
    let mut drive = Drive::new(Arc::new(Inbox::new().unwrap())).unwrap();
    drive.adopt(connection);
    theirs.set_nonblocking(true).unwrap();
    let message = Wanted::Message { mailbox, len: LEN as u32 };
    let message = [message.header().as_bytes(), &[1; LEN]].concat();
    let mut at = 0;
    // Its socket is full, too.
    for _ in 0..4000 {
        while let Ok(sent) = theirs.write(&message[at..]) {
            at = (at + sent) % message.len();
        }
        turn(&mut drive, &lent);
    }
    assert_eq!(drive.queued(), 1, "it waits for the worker");
    drop(theirs);
    let begun = Instant::now();
    for _ in 0..20 {
        turn(&mut drive, &lent);
        assert_eq!(drive.queued(), 1);
    }
    assert!(begun.elapsed() < PATIENCE, "and each look is short");
}

/// Records of one byte each have few bytes in a chunk, and it takes long to open them.
#[test]
fn a_turn_ends_soon_if_records_are_short() {
    const CHUNKS_OF_A_TURN: usize = 20;
    const RECORD_BYTES: usize = 19;
    let region = Arc::new(Region::anonymous(BYTES).unwrap());
    let lent = Arc::new(Lent::new(region.clone(), true));
    let (theirs, ours) = UnixStream::pair().unwrap();
    ours.set_nonblocking(true).unwrap();
    let (keys, told) = Keys::new(&all(Access::Full));
    let (_accepted, ticket) = lent.admit(keys, client(&all(Access::Full)));
    let hello = Hello::new(ticket.token, true);
    let (dialing, message) = Dialing::begin(ticket.key.as_ref().unwrap(), hello.as_bytes());
    let redeemed = lent.redeem(&ticket.token, &hello, Some(&message)).unwrap();
    let Redeemed { client, halves, answer } = redeemed;
    let Outward::Sealed(mut sealer) = dialing.end(&answer.unwrap()).unwrap().outward else {
        unreachable!("there is a key");
    };
    let mut connection = Connection::new(Arc::new(ours.into()), client, halves, &[]).unwrap();
    let (verb, len) = (Verb::Write, 1 << 20);
    let request = Request { verb, is_signaled: true, tag: 0, key: told[0], offset: 0, len };
    let mut records = Vec::new();
    let mut seal = |contents: &[u8]| {
        let record = sealer.record_for_test(contents);
        records.extend((record.len() as u16).to_le_bytes());
        records.extend(record);
    };
    seal(request.header().as_bytes());
    (0..len).for_each(|_| seal(&[1]));
    // The socket never has all of them, nor is it ever empty for long.
    let mut sending = theirs.try_clone().unwrap();
    let sender = std::thread::spawn(move || drop(sending.write_all(&records)));
    let mut scratch = Scratch::new();
    let (mut come, since) = (0, Instant::now());
    while come < 400_000 {
        connection.turn(&lent, &mut scratch).unwrap();
        let mut bytes = vec![0; len as usize];
        region.copy_out(0, &mut bytes);
        let now = bytes.iter().take_while(|byte| **byte == 1).count();
        let most = CHUNKS_OF_A_TURN * TCP_CHUNK_BYTES / RECORD_BYTES;
        assert!(now - come <= most, "{} bytes in a turn", now - come);
        come = now;
        assert!(since.elapsed() < PATIENCE);
    }
    drop((theirs, connection));
    sender.join().unwrap();
}

const SLOTS: Replies = Replies { at: RemoteAddr::new(HOME, 64), len: 4096 };
/// Bytes that may wait for a client which does not receive.
const ROOM: usize = TCP_PUSHED_BYTES_MAX + SLOTS.len as usize;

/// A client with reply slots whose connection a thread drives, the client's end, and the way to it.
struct Pushed {
    _accepted: Accepted,
    theirs: UnixStream,
    drive: Drive,
    client: Arc<Admitted>,
}

fn pushed(lent: &Arc<Lent>) -> Pushed {
    let grants = all(Access::Full);
    let client = Client { replies: Some(SLOTS), ..client(&grants) };
    let (_accepted, connection, theirs, _) = pair(lent, client);
    rustix::io::ioctl_fionbio(&**connection.socket(), true).unwrap();
    let mut drive = Drive::new(Arc::new(Inbox::new().unwrap())).unwrap();
    drive.adopt(connection);
    turn(&mut drive, lent);
    let (client, _) = lent.way_to(SLOTS.at, 1).unwrap();
    Pushed { _accepted, theirs, drive, client }
}

/// One that does not wait. Returns whether there was something for connections.
fn turn(drive: &mut Drive, lent: &Lent) -> bool {
    drive.turn(lent, Some(Duration::ZERO), &mut Vec::new())
}

fn push(client: &Admitted, bytes: &[u8]) -> Push {
    client.push(Told::Write { offset: 0, len: bytes.len() as u32 }, &[bytes])
}

/// Takes what comes until it is so much.
fn take(theirs: &mut UnixStream, bytes: usize) -> Vec<u8> {
    let mut taken = vec![0; bytes];
    theirs.set_read_timeout(Some(PATIENCE)).unwrap();
    theirs.read_exact(&mut taken).unwrap();
    taken
}

#[test]
fn the_socket_gets_the_rest_of_what_was_pushed_when_it_has_room() {
    let lent = lent(BYTES);
    let Pushed { _accepted, mut theirs, mut drive, client } = pushed(&lent);
    let frame = ANSWER_BYTES + SLOTS.len as usize;
    let mut frames = 0;
    while push(&client, &[7; SLOTS.len as usize]) != Push::Lost {
        frames += 1;
        client.flush();
    }
    assert!(client.held_bytes() > TCP_PUSHED_BYTES_MAX - frame, "its socket is full");
    let taker = std::thread::spawn(move || take(&mut theirs, frames * frame));
    let begun = Instant::now();
    while !taker.is_finished() {
        assert!(begun.elapsed() < PATIENCE, "the rest has not come");
        drive.turn(&lent, Some(Duration::from_millis(1)), &mut Vec::new());
    }
    assert!(taker.join().unwrap().chunks(frame).all(|frame| frame[ANSWER_BYTES..] == [7; 4096]));
    assert!(client.held_bytes() < TCP_PUSHED_BYTES_MAX, "a client at rest holds little memory");
}

#[test]
fn what_the_socket_takes_at_once_wakes_no_thread() {
    let lent = lent(BYTES);
    let Pushed { _accepted, mut theirs, mut drive, client } = pushed(&lent);
    assert_eq!(push(&client, &[1; 8]), Push::First);
    assert_eq!(push(&client, &[2; 8]), Push::Behind);
    client.flush();
    assert!(!turn(&mut drive, &lent));
    take(&mut theirs, 2 * (ANSWER_BYTES + 8));
    assert!(client.held_bytes() > 0, "the memory for the next ones");
}

#[test]
fn what_has_no_room_is_lost_and_nothing_is_pushed_to_a_client_that_has_not_come() {
    let lent = lent(BYTES);
    let grants = all(Access::Full);
    let (keys, _) = Keys::new(&grants);
    let admitted = lent.admit(keys, Client { replies: Some(SLOTS), ..client(&grants) });
    let (client, _) = lent.way_to(SLOTS.at, 1).unwrap();
    assert_eq!(push(&client, b"early"), Push::Lost);
    drop((admitted, client));
    let Pushed { _accepted, mut theirs, drive: _drive, client } = pushed(&lent);
    assert_eq!(push(&client, &[0; ROOM + 1]), Push::Lost);
    assert_eq!(push(&client, &[1; ROOM]), Push::First);
    assert_eq!(push(&client, &[2; 1]), Push::Lost);
    let taker = std::thread::spawn(move || take(&mut theirs, ANSWER_BYTES + ROOM));
    while !taker.is_finished() {
        client.flush();
    }
    assert_eq!(taker.join().unwrap()[ANSWER_BYTES..], [1; ROOM]);
    assert_eq!(client.held_bytes(), 0, "so much is given back");
}

#[test]
fn a_connection_that_is_woken_after_its_turn_has_another_one() {
    let inbox = Arc::new(Inbox::new().unwrap());
    let lent = lent(BYTES);
    let (_accepted, connection, _theirs, _) = pair(&lent, client(&all(Access::Full)));
    let mut drive = Drive::new(inbox.clone()).unwrap();
    drive.adopt(connection);
    // It is ready, so its turn comes before that for which it is woken.
    TurnWaker::new(inbox.turns.clone(), 0).wake();
    assert!(turn(&mut drive, &lent), "there was something");
    assert_eq!(drive.queued(), 1);
    TurnWaker::new(inbox.turns.clone(), 0).wake();
    turn(&mut drive, &lent);
    turn(&mut drive, &lent);
    assert_eq!(drive.queued(), 0);
}

#[test]
fn a_bell_that_has_not_rung_holds_up_nobody() {
    let turns = Turns::new().unwrap();
    assert!(turns.take().is_empty());
    turns.ring();
    assert!(turns.take().is_empty() && turns.take().is_empty());
}

/// A process that was forked holds all sockets, until it executes another program.
#[test]
fn a_client_that_is_cut_off_sees_it_whoever_holds_the_socket() {
    let lent = lent(BYTES);
    let (_accepted, connection, mut theirs, _) = pair(&lent, client(&all(Access::Full)));
    let _forked = connection.socket().try_clone().unwrap();
    let mut drive = Drive::new(Arc::new(Inbox::new().unwrap())).unwrap();
    drive.adopt(connection);
    theirs.write_all(&[0xff; 64]).unwrap();
    turn(&mut drive, &lent);
    assert_eq!(drive.connections(), 0, "that is no request");
    theirs.set_read_timeout(Some(PATIENCE)).unwrap();
    // The bytes that the agent did not receive may have reset the connection.
    assert!(!matches!(theirs.read(&mut [0; 64]), Err(e) if e.kind() == ErrorKind::WouldBlock));
}
