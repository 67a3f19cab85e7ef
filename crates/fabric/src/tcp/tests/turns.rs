//! No connection takes more than its part of a thread's time.

use super::super::drive::Drive;
use super::super::inbox::Inbox;
use super::super::letters::Letters;
use super::super::noise::Dialing;
use super::super::stream::Outward;
use super::*;

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
    let (mut at, turn) = (0, |drive: &mut Drive| {
        drive.turn(&lent, Some(Duration::ZERO), &mut Vec::new());
    });
    // Its socket is full, too.
    for _ in 0..4000 {
        while let Ok(sent) = theirs.write(&message[at..]) {
            at = (at + sent) % message.len();
        }
        turn(&mut drive);
    }
    assert_eq!(drive.queued(), 1, "it waits for the worker");
    drop(theirs);
    let begun = Instant::now();
    for _ in 0..20 {
        turn(&mut drive);
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
