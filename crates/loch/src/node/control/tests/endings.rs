//! Cards that take long to end a connection, or to let one in. Only the answer to a fence waits for
//! that.

use std::collections::HashSet;
use std::sync::Arc;

use serde_json::json;

use super::super::registry::{Ended, LinkId, Registry};
use super::rig::{Book, GONE, Rig, eventually, member};
use crate::node::control_client::{Caller, ControlClient};
use crate::node::sessions::SessionEnd;
use crate::session::slot::{Process, SessionId};
use crate::session::wire::{Code, Connect};

const SLOW: &str = "out \"slow\"";

/// Found on two virtual machines whose wire was cut: the control port ended a dead client's
/// connection under the lock of its node. Meanwhile it answered nothing to that node, even after
/// the node had come back.
#[test]
fn a_node_is_answered_while_a_card_takes_its_time_to_end_a_connection() {
    let mut rig = Rig::new(2);
    let (dies, lives) = (rig.open(0, GONE), rig.open(0, Process::own()));
    rig.connect_soon(0, Caller::Session(dies), 1, "slow");
    rig.places[1].book.hold(SLOW);
    assert!(rig.places[0].sessions.close(dies, GONE, SessionEnd::Died).is_some());
    rig.control(0).plane().sessions_ended();
    rig.connect_soon(0, Caller::Session(lives), 1, "meanwhile");
    assert_eq!(rig.admitted(1), [json!("slow"), json!("meanwhile")]);
    // The node's process is killed, and another comes back and says which clients live.
    rig.restart(0);
    rig.connect_soon(0, Caller::Session(lives), 1, "again");
    assert_eq!(rig.admitted(1), [json!("slow"), json!("again")]);
    // The verbs of the dead session may still be executed there.
    assert_eq!(rig.places[0].sessions.dying(), [dies]);
    rig.places[1].book.release();
    eventually("its slot is free", || rig.places[0].sessions.dying().is_empty());
    assert_eq!(rig.admitted(1), [json!("again")]);
}

#[test]
fn a_node_serves_its_own_clients_while_a_card_takes_its_time() {
    let rig = Rig::new(1);
    let (dies, lives) = (rig.open(0, Process::own()), Caller::Session(rig.open(0, Process::own())));
    rig.connect(0, Caller::Session(dies), 0, "slow").unwrap();
    rig.places[0].book.hold(SLOW);
    assert!(rig.places[0].sessions.close(dies, Process::own(), SessionEnd::Died).is_some());
    rig.control(0).plane().sessions_ended();
    rig.connect(0, lives, 0, "meanwhile").unwrap();
    assert_eq!(rig.places[0].sessions.dying(), [dies]);
    rig.places[0].book.release();
    eventually("its slot is free", || rig.places[0].sessions.dying().is_empty());
}

#[test]
fn a_client_gets_no_connection_before_the_one_before_has_ended() {
    let rig = Rig::new(2);
    let session = Caller::Session(rig.open(0, Process::own()));
    rig.connect_soon(0, session, 1, "slow");
    rig.places[1].book.hold(SLOW);
    let refused = rig.connect(0, session, 1, "second").unwrap_err();
    assert_eq!(refused.code, Code::Away);
    assert!(refused.text.contains("still being ended"), "{}", refused.text);
    rig.places[1].book.release();
    rig.connect_soon(0, session, 1, "second");
    let lines = rig.places[1].book.lines();
    assert_eq!(lines, ["in \"slow\"", SLOW, "in \"second\""]);
}

const HOME: u16 = 1;
const CALLER: Caller = Caller::Session(SessionId { slot: 2, incarnation: 7 });

fn over(number: u64) -> LinkId {
    LinkId { home: HOME, number }
}

fn registry(book: &Book) -> (Arc<Registry>, Connect) {
    let own = member(0, 2, 3);
    let ask = Connect {
        session: None,
        secret: None,
        endpoint: 0,
        node: 0,
        identity: own.header.identity,
        table: 0,
        unreliable: false,
        offer: json!("slow"),
    };
    (Arc::new(Registry::new(own, Arc::new(book.clone()))), ask)
}

#[test]
fn the_link_that_was_dialed_last_counts_whichever_thread_comes_first() {
    let (registry, ask) = registry(&Book::default());
    assert_eq!(registry.take_over(over(5)), Some(0));
    assert_eq!(registry.take_over(over(4)), None);
    assert_eq!(registry.take_over(over(6)), Some(5));
    assert_eq!(registry.fence(over(5), &[CALLER]), Ended::Superseded);
    assert!(registry.admit(over(5), CALLER, &ask).is_err());
    assert!(registry.admit(over(6), CALLER, &ask).is_ok());
    assert_eq!(registry.retain(over(5), &HashSet::new()), Ended::Superseded);
    assert_eq!(registry.count(HOME), 1);
}

/// The node has asked for a connection and was killed. The request is being executed when the
/// node's next process says which clients live.
#[test]
fn a_link_that_has_a_successor_lets_no_client_in() {
    let book = Book::default();
    let (registry, ask) = registry(&book);
    registry.take_over(over(1)).unwrap();
    book.hold("in \"slow\"");
    let (theirs, told) = (registry.clone(), std::sync::mpsc::channel());
    let asked = std::thread::spawn(move || {
        told.0.send(()).unwrap();
        theirs.admit(over(1), CALLER, &ask)
    });
    told.1.recv().unwrap();
    eventually("it is being let in", || registry.fence(over(1), &[CALLER]) == Ended::NotYet);
    registry.take_over(over(2)).unwrap();
    assert_eq!(registry.retain(over(2), &HashSet::new()), Ended::NotYet);
    book.release();
    assert!(asked.join().unwrap().is_err());
    assert_eq!(registry.retain(over(2), &HashSet::new()), Ended::All);
    assert_eq!(book.lines(), ["in \"slow\"", SLOW]);
}

/// A node that stops lets no client in, even if its device was about to let it in.
#[test]
fn a_node_that_stops_lets_no_client_in() {
    let book = Book::default();
    let (registry, ask) = registry(&book);
    registry.take_over(over(1)).unwrap();
    book.hold("in \"slow\"");
    let other = Connect { offer: json!("other"), ..ask.clone() };
    let is_refused =
        || registry.admit(over(1), Caller::Reader { connection: 1, endpoint: 0 }, &other).is_err();
    let [theirs, closes] = [registry.clone(), registry.clone()];
    let asked = std::thread::spawn(move || theirs.admit(over(1), CALLER, &ask));
    eventually("it is being let in", || registry.fence(over(1), &[CALLER]) == Ended::NotYet);
    assert!(!is_refused());
    let closed = std::thread::spawn(move || closes.close());
    eventually("it stops", is_refused);
    book.release();
    assert!(asked.join().unwrap().is_err());
    closed.join().unwrap();
    assert_eq!(book.admitted(), [json!(null); 0]);
}
