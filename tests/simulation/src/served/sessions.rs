//! The sessions of all nodes, as the nodes' own processes hand them out.

use std::cell::{Cell, RefCell};
use std::ops::Range;
use std::rc::Rc;

use loch_engines::epoch::Session;
use loch_engines::region::session_addr;
use loch_engines::requests::{self, Holder, Secret};
use loch_fabric::RegionId;
use loch_fabric::sim::{ProcessId, World};

use crate::watch::Watch;

/// How a session ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SessionEnd {
    /// In order: the session holds no memory, and has leaked none.
    Left,
    /// In any other way. What the session has leaked has to be scrubbed.
    Died,
}

/// The sessions of all nodes.
pub struct Sessions {
    world: World,
    /// The slots of each node that are its clients'.
    client_slots: Range<u32>,
    next: Cell<u64>,
    /// For each node, the sessions that ended since a worker asked.
    dead: RefCell<Vec<Vec<u64>>>,
    /// For each node, all sessions that ended.
    ended: RefCell<Vec<Vec<u64>>>,
    /// Whether any session has died.
    any_died: Cell<bool>,
    watch: Option<Rc<Watch>>,
}

impl Sessions {
    pub fn new(
        world: World,
        nodes: u16,
        client_slots: Range<u32>,
        watch: Option<Rc<Watch>>,
    ) -> Self {
        let none = || RefCell::new(vec![Vec::new(); usize::from(nodes)]);
        let (next, any_died) = (Cell::new(1), Cell::new(false));
        Self { world, client_slots, next, dead: none(), ended: none(), any_died, watch }
    }

    /// The session of a process that takes this slot of its node.
    pub fn open(&self, process: ProcessId, node: u16, slot: u32) -> Session {
        let incarnation = self.next.replace(self.next.get() + 1);
        let home = RegionId(node as u8);
        self.world.store(session_addr(home, slot), incarnation);
        self.world.store(session_addr(home, slot).add(8), 0);
        if let Some(watch) = &self.watch {
            watch.joins(process, incarnation);
        }
        Session::new(home, slot, incarnation).with_secret(Some(secret_of(incarnation)))
    }

    /// A client's session in the first slot of its node that is free.
    pub fn admit(&self, process: ProcessId, node: u16) -> Session {
        let is_free = |slot: &u32| self.incarnation(node, *slot) == 0;
        let slot = self.client_slots.clone().find(is_free);
        self.open(process, node, slot.expect("a node has more slots than clients"))
    }

    pub fn close(&self, node: u16, slot: u32, how: SessionEnd) {
        self.any_died.set(self.any_died.get() || how == SessionEnd::Died);
        let at = session_addr(RegionId(node as u8), slot);
        let incarnation = self.world.load(at);
        self.dead.borrow_mut()[usize::from(node)].push(incarnation);
        self.ended.borrow_mut()[usize::from(node)].push(incarnation);
        self.world.store(at, 0);
        self.world.store(at.add(8), 0);
        if let Some(watch) = &self.watch {
            watch.leaves(incarnation, at);
        }
    }

    /// The sessions of a node that ended since a worker last asked. They may still own chunks:
    /// one that left has not waited for the slabs that it had seized.
    pub fn take_dead(&self, node: u16) -> Vec<u64> {
        std::mem::take(&mut self.dead.borrow_mut()[usize::from(node)])
    }

    /// For each node, all sessions that ended. A worker that was told of some may have died before
    /// it cleaned up.
    pub fn take_ended(&self) -> Vec<Vec<u64>> {
        self.ended.take()
    }

    /// Whether any session has died.
    pub fn any_died(&self) -> bool {
        self.any_died.get()
    }

    /// The incarnation that holds a slot; 0: none.
    pub fn incarnation(&self, node: u16, slot: u32) -> u64 {
        self.world.load(session_addr(RegionId(node as u8), slot))
    }

    /// The knowledge of every node about the sessions.
    pub fn known(&self) -> requests::Sessions {
        let world = self.world.clone();
        Box::new(move |node, slot| {
            let incarnation = world.load(session_addr(RegionId(node as u8), slot));
            (incarnation != 0).then(|| Holder::new(incarnation, Some(secret_of(incarnation))))
        })
    }
}

/// The secret of a session, as if its client had drawn it.
pub fn secret_of(incarnation: u64) -> Secret {
    Secret::new([incarnation, !incarnation])
}
