//! Which nodes still have to fence which clients of this node.
//!
//! A session's slot is freed, and its leases are released, when no node may execute a verb of it
//! any more. A node may do that for as long as it holds a connection that it let in. Therefore this
//! node notes that a client may be connected to another node (*touched*) before it asks for a
//! connection, and removes the note when the connection is certainly gone.
//!
//! # Invariants
//! 1. A client is touched before its node asks for a connection of it, and is not touched if it is
//!    ending. Both happen in one step, under the lock around this type.
//! 2. Only a node itself proves what became of its connections: it says that it ended them, or
//!    another process proves that it is this node now. A process takes its connections with it, and
//!    a node has one process at a time. On one host the region's lock ensures that; an operator who
//!    moves a node to another host has to stop the old process first. A process that another
//!    process had replaced is refused if it comes back ([`Fences::check`]).
//! 3. Sessions that this process took over from the node's last process may be connected anywhere,
//!    so they are touched from the start.
//!
//! # What does not prove that connections are gone
//! It proves nothing that the node does not answer, that the link to it broke, or that it refuses
//! connections. A firewall's REJECT, an RST from anything in between and a host that took over the
//! address refuse just as a host without the process does. Meanwhile queue pairs of the node may go
//! on executing what dead clients have posted. No time-out of the reliable connection bounds this,
//! because a request that has arrived can wait in the peer's card for as long as its host stands
//! still. So no waiting time makes it safe.
//!
//! # What this costs
//! While a node is away, sessions that end and may be connected there keep their slots and their
//! leases. At most these are the sessions that existed when the node went away, and the sessions
//! that a restart of this node takes over. No client connects to a node that is away, and no table
//! is opened without it. Grace periods, for which all nodes are asked, do not pass meanwhile in any
//! case. But if only the control port cannot be reached, a session that died in the middle of an
//! operation holds up grace periods, and with them all reuse of memory, until the port can be
//! reached.
//!
//! The first link to the node settles all of this, whichever process is there. A node that can
//! never come back took its memory with it. Then the cluster is started fresh, and no fence is
//! left.

use std::collections::{HashSet, VecDeque};

use super::channel::LinkError;
use crate::limits::PROCESSES_REMEMBERED;
use crate::node::control_client::Caller;

/// The nodes, and the clients of this node that may be connected to them.
pub(super) struct Fences {
    nodes: Vec<Standing>,
    /// The clients without sessions.
    readers: HashSet<Caller>,
    /// The readers that have left and may still be connected to some node.
    leaving: HashSet<Caller>,
}

#[derive(Clone)]
struct Standing {
    /// The node's process, when it last spoke.
    process: Option<u64>,
    /// The processes of the node before that.
    past: VecDeque<u64>,
    touched: HashSet<Caller>,
}

impl Fences {
    /// Makes the fences of `nodes` nodes. `own` began without connections; `inherited` are the
    /// sessions that were taken over.
    pub fn new(nodes: usize, own: usize, inherited: HashSet<Caller>) -> Self {
        let standing = Standing { process: None, past: VecDeque::new(), touched: inherited };
        let mut nodes = vec![standing; nodes];
        nodes[own].touched.clear();
        Self { nodes, readers: HashSet::new(), leaving: HashSet::new() }
    }

    /// A reader is about to ask for a connection.
    pub fn enter(&mut self, reader: Caller) {
        self.readers.insert(reader);
    }

    /// The readers of a connection have left. A reader that may be connected to some node is among
    /// the leaving now.
    pub fn leave(&mut self, connection: u64) {
        let is_it = |caller: &Caller| match *caller {
            Caller::Reader { connection: its, .. } => its == connection,
            Caller::Session(_) | Caller::Worker(_) => false,
        };
        let left: Vec<Caller> = self.readers.extract_if(is_it).collect();
        let is_touched = |caller: &Caller| self.nodes.iter().any(|n| n.touched.contains(caller));
        self.leaving.extend(left.into_iter().filter(is_touched));
    }

    /// Returns whether a reader has not left.
    pub fn is_reading(&self, reader: &Caller) -> bool {
        self.readers.contains(reader)
    }

    /// The readers that have not left.
    pub fn readers(&self) -> impl Iterator<Item = Caller> {
        self.readers.iter().copied()
    }

    /// Invariant 1: a connection of the client to the node will be asked for.
    pub fn touch(&mut self, node: usize, caller: Caller) {
        self.nodes[node].touched.insert(caller);
    }

    /// The clients that the node has to fence now: dying sessions and readers that left, if they
    /// may be connected to the node.
    pub fn owed(&self, node: usize, dying: &[Caller]) -> Vec<Caller> {
        let touched = &self.nodes[node].touched;
        dying.iter().chain(&self.leaving).filter(|c| touched.contains(c)).copied().collect()
    }

    /// The node has fenced these.
    pub fn fenced(&mut self, node: usize, callers: &[Caller]) {
        let touched = &mut self.nodes[node].touched;
        touched.retain(|caller| !callers.contains(caller));
        self.forget_left();
    }

    /// The node was told that only these clients of this node live, and has fenced all others.
    pub fn reconciled(&mut self, node: usize, living: &HashSet<Caller>) {
        self.nodes[node].touched.retain(|caller| living.contains(caller));
        self.forget_left();
    }

