//! The requests that nodes make for their clients: connections, fences, and faults in the middle.

use std::net::TcpListener;
use std::sync::mpsc;
use std::time::Instant;

use loch_fabric::Access::{Full, Read, ReadAtomic};
use loch_fabric::shm::Bell;
use serde_json::json;

use super::super::jobs::{Job, Jobs};
use super::super::messages::{ControlReply, ControlRequest};
use super::super::peer::PeerWorker;
use super::links::{dial, soon};
use super::ports::free_address;
use super::rig::{GONE, Rig, Wall, eventually, member, secret};
use crate::limits::{ASK_TIMEOUT, DIAL_TIMEOUT, INSPECT_TIMEOUT};
use crate::node::control_client::{Caller, ControlClient};
use crate::node::sessions::SessionEnd;
use crate::node::workers::Inspector;
use crate::node::workers::inspector::Asked;
use crate::session::slot::Process;
use crate::session::wire::{Code, Inspected, Question, Reply, Told};

const READER: Caller = Caller::Reader { connection: 9, endpoint: 1 };

#[test]
fn a_client_is_let_in_everywhere_with_what_it_may_do() {
    let rig = Rig::new(3);
    let session = Caller::Session(rig.open(0, Process::own()));
    rig.connect_soon(0, session, 1, "far");
    assert_eq!(rig.places[1].book.access(), [ReadAtomic, ReadAtomic, Read, Full]);
    assert_eq!(rig.connect(0, session, 0, "near").unwrap(), json!({"answers": "near"}));
    assert_eq!(rig.places[0].book.access(), [ReadAtomic, ReadAtomic, Read, Full]);
    rig.control(0).plane().fences().enter(READER);
    rig.connect_soon(0, READER, 2, "reader");
    assert_eq!(rig.places[2].book.access(), [Read, Read, Read, Read]);
}

#[test]
fn the_connection_before_is_ended_first() {
    let rig = Rig::new(2);
    let session = Caller::Session(rig.open(0, Process::own()));
    rig.connect_soon(0, session, 1, "first");
    rig.connect(0, session, 1, "second").unwrap();
    let lines = rig.places[1].book.lines();
    assert_eq!(lines, ["in \"first\"", "out \"first\"", "in \"second\""]);
    // If a connection fails there is none: the verbs on the one before are settled.
    let refused = rig.connect(0, session, 1, "broken").unwrap_err();
    assert!(refused.text.contains("no such queue pair"), "{}", refused.text);
    assert_eq!(rig.admitted(1), [json!(null); 0]);
}

#[test]
fn a_connection_that_cannot_be_is_refused() {
    let mut rig = Rig::new(2);
    let session = Caller::Session(rig.open(0, Process::own()));
    rig.connect_soon(0, session, 1, "good");
    let code = |refused: Result<_, crate::session::wire::Refused>| refused.unwrap_err().code;
    assert_eq!(code(rig.connect(0, READER, 1, "nobody")), Code::NoSuchSession);
    rig.places[0].sessions.close_all_of(Process::own());
    assert_eq!(code(rig.connect(0, session, 1, "dying")), Code::NoSuchSession);
    let session = Caller::Session(rig.open(0, Process::own()));
    // The node has come back with other memory than the client knows.
    rig.places[1].member.header.identity ^= 2;
    assert_eq!(code(rig.connect(0, session, 1, "old")), Code::OtherMemory);
    assert!(matches!(rig.control(0).plane().member(7), Reply::Refused(_)));
}

#[test]
fn a_session_keeps_its_slot_until_all_have_fenced_it() {
    let rig = Rig::new(3);
    let opened = rig.open(0, Process::own());
    let other = Caller::Session(rig.open(0, Process::own()));
    let session = Caller::Session(opened);
    for node in 0..3 {
        rig.connect_soon(0, session, node, "dies");
        rig.connect_soon(0, other, node, "lives");
    }
    assert!(rig.places[0].sessions.close(opened, Process::own(), SessionEnd::Died).is_some());
    rig.control(0).plane().sessions_ended();
    eventually("its slot is free", || rig.places[0].sessions.dying().is_empty());
    for node in 0..3 {
        assert_eq!(rig.admitted(node), [json!("lives")], "node {node}");
    }
    assert_eq!(rig.open(0, Process::own()).slot, opened.slot);
}

