//! Connections that the clients of a host share: one to each node, whatever the number of clients.
//!
//! A card then holds the state of `nodes` connections, not of `clients × nodes`. What sharing
//! costs:
//!
//! * **One send queue.** Clients post one after the other, and each waits for the lock; the card
//!   takes verbs up in order, has a bounded number of READs and atomics under way, and the queue
//!   has a bounded number of places (`queue.rs`). A client that stands still while it posts holds
//!   the others up.
//! * **One state.** A connection that breaks does so for all: a request that does not get through,
//!   a key that the node refuses, or a client that dies while it posts, and so leaves a queue of
//!   which nobody knows what is written. Outcomes are then unknown for everyone on it, until the
//!   connection is ended at the node and made again. The first client that needs the node does
//!   that, and the others join its new connection.
//! * **A fence of its own.** The connection lives on when a client is fenced, and so do verbs that
//!   the client left in the queue. So a client's rights are its keys at each node. The fence
//!   invalidates these, and the node refuses what arrives with them from then on.
//!
//! # Invariants
//! 1. No verb is executed after its process was fenced, or after its connection was ended at the
//!    node, or after the node's end was in error.
//! 2. A process joins a new connection only after its old one was ended at the node: nothing that
//!    the process had under way there is executed any more.

use super::World;
use super::process::Process;
use super::queue::is_answered;
use super::state::{Event, Inner};
use super::verb::{ProcessId, QueueId, Stage, Verb, VerbId, Work};
use crate::limits::RD_ATOMIC_MAX;
use crate::{RegionId, RemoteAddr};

/// Processor time that a verb on a shared connection takes beside that of another verb, and for
/// which nobody else posts there. An assumption: [`LINE_NS`] for each cache line that another core
/// wrote last. That is always the completion, which another process took and passed on; and the
/// lock and the head of the queue, if another process posted last.
fn shared_post_ns(others_posted: bool) -> u64 {
    if others_posted { 3 * LINE_NS } else { LINE_NS }
}

/// The time in which a cache line comes from another core.
const LINE_NS: u64 = 50;

impl World {
    /// Lets a process use the connections that all such processes of its host share. To be called
    /// before it starts.
    pub fn share_connections(&self, process: ProcessId) {
        self.0.process(process).shares = true;
    }

    /// Lets a process post a READ with a key that the node does not know, on the connection that it
    /// shares, if it has one that works: an access error.
    pub fn misuse_connection(&self, process: ProcessId, node: RegionId) {
        let connection = self.0.process(process).connections.get(&node).copied();
        let Some(queue) = connection.filter(|c| c.works).and_then(|c| c.queue) else { return };
        if !self.is_alive(process) {
            return;
        }
        let now = self.now_ns();
        let at = RemoteAddr::new(node, 0);
        let read = Verb { queue: Some(queue), ..Verb::new(process, 0, Work::Read, at, vec![0; 8]) };
        let read = Verb { wrong_key: true, detached: true, posted_ns: now, leaves_ns: now, ..read };
        let id = self.0.verbs.borrow_mut().add(read);
        self.0.at(now, Event::Leave(id));
    }
}

impl Inner {
    /// The connection that a process uses to a node, if it shares those of its host: the host's if
    /// that works, or a new one.
    pub fn joined(&self, process: ProcessId, node: RegionId) -> Option<QueueId> {
        let Process { node: host, shares, .. } = *self.process(process);
        if !shares {
            return None;
        }
        let (queue, is_new) = self.queues.borrow_mut().current(host, node);
        if is_new {
            self.nodes.borrow_mut()[host.0 as usize].connections += 1;
        }
        Some(queue)
    }

    /// Lets a fault strike a process just before it posts, when it has the lock of a shared
    /// connection. If it dies, nobody knows what it has written into the queue: the next who takes
    /// the lock gives the connection up.
    pub fn strike(&self, id: ProcessId, node: RegionId) {
        let was_alive = self.process(id).alive;
        self.tempt(id);
        let process = self.process(id);
        let (is_alive, until_ns) = (process.alive, process.busy_until_ns);
        let connection = process.connections.get(&node).copied();
        drop(process);
        let Some(queue) = connection.filter(|c| c.works).and_then(|c| c.queue) else { return };
        if is_alive {
            self.hold_turn(queue, until_ns);
        } else if was_alive {
            self.lose_queue(queue);
        }
    }

    /// Whether a process can reach a node no more, as it finds out when it posts. A fenced process
    /// with a shared connection does not find out: its host may still post there.
    pub fn is_cut_off(&self, process: ProcessId, node: RegionId) -> bool {
        let process = self.process(process);
        let shared = process.connections.get(&node).and_then(|connection| connection.queue);
        process.fenced && shared.is_none()
    }

    /// Ends a process's broken connection at the node, and lets the process join the host's
    /// connection, which is made if there is none that works. Another lane may have done so before.
    pub fn rejoin(&self, process: ProcessId, node: RegionId) {
        let connection = self.process(process).connections[&node];
        let Some(old) = connection.queue.filter(|_| !connection.works) else { return };
        self.end(|verb| verb.queue == Some(old));
        let joined = self.joined(process, node);
        let mut process = self.process(process);
        let connection = process.connections.get_mut(&node).expect("it has one");
        (connection.works, connection.queue) = (true, joined);
    }

    /// Whether a node refuses a verb that it is to execute now, because its key is not or no longer
    /// valid.
    pub fn is_refused(&self, verb: &Verb) -> bool {
        let outlives = self.faults.borrow().keys_outlive_fences;
        let is_revoked = self.process(verb.process).fenced && !outlives;
        verb.wrong_key || (verb.queue.is_some() && is_revoked)
    }

