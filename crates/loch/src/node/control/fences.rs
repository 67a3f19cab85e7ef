//! Which nodes still have to fence which clients of this node.
//!
//! A session's slot is freed, and what it leased is released, when no node may execute anything of
//! it any more. A node may for as long as it holds a connection that it let in. So it is written
//! down, before a connection is asked for, that the client may be connected there (*touched*), and
//! struck out when that is certainly over.
//!
//! # Invariants
//! 1. A client is touched before its node asks for a connection of it, and not if it is ending:
//!    both in one step, under the lock around this.
//! 2. What became of a node's connections is known from the node alone: when it says that it ended
//!    them, or when another process proves that it is this node now. A process takes its
//!    connections with it, and there is one at a time: on a host the region's lock sees to that,
//!    and whoever moves a node to another host has to have the old one off. A process that another
//!    one followed and that is there again is therefore refused ([`Fences::check`]).
//! 3. Sessions that this process took over from the node's last one may be connected anywhere: they
//!    are touched from the start.
//!
//! # What proves nothing
//! That the node does not answer, that the link to it broke, that connections to it are refused: a
//! firewall's REJECT, an RST from anything in between, and a host that took over the address refuse
//! as a host does whose process is gone, while queue pairs there go on executing what dead clients
//! have posted. How long is not bounded by any time-out of the reliable connection: what has
//! arrived can wait in the peer's card for as long as its host stands still. So there is no time
//! after which it would be safe to believe it.
//!
//! # What that costs
//! While a node is away, sessions that end and may be connected there keep their slots and what
//! they leased. Those are at most the sessions that were there when it went, and those that a
//! restart of this node takes over meanwhile: nobody is connected to a node that is away, and no
//! table is opened without it. Grace periods, for which all nodes are asked, do not pass meanwhile
//! in any case. But if it is only the control port that cannot be reached, a session that died in
//! the middle of an operation holds them up, and with them all reuse of memory, until the port can
//! be reached.
//!
//! The first link to the node settles all of it, whichever process is there. A node that can never
//! come back took its memory with it: then the cluster is started fresh, and there is nothing to
//! settle.

use std::collections::{HashSet, VecDeque};

use super::channel::LinkError;
use crate::limits::PROCESSES_REMEMBERED;
use crate::node::control_client::{Caller, Readers};

/// All nodes, as far as the clients of this one are connected there.
pub(super) struct Fences {
    nodes: Vec<Standing>,
    /// Clients without sessions.
    readers: HashSet<Caller>,
    /// Those of them that have left and are still connected somewhere.
    leaving: HashSet<Caller>,
}

#[derive(Clone)]
struct Standing {
    /// Its process, when it was last heard of.
    process: Option<u64>,
    /// Those before.
    past: VecDeque<u64>,
    touched: HashSet<Caller>,
}

impl Fences {
    /// So many nodes, of which `own` began without connections, and sessions that were taken over.
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

    /// Readers have left. They are connected nowhere, or among the leaving.
    pub fn leave(&mut self, who: Readers) {
        let is_it = |caller: &Caller| match *caller {
            Caller::Reader { connection, endpoint } => {
                connection == who.connection && who.endpoint.is_none_or(|it| it == endpoint)
            }
            Caller::Session(_) | Caller::Worker(_) => false,
        };
        let left: Vec<Caller> = self.readers.extract_if(is_it).collect();
        let is_touched = |caller: &Caller| self.nodes.iter().any(|n| n.touched.contains(caller));
        self.leaving.extend(left.into_iter().filter(is_touched));
    }

    /// Whether a reader has not left.
    pub fn is_reading(&self, reader: &Caller) -> bool {
        self.readers.contains(reader)
    }

    /// The readers that have not left.
    pub fn readers(&self) -> impl Iterator<Item = Caller> {
        self.readers.iter().copied()
    }

    /// Invariant 1: a connection of the client to the node is about to be asked for.
    pub fn touch(&mut self, node: usize, caller: Caller) {
        self.nodes[node].touched.insert(caller);
    }

    /// What the node has to fence now: of the dying sessions, and of the readers that left, those
    /// that may be connected to it.
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

    /// The node was told that of this node's clients these live, and has fenced all others.
    pub fn reconciled(&mut self, node: usize, living: &HashSet<Caller>) {
        self.nodes[node].touched.retain(|caller| living.contains(caller));
        self.forget_left();
    }

    /// The node is up, as this process.
    ///
    /// # Errors
    /// [`LinkError::Misfit`], and nothing is settled, if the process was another before.
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

    /// Invariant 2: whether a process can be the node's.
    ///
    /// # Errors
    /// [`LinkError::Misfit`] if another one has followed it.
    pub fn check(&self, node: usize, process: u64) -> Result<(), LinkError> {
        if !self.nodes[node].past.contains(&process) {
            return Ok(());
        }
        Err(LinkError::Misfit(format!(
            "two processes are node {node}: one that another had taken the place of is there again. \
             Stop both, and start the one whose memory is to be kept"
        )))
    }

    /// Whether nobody can execute anything of a session any more.
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
    fn who_was_taken_over_may_be_connected_anywhere() {
        let mut fences = Fences::new(3, 0, HashSet::from([A, B]));
        assert!(!fences.is_clear(&A) && !fences.is_clear(&B));
        // Of a process that was never heard of before it is not known whether it is another.
        fences.met(2, 7).unwrap();
        assert!(!fences.is_clear(&A));
        fences.reconciled(2, &HashSet::new());
        fences.reconciled(1, &HashSet::from([B]));
        assert!(fences.is_clear(&A) && !fences.is_clear(&B));
        assert_eq!(fences.owed(1, &[B]), [B]);
    }

    #[test]
    fn who_came_later_does_not_wait_for_a_node_that_is_never_heard_of() {
        assert!(Fences::new(2, 0, HashSet::from([B])).is_clear(&A));
    }

    #[test]
    fn whoever_was_told_to_live_and_dies_meanwhile_is_fenced_later() {
        let mut fences = fresh(2);
        fences.touch(1, A);
        fences.touch(1, B);
        fences.reconciled(1, &HashSet::from([B]));
        assert!(fences.is_clear(&A));
        assert_eq!(fences.owed(1, &[A, B]), [B]);
    }

    #[test]
    fn readers_leave_one_by_one_and_all_at_once() {
        let mut fences = fresh(2);
        let others = [4, 5, 6].map(|endpoint| Caller::Reader { connection: 3, endpoint });
        for reader in others {
            fences.enter(reader);
        }
        fences.touch(1, READER);
        fences.touch(1, others[2]);
        fences.leave(Readers { connection: 3, endpoint: Some(4) });
        assert!(!fences.is_reading(&READER) && fences.is_reading(&others[1]));
        assert_eq!(fences.owed(1, &[]), [READER]);
        fences.leave(Readers { connection: 3, endpoint: None });
        assert_eq!((fences.readers().count(), fences.owed(1, &[]).len()), (0, 2));
        fences.fenced(1, &[READER, others[2]]);
        assert_eq!(fences.owed(1, &[]), []);
    }
}
