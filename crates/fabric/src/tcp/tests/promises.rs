//! The promises of an agent. These tests find an agent that breaks one of them.

use std::panic::catch_unwind;

use super::*;
use crate::tcp::planted::Fault;

/// A test, of an agent with this fault.
type Test = fn(Option<Fault>);

fn node(fault: Option<Fault>) -> Node {
    let node = Node::new();
    fault.into_iter().for_each(|fault| node.agent.plant(fault));
    node
}

#[test]
fn a_verb_that_a_key_does_not_open_is_refused_and_changes_nothing() {
    keys_are_checked(None);
}

fn keys_are_checked(fault: Option<Fault>) {
    let node = node(fault);
    let grant = |offset, access| Grant { offset, len: 4096, access };
    let grants =
        [grant(0, Access::Read), grant(4096, Access::ReadAtomic), grant(8192, Access::Full)];
    let (_accepted, mut client) = node.client(&grants);
    let (_other, other) = node.client(&all(Access::Full));
    let swap = swap_words(0, 1);
    for (verb, grant, offset, body, refusal) in [
        (Verb::Write, 0, 0, &[7; 8][..], Refusal::ReadOnly),
        (Verb::FetchAdd, 0, 0, &[7; 8], Refusal::ReadOnly),
        (Verb::CompareSwap, 0, 0, &swap, Refusal::ReadOnly),
        (Verb::Write, 1, 4096, &[7; 8], Refusal::ReadOnly),
        (Verb::Write, 2, 4096, &[7; 8], Refusal::OutOfBounds),
        (Verb::Write, 2, 12_281, &[7; 8], Refusal::OutOfBounds),
        (Verb::Read, 2, 0, &[], Refusal::OutOfBounds),
        (Verb::CompareSwap, 2, 8196, &swap, Refusal::Misaligned),
        (Verb::FetchAdd, 1, 4100, &[7; 8], Refusal::Misaligned),
    ] {
        let request = client.request(verb, grant, offset, 8);
        assert_eq!(client.ask(request, body), Err(refusal), "{verb:?} at {offset}");
    }
    // A key of another connection, to memory that this one may use by its own.
    let mut request = client.request(Verb::Write, 2, 8192, 8);
    request.key = other.answer.grants[0].rkey;
    assert_eq!(client.ask(request, &[7; 8]), Err(Refusal::UnknownKey));
    let mut image = vec![0; 16 << 10];
    node.region.copy_out(0, &mut image);
    assert!(image.iter().all(|byte| *byte == 0));
    let request = client.request(Verb::Write, 2, 8192, 8);
    assert_eq!(client.ask(request, &[7; 8]), Ok(vec![]), "the connection is as good as before");
    assert_eq!(node.word(8192), u64::from_le_bytes([7; 8]));
}

#[test]
fn what_was_received_before_the_fence_is_not_executed_after_it() {
    the_fence_holds(None);
}

fn the_fence_holds(fault: Option<Fault>) {
    let lent = lent(BYTES);
    fault.into_iter().for_each(|fault| lent.planted.plant(fault));
    let (accepted, mut connection, mut theirs, keys) = pair(&lent, client(&all(Access::Full)));
    let (key, is_signaled) = (keys[0], true);
    let read = Request { verb: Verb::Read, is_signaled, tag: 0, key, offset: 0, len: BYTES as u32 };
    let add = Request { verb: Verb::FetchAdd, len: 8, tag: 1, ..read };
    let sent = [read.header().as_bytes(), add.header().as_bytes(), &[1; 8]].concat();
    theirs.write_all(&sent).unwrap();
    let mut scratch = Scratch::new();
    let next = connection.turn(&lent, &mut scratch).unwrap();
    assert_eq!(next, Next::Write, "the answer to the READ has no room");
    assert!(connection.held_bytes() > 0, "the addition was received");
    drop(accepted);
    theirs.set_nonblocking(true).unwrap();
    while theirs.read(&mut [0; 1 << 16]).is_ok_and(|bytes| bytes > 0) {}
    let fenced = connection.turn(&lent, &mut scratch);
    assert!(matches!(fenced, Err(Cut::Fenced)), "{fenced:?}");
    assert_eq!(lent.region.word(0).load(std::sync::atomic::Ordering::SeqCst), 0);
}

/// The processor sees what a verb has changed when its client knows that it is over.
#[test]
fn a_verb_is_complete_when_it_was_applied() {
    completion_follows(None);
}

fn completion_follows(fault: Option<Fault>) {
    let node = node(fault);
    let (_accepted, mut client) = node.client(&all(Access::Full));
    for round in 1..200u64 {
        let write = client.request(Verb::Write, 0, 0, 8);
        assert_eq!(client.ask(write, &round.to_le_bytes()), Ok(vec![]));
        assert_eq!(node.word(0), round);
        let swap = client.request(Verb::CompareSwap, 0, 8, 8);
        assert!(client.ask(swap, &swap_words(round - 1, round)).is_ok());
        assert_eq!(node.word(8), round);
        let add = client.request(Verb::FetchAdd, 0, 16, 8);
        assert!(client.ask(add, &1u64.to_le_bytes()).is_ok());
        assert_eq!(node.word(16), round);
    }
}

/// The tests above find an agent that does not keep what it promises.
#[test]
fn planted_faults_are_found() {
    let tests = [
        (Fault::KeysUnchecked, keys_are_checked as Test),
        (Fault::FenceForgotten, the_fence_holds),
        (Fault::AnsweredBeforeApplied, completion_follows),
    ];
    for (fault, test) in tests {
        let passed = catch_unwind(|| test(Some(fault)));
        assert!(passed.is_err(), "{fault:?} was not found");
    }
}