    /// Whether the node's end of a verb's connection is in error.
    pub fn is_in_error(&self, verb: &Verb) -> bool {
        verb.queue.is_some_and(|queue| self.queues.borrow_mut().get(queue).is_refused)
    }

    /// A node refuses a verb. Its end of the connection is in error from then on, and the answer
    /// says so.
    pub fn refuse(&self, id: VerbId) {
        let mut verbs = self.verbs.borrow_mut();
        let verb = verbs.get(id).expect("it was to be executed");
        if verb.unreliable {
            drop(verbs);
            return self.settle_lost(id);
        }
        verb.refused = true;
        let queue = verb.queue.expect("it is on a shared connection");
        self.queues.borrow_mut().get(queue).is_refused = true;
        drop(verbs);
        self.answer(id);
    }

    /// The host's end of a shared connection is in error: no client can post any more.
    pub fn break_queue(&self, id: QueueId) {
        let mut queues = self.queues.borrow_mut();
        let queue = queues.get(id);
        let (host, node) = (queue.host, queue.node);
        if std::mem::replace(&mut queue.works, false) {
            self.nodes.borrow_mut()[host.0 as usize].connections -= 1;
        }
        drop(queues);
        for index in 0..self.process_count() {
            let mut process = self.process(ProcessId(index));
            if process.connections.get(&node).is_some_and(|c| c.queue == Some(id) && c.works) {
                process.disconnect(node);
                drop(process);
                self.wake(ProcessId(index), self.now_ns.get());
            }
        }
    }

    /// A shared connection broke at the host. What is under way on it may still be executed, until
    /// the connection is ended at the node.
    pub fn lose_queue(&self, id: QueueId) {
        let flying = |verb: &Verb| verb.queue == Some(id) && !matches!(verb.stage, Stage::Done(_));
        let ids = self.verbs.borrow().ids(flying);
        for verb in ids {
            if let Some(verb) = self.verbs.borrow_mut().get(verb) {
                verb.unknown = true;
            }
        }
        self.break_queue(id);
    }

    /// The host learns that the node's end of a shared connection is in error. Nothing that is
    /// under way is executed any more.
    pub fn flush_queue(&self, id: QueueId) {
        self.end(|verb| verb.queue == Some(id));
        self.break_queue(id);
    }

    /// The processor time that a process takes to post on a shared connection at this moment: it
    /// waits until nobody else does.
    pub fn take_turn(&self, process: ProcessId, queue: QueueId) -> u64 {
        if !self.process(process).alive {
            return 0;
        }
        let begins = self.now_ns.get() + self.process(process).spent_ns;
        let mut queues = self.queues.borrow_mut();
        let queue = queues.get(queue);
        let others_posted = queue.last_poster.replace(process) != Some(process);
        let ends = queue.locked_ns.max(begins) + shared_post_ns(others_posted);
        queue.locked_ns = ends + self.profile.post_ns;
        ends - begins
    }

    /// Holds a shared connection's lock at least until then: its holder stands still.
    pub fn hold_turn(&self, queue: QueueId, until_ns: u64) {
        let mut queues = self.queues.borrow_mut();
        let queue = queues.get(queue);
        queue.locked_ns = queue.locked_ns.max(until_ns);
    }

    /// Whether a verb that its process posts now goes out at once. A verb on a shared connection
    /// goes out in its turn.
    pub fn goes_out(&self, id: VerbId) -> bool {
        let mut verbs = self.verbs.borrow_mut();
        // Its process may have died before, or its connection may have been made anew.
        let Some(verb) = verbs.get(id) else { return false };
        if matches!(verb.stage, Stage::Done(_)) {
            return false;
        }
        let Some(of) = verb.queue.filter(|_| !verb.is_sent) else { return true };
        let mut queues = self.queues.borrow_mut();
        let queue = queues.get(of);
        if queue.has_room() && queue.outside.is_empty() {
            queue.waiting.push_back(id);
        } else {
            // It dies with its process.
            verb.leaves_ns = u64::MAX;
            queue.outside.push_back(id);
        }
        drop((verbs, queues));
        self.send_waiting(of);
        false
    }

    /// Lets the card take up what it can of a shared connection's queue, one after the other.
    fn send_waiting(&self, id: QueueId) {
        let (mut verbs, mut queues) = (self.verbs.borrow_mut(), self.queues.borrow_mut());
        let queue = queues.get(id);
        loop {
            while queue.has_room()
                && let Some(next) = queue.outside.pop_front()
            {
                if let Some(verb) = verbs.get(next) {
                    verb.leaves_ns = self.now_ns.get();
                    queue.waiting.push_back(next);
                }
            }
            let Some(next) = queue.waiting.front().copied() else { return };
            let over = |verb: &&mut Verb| matches!(verb.stage, Stage::Done(_));
            if let Some(verb) = verbs.get(next).filter(|verb| !over(verb)) {
                let is_answered = is_answered(verb.work);
                if is_answered && queue.answered == u32::from(RD_ATOMIC_MAX) {
                    return;
                }
                queue.under_way += 1;
                queue.answered += u32::from(is_answered);
                verb.is_sent = true;
                self.at(self.now_ns.get(), Event::Leave(next));
            }
            queue.waiting.pop_front();
        }
    }

    /// A verb on a shared connection is over, and its place in the queue is free.
    pub fn free_place(&self, queue: Option<QueueId>, work: Work) {
        let Some(id) = queue else { return };
        let mut queues = self.queues.borrow_mut();
        let queue = queues.get(id);
        queue.under_way -= 1;
        queue.answered -= u32::from(is_answered(work));
        drop(queues);
        self.send_waiting(id);
    }
}
