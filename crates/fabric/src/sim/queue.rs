//! The send queues of shared connections: their turns, their room, and their costs.

use std::collections::{BTreeMap, VecDeque};

use super::verb::{ProcessId, QueueId, VerbId, Work};
use crate::RegionId;
use crate::limits::SEND_QUEUE_WRS;

/// The send queue of a connection that the processes of a host share, and the state of both ends.
#[derive(Debug)]
pub(super) struct Queue {
    pub host: RegionId,
    pub node: RegionId,
    /// Whether the host can post; otherwise the connection has to be made again.
    pub works: bool,
    /// Whether the node's end is in error: it has refused a verb, and executes none any more.
    pub is_refused: bool,
    /// Until when the lock is held.
    pub locked_ns: u64,
    /// The process that held the lock last.
    pub last_poster: Option<ProcessId>,
    /// Verbs in the queue that the card has not taken up, in order.
    pub waiting: VecDeque<VerbId>,
    /// Verbs for which the queue had no room. They are still with their processes.
    pub outside: VecDeque<VerbId>,
    /// Verbs under way, and how many of them are READs and atomics.
    pub under_way: u32,
    pub answered: u32,
}

/// All send queues, and the one that each host uses to each node.
#[derive(Debug, Default)]
pub(super) struct Queues {
    all: Vec<Queue>,
    current: BTreeMap<(RegionId, RegionId), QueueId>,
}

impl Queues {
    pub fn get(&mut self, id: QueueId) -> &mut Queue {
        &mut self.all[id.0 as usize]
    }

    /// The queue from a host to a node, and whether it was made now because there was none that
    /// works.
    pub fn current(&mut self, host: RegionId, node: RegionId) -> (QueueId, bool) {
        if let Some(id) = self.current.get(&(host, node))
            && self.all[id.0 as usize].works
        {
            return (*id, false);
        }
        let id = QueueId(self.all.len() as u32);
        self.all.push(Queue {
            host,
            node,
            works: true,
            is_refused: false,
            locked_ns: 0,
            last_poster: None,
            waiting: VecDeque::new(),
            outside: VecDeque::new(),
            under_way: 0,
            answered: 0,
        });
        self.current.insert((host, node), id);
        (id, true)
    }

    /// The queues for which `wanted` holds, of those that work.
    pub fn working(&self, wanted: impl Fn(&Queue) -> bool) -> Vec<QueueId> {
        let is_wanted = |id: &QueueId| {
            let queue = &self.all[id.0 as usize];
            queue.works && wanted(queue)
        };
        self.current.values().copied().filter(is_wanted).collect()
    }
}

impl Queue {
    /// Whether the queue has room for another verb.
    pub fn has_room(&self) -> bool {
        self.under_way + (self.waiting.len() as u32) < SEND_QUEUE_WRS
    }
}

/// Whether a card remembers a verb until its answer comes, of which it can do few at a time.
pub(super) fn is_answered(work: Work) -> bool {
    work != Work::Write
}