#[test]
fn while_a_node_is_silent_nothing_that_it_may_hold_is_used_again() {
    let mut rig = Rig::new(2);
    let opened = rig.open(0, Process::own());
    let elsewhere = rig.open(0, Process::own());
    rig.connect_soon(0, Caller::Session(opened), 1, "far");
    rig.connect_soon(0, Caller::Session(elsewhere), 0, "near");
    rig.stop(1);
    // The port accepts connections and says nothing: the process may live, and hold connections.
    let mute = TcpListener::bind(&rig.addresses[1]).unwrap();
    rig.places[0].sessions.close_all_of(Process::own());
    rig.control(0).plane().sessions_ended();
    eventually("who was not there is free", || rig.places[0].sessions.dying() == [opened]);
    let refused = rig.connect(0, READER, 1, "x").unwrap_err();
    assert!(matches!(refused.code, Code::Away), "{refused:?}");
    assert_eq!(rig.places[0].sessions.dying(), [opened]);
    drop(mute);
    rig.start(1);
    eventually("its slot is free", || rig.places[0].sessions.dying().is_empty());
}

/// Makes node `of` try once more to reach node 1, and waits until the try is over.
fn dial_once(rig: &Rig, of: usize) {
    let (sender, queue) = mpsc::channel();
    sender.send(Job::Wake).unwrap();
    sender.send(Job::Stop).unwrap();
    PeerWorker::new(rig.control(of).plane().clone(), 1).run(Jobs::new(queue));
}

#[test]
fn connections_that_are_refused_prove_nothing() {
    let mut rig = Rig::down(2);
    // Node 1 is behind a firewall, which lets everything pass.
    rig.places[1].listen = free_address();
    let wall = Wall::before(&rig.places[1].listen, &rig.addresses[1]);
    rig.start(0);
    rig.start(1);
    let opened = rig.open(0, Process::own());
    rig.connect_soon(0, Caller::Session(opened), 1, "far");
    // The firewall rejects connections to the control port. Node 0 sees the same as if the process
    // were gone.
    wall.reject();
    eventually("connections are refused", || {
        rig.connect(0, READER, 1, "x").unwrap_err().text.contains("refuses connections")
    });
    rig.places[0].sessions.close_all_of(Process::own());
    rig.control(0).plane().sessions_ended();
    dial_once(&rig, 0);
    assert_eq!(rig.admitted(1), [json!("far")], "its queue pair goes on with what was posted");
    assert_eq!(rig.places[0].sessions.dying(), [opened], "so its slot is not used again");
    assert_ne!(rig.open(0, Process::own()).slot, opened.slot);
    let _wall = Wall::before(&rig.places[1].listen, &rig.addresses[1]);
    eventually("its slot is free", || rig.places[0].sessions.dying().is_empty());
    assert_eq!(rig.admitted(1), [json!(null); 0], "it was fenced before that");
}

#[test]
fn a_process_that_another_one_followed_is_no_node_any_more() {
    let mut rig = Rig::new(2);
    let opened = rig.open(0, Process::own());
    rig.connect_soon(0, Caller::Session(opened), 1, "before");
    let past = rig.control(1).plane().members.hello();
    rig.restart(1);
    rig.connect_soon(0, Caller::Session(opened), 1, "after");
    // The process before is still there, for example on another host that was taken for dead.
    let mut link = dial(&rig.addresses[0], &secret(1)).unwrap();
    link.send(&ControlRequest::Hello(past), soon()).unwrap();
    let told = link.receive(soon()).unwrap();
    let ControlReply::Refused(refused) = told else { panic!("{told:?}") };
    assert!(refused.text.contains("two processes are node 1"), "{}", refused.text);
}

