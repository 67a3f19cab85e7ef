//! The rights of each engine's clients to a node's memory.

use std::collections::HashSet;
use std::sync::Arc;

use loch_engines::region::STAMP_OFFSET;
use loch_engines::requests::{Holder, Secret};
use loch_fabric::{Access, Grant};

use super::rig::{Book, member_with};
use crate::TableConfig;
use crate::layout::memory::Member;
use crate::node::control::registry::{Ended, LinkId, Registry, grants};
use crate::node::control_client::Caller;
use crate::session::slot::SessionId;
use crate::session::wire::{Code, Connect, SessionSecret};

const HOME: u16 = 1;
const SLOT: u32 = 2;

fn of_slot(slot: u32) -> SessionId {
    SessionId { slot, incarnation: 7 }
}

fn member(engine: &str) -> Member {
    let table = TableConfig { engine: engine.parse().unwrap(), ..TableConfig::default() };
    member_with(0, 2, vec![table])
}

fn granted(member: &Member, caller: Caller) -> Vec<Grant> {
    let mut grants = grants(member, 0, HOME, caller).unwrap();
    grants.sort_unstable();
    grants
}

/// Returns whether the grants allow this access to `offset`.
fn may(grants: &[Grant], offset: u64, access: Access) -> bool {
    let there = |g: &&Grant| (g.offset..g.offset + g.len).contains(&offset);
    grants.iter().find(there).is_some_and(|grant| grant.access.includes(access))
}

#[test]
fn a_client_writes_its_own_request_slots_and_nothing_else() {
    for engine in ["nessie-server", "nessie-hybrid", "pilaf", "herd", "kv-direct"] {
        let own = member(engine);
        let parts = own.parts(0).unwrap();
        let requests = parts.requests().unwrap();
        let (area, base) = (requests.area(), requests.base(0).offset());
        let grants = granted(&own, Caller::Session(of_slot(SLOT)));
        let slots = area.request_slots_of(0, area.client(HOME, SLOT));
        let writable: Vec<_> = grants.iter().filter(|g| g.access != Access::Read).collect();
        let expected = Grant {
            offset: base + slots.start,
            len: slots.end - slots.start,
            access: Access::Full,
        };
        assert_eq!(writable, [&expected], "{engine}");
        for other in [area.client(0, SLOT), area.client(HOME, SLOT + 1)] {
            let theirs = base + area.request_slots_of(0, other).start;
            assert!(!may(&grants, theirs, Access::ReadAtomic), "{engine}: slots of client {other}");
        }
    }
}

#[test]
fn a_client_reads_what_its_gets_need() {
    for (engine, table) in [
        ("nessie-server", false),
        ("nessie-hybrid", true),
        ("pilaf", true),
        ("herd", false),
        ("kv-direct", false),
    ] {
        let own = member(engine);
        let grants = granted(&own, Caller::Session(of_slot(SLOT)));
        let entry = &own.tables[0];
        // The first byte of nessie's part of the table, and the last byte of pilaf's.
        let at = if engine.starts_with("nessie") { entry.offset } else { entry.end() - 1 };
        assert_eq!(may(&grants, at, Access::Read), table, "{engine}: the table");
        assert!(!may(&grants, at, Access::ReadAtomic), "{engine}: the table");
        assert!(!may(&grants, STAMP_OFFSET, Access::ReadAtomic), "{engine}: stamps");
        let lines = own.parts(0).unwrap().requests().unwrap().base(0).offset();
        assert!(may(&grants, lines, Access::Read), "{engine}: the workers' lines");
    }
}