    /// The node is up, and this is its process.
    ///
    /// # Errors
    /// [`LinkError::Misfit`] if another process had replaced this one; then no fence is settled.
    pub fn met(&mut self, node: usize, process: u64) -> Result<(), LinkError> {
        self.check(node, process)?;
        let standing = &mut self.nodes[node];
        let known = standing.process.replace(process);
        if let Some(known) = known.filter(|known| *known != process) {
            standing.past.truncate(PROCESSES_REMEMBERED - 1);
            standing.past.push_front(known);
            standing.touched.clear();
            self.forget_left();
        }
        Ok(())
    }

    /// Invariant 2: checks that a process can be the node's.
    ///
    /// # Errors
    /// [`LinkError::Misfit`] if another process has followed it.
    pub fn check(&self, node: usize, process: u64) -> Result<(), LinkError> {
        if !self.nodes[node].past.contains(&process) {
            return Ok(());
        }
        Err(LinkError::Misfit(format!(
            "two processes are node {node}: a process that was replaced has come back. Stop both, \
             and start the process whose memory is to be kept"
        )))
    }

    /// Returns whether no node can execute a verb of a session any more.
    pub fn is_clear(&self, session: &Caller) -> bool {
        self.nodes.iter().all(|node| !node.touched.contains(session))
    }

    fn forget_left(&mut self) {
        let nodes = &self.nodes;
        self.leaving.retain(|caller| nodes.iter().any(|node| node.touched.contains(caller)));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::session::slot::SessionId;

    const A: Caller = Caller::Session(SessionId { slot: 1, incarnation: 1 });
    const B: Caller = Caller::Session(SessionId { slot: 2, incarnation: 2 });
    const READER: Caller = Caller::Reader { connection: 3, endpoint: 4 };

    fn fresh(nodes: usize) -> Fences {
        Fences::new(nodes, 0, HashSet::new())
    }

    #[test]
    fn a_session_is_clear_when_all_that_let_it_in_have_fenced_it() {
        let mut fences = fresh(3);
        assert!(fences.is_clear(&A));
        fences.touch(0, A);
        fences.touch(2, A);
        assert_eq!((fences.owed(1, &[A]), fences.owed(2, &[A])), (vec![], vec![A]));
        fences.fenced(0, &[A]);
        assert!(!fences.is_clear(&A) && fences.is_clear(&B));
        fences.fenced(2, &[A]);
        assert!(fences.is_clear(&A));
    }

    #[test]
    fn a_process_takes_its_connections_with_it() {
        let mut fences = fresh(2);
        fences.met(1, 7).unwrap();
        fences.touch(1, A);
        // The link broke and was made again: the same process still holds the connection.
        fences.met(1, 7).unwrap();
        assert!(!fences.is_clear(&A));
        fences.met(1, 8).unwrap();
        assert!(fences.is_clear(&A));
    }

    #[test]
    fn a_process_that_another_one_followed_is_believed_nothing() {
        let mut fences = fresh(2);
        fences.met(1, 7).unwrap();
        fences.met(1, 8).unwrap();
        fences.touch(1, A);
        let refused = fences.met(1, 7).unwrap_err().to_string();
        assert!(refused.contains("two processes are node 1"), "{refused}");
        assert!(!fences.is_clear(&A), "the other one may live, and holds the connection");
        assert!(fences.check(1, 8).is_ok() && fences.check(1, 9).is_ok());
        for process in 9..10 + PROCESSES_REMEMBERED as u64 {
            fences.met(1, process).unwrap();
        }
        assert_eq!(fences.nodes[1].past.len(), PROCESSES_REMEMBERED);
        assert!(fences.check(1, 8 + PROCESSES_REMEMBERED as u64).is_err());
    }

    #[test]
    fn a_session_that_was_taken_over_may_be_connected_anywhere() {
        let mut fences = Fences::new(3, 0, HashSet::from([A, B]));
        assert!(!fences.is_clear(&A) && !fences.is_clear(&B));
        // The process was never seen before, so it is not known whether it replaced another.
        fences.met(2, 7).unwrap();
        assert!(!fences.is_clear(&A));
        fences.reconciled(2, &HashSet::new());
        fences.reconciled(1, &HashSet::from([B]));
        assert!(fences.is_clear(&A) && !fences.is_clear(&B));
        assert_eq!(fences.owed(1, &[B]), [B]);
    }

    #[test]
    fn a_later_session_does_not_wait_for_a_node_that_never_came_up() {
        assert!(Fences::new(2, 0, HashSet::from([B])).is_clear(&A));
    }

    #[test]
    fn a_session_that_was_told_to_live_and_dies_is_fenced_later() {
        let mut fences = fresh(2);
        fences.touch(1, A);
        fences.touch(1, B);
        fences.reconciled(1, &HashSet::from([B]));
        assert!(fences.is_clear(&A));
        assert_eq!(fences.owed(1, &[A, B]), [B]);
    }

    #[test]
    fn the_readers_of_a_connection_leave_with_it() {
        let mut fences = fresh(2);
        let others = [5, 6].map(|endpoint| Caller::Reader { connection: 3, endpoint });
        let stays = Caller::Reader { connection: 7, endpoint: 4 };
        for reader in [READER, others[0], others[1], stays] {
            fences.enter(reader);
        }
        fences.touch(1, READER);
        fences.touch(1, others[1]);
        fences.leave(3);
        assert!(!fences.is_reading(&READER) && fences.is_reading(&stays));
        assert_eq!((fences.readers().count(), fences.owed(1, &[]).len()), (1, 2));
        fences.fenced(1, &[READER, others[1]]);
        assert_eq!(fences.owed(1, &[]), []);
    }
}