#[test]
fn a_node_that_comes_back_holds_nothing_of_before() {
    let mut rig = Rig::new(2);
    let opened = rig.open(0, Process::own());
    rig.connect_soon(0, Caller::Session(opened), 1, "before");
    rig.restart(1);
    assert_eq!(rig.admitted(1), [json!(null); 0]);
    rig.connect_soon(0, Caller::Session(opened), 1, "after");
    rig.places[0].sessions.close_all_of(Process::own());
    rig.control(0).plane().sessions_ended();
    eventually("its slot is free", || rig.places[0].sessions.dying().is_empty());
    assert_eq!(rig.admitted(1), [json!(null); 0]);
}

#[test]
fn a_home_that_comes_back_keeps_who_lives_and_fences_the_others() {
    let mut rig = Rig::new(2);
    let (lives, dies) = (rig.open(0, Process::own()), rig.open(0, GONE));
    let neighbour = Caller::Session(rig.open(1, Process::own()));
    rig.connect_soon(0, Caller::Session(lives), 1, "lives");
    rig.connect_soon(0, Caller::Session(dies), 1, "dies");
    rig.connect_soon(1, neighbour, 1, "neighbour");
    rig.stop(0);
    assert_eq!(rig.admitted(1).len(), 3, "its clients may be at work");
    rig.restart(0);
    eventually("the dead are fenced", || rig.admitted(1) == [json!("lives"), json!("neighbour")]);
    eventually("its slot is free", || rig.places[0].sessions.dying().is_empty());
    assert_eq!(rig.places[0].sessions.living(), [lives]);
    // The session that lived on is fenced when it ends, though this process connected it nowhere.
    rig.places[0].sessions.close_all_of(Process::own());
    rig.control(0).plane().sessions_ended();
    eventually("its slot is free", || rig.places[0].sessions.dying().is_empty());
    assert_eq!(rig.admitted(1), [json!("neighbour")]);
}

#[test]
fn sessions_that_died_with_their_node_wait_for_the_others() {
    let mut rig = Rig::down(2);
    rig.open(0, GONE);
    rig.places[0].sessions = std::sync::Arc::new(
        crate::node::sessions::Sessions::restore(&rig.places[0].member, true).0,
    );
    let mute = TcpListener::bind(&rig.addresses[1]).unwrap();
    rig.start(0);
    assert_eq!(rig.places[0].sessions.dying().len(), 1);
    drop(mute);
    rig.start(1);
    eventually("its slot is free", || rig.places[0].sessions.dying().is_empty());
}

#[test]
fn readers_that_leave_are_ended_everywhere() {
    let rig = Rig::new(2);
    let second = Caller::Reader { connection: 10, endpoint: 1 };
    for (reader, name) in [(READER, "first"), (second, "second")] {
        rig.control(0).plane().fences().enter(reader);
        rig.connect_soon(0, reader, 1, name);
        rig.connect_soon(0, reader, 0, name);
    }
    rig.control(0).plane().leave(9);
    eventually("one is left", || (0..2).all(|node| rig.admitted(node) == [json!("second")]));
    rig.control(0).plane().leave(10);
    eventually("none is left", || (0..2).all(|node| rig.admitted(node).is_empty()));
}