#[test]
fn a_worker_of_another_node_has_the_reply_slots_and_a_scrubber_the_table() {
    let own = member("nessie-server");
    let requests = own.parts(0).unwrap().requests().unwrap().clone();
    let base = requests.base(0).offset();
    let replies = requests.area().reply_slots();
    let of_worker = granted(&own, Caller::Worker(of_slot(5)));
    let expected = Grant {
        offset: base + replies.start,
        len: replies.end - replies.start,
        access: Access::Full,
    };
    assert_eq!(of_worker, [expected]);
    let of_scrubber = granted(&own, Caller::Session(of_slot(0)));
    assert!(may(&of_scrubber, own.tables[0].offset, Access::Full));
    let reader = Caller::Reader { connection: 1, endpoint: 1 };
    assert!(granted(&own, reader).iter().all(|grant| grant.access == Access::Read));
}

#[test]
fn a_session_without_slots_is_refused() {
    let own = member("nessie-server");
    for (table, home, caller) in [
        (0, HOME, Caller::Session(of_slot(5))),
        (0, 2, Caller::Session(of_slot(SLOT))),
        (1, HOME, Caller::Session(of_slot(SLOT))),
        (1, HOME, Caller::Worker(of_slot(5))),
    ] {
        assert!(grants(&own, table, home, caller).is_err(), "{table}, {home}, {caller:?}");
    }
    assert!(grants(&member("nessie"), 0, HOME, Caller::Worker(of_slot(5))).is_err());
}

#[test]
fn workers_are_told_of_the_session_that_is_in_and_of_no_other() {
    for engine in ["nessie-server", "nessie-hybrid", "pilaf", "herd", "kv-direct"] {
        let own = member(engine);
        let registry = Registry::new(own.clone(), Arc::new(Book::default()));
        let home = LinkId { home: HOME, number: 1 };
        assert_eq!(registry.take_over(home), Some(0));
        let secret = Some(SessionSecret([3, 5]));
        let known = Some(Secret::new([3, 5]));
        let connect = |caller, unreliable, secret| {
            let ask = Connect {
                session: None,
                secret,
                endpoint: 0,
                node: 0,
                identity: own.header.identity,
                table: 0,
                unreliable,
                offer: "offer".into(),
            };
            registry.admit(home, caller, &ask).map_err(|refused| refused.code)
        };
        let holder = |slot| registry.holder(0, HOME, slot);
        let session = |incarnation| Caller::Session(SessionId { slot: SLOT, incarnation });
        assert_eq!(holder(SLOT), None, "{engine}: nobody is in");
        assert_eq!(connect(session(7), false, None), Err(Code::Release), "{engine}: no secret");
        assert_eq!(holder(SLOT), None);
        for unreliable in [false, true] {
            connect(session(7), unreliable, secret).unwrap();
            assert_eq!(holder(SLOT), Some(Holder::new(7, known)), "{engine}");
        }
        assert_eq!(holder(SLOT + 1), None);
        assert_eq!((registry.holder(1, HOME, SLOT), registry.holder(0, 0, SLOT)), (None, None));
        // A worker and a reader have no slot of which workers are told.
        connect(Caller::Worker(of_slot(SLOT + 1)), false, None).unwrap();
        connect(Caller::Reader { connection: 1, endpoint: 1 }, false, None).unwrap();
        assert_eq!(holder(SLOT + 1), None);
        // The session was fenced, and the next one is in before the fence is asked for again.
        assert_eq!(registry.fence(home, &[session(7)]), Ended::All);
        assert_eq!(holder(SLOT), None, "{engine}: a fenced session is served");
        connect(session(9), false, secret).unwrap();
        assert_eq!(registry.fence(home, &[session(7)]), Ended::All);
        assert_eq!(holder(SLOT), Some(Holder::new(9, known)), "{engine}");
        // The next session is in before the session before it was fenced.
        connect(session(11), false, secret).unwrap();
        assert_eq!(registry.fence(home, &[session(9)]), Ended::All);
        assert_eq!(holder(SLOT), Some(Holder::new(11, known)), "{engine}");
        assert_eq!(registry.retain(home, &HashSet::new()), Ended::All);
        assert_eq!(holder(SLOT), None, "{engine}");
    }
}
