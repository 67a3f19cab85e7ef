//! Sessions that are fenced before their slots are freed: invariant 4.

use super::{HeldSlot, SessionEnd, Sessions};
use crate::session::slot::SessionId;

impl Sessions {
    /// Returns whether a session's slot is a worker's.
    pub fn is_workers(&self, session: SessionId) -> bool {
        session.slot > self.last_client
    }

    /// Frees the slot of a dying session that was fenced. Returns how the session ended.
    pub fn reap(&self, session: SessionId) -> Option<SessionEnd> {
        let mut slots = self.slots();
        let held = slots.get_mut(session.slot as usize)?;
        let how = held.filter(|h| h.incarnation == session.incarnation)?.dying?;
        *held = None;
        self.free(session);
        Some(how)
    }

    /// The sessions that have to be fenced.
    pub fn dying(&self) -> Vec<SessionId> {
        self.all_that(|held| !held.lives())
    }

    /// Returns whether a session lives.
    pub fn lives(&self, session: SessionId) -> bool {
        let held = self.slots().get(session.slot as usize).copied().flatten();
        held.is_some_and(|held| held.lives() && held.incarnation == session.incarnation)
    }

    /// The sessions that live, the scrubber's among them.
    pub fn living(&self) -> Vec<SessionId> {
        self.all_that(HeldSlot::lives)
    }

    fn all_that(&self, is_so: impl Fn(&HeldSlot) -> bool) -> Vec<SessionId> {
        let slots = self.slots();
        let held = slots.iter().enumerate().filter_map(|(slot, held)| Some((slot, held.as_ref()?)));
        held.filter(|(_, held)| is_so(held))
            .map(|(slot, held)| SessionId { slot: slot as u32, incarnation: held.incarnation })
            .collect()
    }
}

#[cfg(test)]
mod tests {
    use super::super::tests::{GONE, node};
    use super::*;
    use crate::session::slot::Process;

    #[test]
    fn a_fenced_session_keeps_its_slot_until_it_is_reaped() {
        let node = node(2);
        let (sessions, _) = Sessions::restore(&node, true);
        let own = Process::own();
        let scrubber = sessions.open_scrubber().unwrap();
        let (a, b) = (sessions.open(own).unwrap(), sessions.open(own).unwrap());
        assert!(sessions.lives(a) && !sessions.is_workers(a));
        let leaves = |session| sessions.close(session, own, SessionEnd::Left);
        assert_eq!((leaves(a), leaves(a)), (Some(SessionEnd::Left), None));
        assert!(!sessions.lives(a), "it is dying");
        assert!(!sessions.holds(a, own) && sessions.holds(b, own));
        assert_eq!((sessions.dying(), sessions.living()), (vec![a], vec![scrubber, b]));
        assert_eq!((sessions.live().len(), sessions.open(own)), (3, None));
        assert_eq!(sessions.reap(b), None, "it lives");
        assert_eq!((sessions.reap(a), sessions.reap(a)), (Some(SessionEnd::Left), None));
        assert_eq!(sessions.open(own).unwrap().slot, a.slot);

        // The next node takes the scrubber of this one for dead, and all clients whose processes
        // are gone.
        sessions.close_all_of(own);
        for session in sessions.dying() {
            sessions.reap(session);
        }
        let gone = sessions.open(GONE).unwrap();
        let (restarted, ended) = Sessions::restore(&node, true);
        assert_eq!((restarted.dying(), ended), (vec![scrubber, gone], 2));
        assert_eq!(restarted.open_scrubber(), None);
        assert_eq!(restarted.reap(scrubber), Some(SessionEnd::Died));
        assert!(restarted.open_scrubber().is_some());
    }
}