#[test]
fn workers_that_take_long_to_tell_are_waited_for() {
    let rig = Rig::new(2);
    let session = Caller::Session(rig.open(0, Process::own()));
    rig.connect_soon(0, session, 1, "first");
    let (release, held) = mpsc::channel::<()>();
    let mut walks = 0;
    let tell = move || {
        // The answer takes longer than one question may take, and the test does other things
        // meanwhile.
        let _ = held.recv();
        std::thread::sleep(ASK_TIMEOUT + ASK_TIMEOUT / 4);
        walks += 1;
        Inspected { entries: walks, ..Inspected::default() }
    };
    rig.control(1).plane().set_inspector(Inspector::of_one(5, tell));
    let (sender, replies) = mpsc::channel();
    for _ in 0..2 {
        let sender = sender.clone();
        let reply = Box::new(move |reply| drop(sender.send(reply)));
        let until = Instant::now() + INSPECT_TIMEOUT;
        rig.control(0).plane().jobs[1]
            .send({
                let question = Question { table: 5, check: true, scan: None };
                Job::Ask { question, until, reply }
            })
            .unwrap();
    }
    // A session that ends meanwhile is fenced.
    rig.places[0].sessions.close_all_of(Process::own());
    eventually("it is out", || rig.admitted(1).is_empty());
    drop(release);
    for _ in 0..2 {
        let Reply::Told(Told::Inspected(told)) = replies.recv().unwrap() else {
            panic!("it was not told")
        };
        assert!((1..=2).contains(&told.entries), "{told:?}");
    }
}

#[test]
fn a_node_that_is_down_is_named_at_once() {
    let mut rig = Rig::down(2);
    rig.start(0);
    let session = Caller::Session(rig.open(0, Process::own()));
    let begun = Instant::now();
    let refused = rig.connect(0, session, 1, "x").unwrap_err();
    assert_eq!(refused.code, Code::Away);
    assert_eq!(refused.at.as_ref(), Some(&rig.addresses[1]), "{}", refused.text);
    let words = ["node 1", "loch serve"];
    assert!(words.iter().all(|word| refused.text.contains(word)), "{}", refused.text);
    assert!(begun.elapsed() < DIAL_TIMEOUT + ASK_TIMEOUT);
    rig.start(1);
    rig.connect_soon(0, session, 1, "x");
    let Reply::Member(facts) = rig.control(0).plane().member(1) else { panic!("it is known") };
    assert!(facts.up && facts.name == "node-1", "{facts:?}");
    rig.stop(1);
    eventually(
        "it is seen to be down",
        || matches!(rig.control(0).plane().member(1), Reply::Member(facts) if !facts.up),
    );
}

/// What node 0 says of node 1 after it has tried to reach it.
fn refusal(rig: &Rig) -> crate::session::wire::Refused {
    let session = Caller::Session(rig.open(0, Process::own()));
    rig.connect(0, session, 1, "x").unwrap_err()
}

#[test]
fn another_secret_is_named() {
    let mut rig = Rig::down(2);
    rig.start_with(1, secret(2));
    rig.start(0);
    let refused = refusal(&rig);
    assert_eq!(refused.code, Code::Untrusted);
    assert!(refused.text.contains("another secret"), "{}", refused.text);
}

#[test]
fn nodes_that_do_not_fit_together_say_why() {
    let mut rig = Rig::down(2);
    rig.places[1].member = member(1, 2, 2);
    rig.start(1);
    rig.start(0);
    let refused = refusal(&rig);
    assert_eq!(refused.code, Code::Misfit);
    assert!(refused.text.contains("ways"), "{}", refused.text);

    let mut rig = Rig::down(2);
    rig.places[1].member = member(0, 2, 3);
    rig.start(1);
    rig.start(0);
    let refused = refusal(&rig);
    assert!(refused.text.contains("same `cluster` list"), "{}", refused.text);

    let mut rig = Rig::down(2);
    rig.places[1].fabric = "another";
    rig.start(1);
    rig.start(0);
    let refused = refusal(&rig);
    assert!(refused.text.contains("same `fabric`"), "{}", refused.text);
}

impl Inspector {
    /// An inspector of one worker of a table, which reports the result of `tell`.
    pub fn of_one(table: usize, mut tell: impl FnMut() -> Inspected + Send + 'static) -> Self {
        let (sender, asked) = mpsc::channel::<Asked>();
        std::thread::spawn(move || {
            asked.iter().for_each(|it| {
                let Asked::Inspect(it) = it else { panic!("it has no keys") };
                it.report(tell())
            })
        });
        let mut inspector = Self::default();
        inspector.add(table, sender, Bell::private().unwrap());
        inspector
    }
}
