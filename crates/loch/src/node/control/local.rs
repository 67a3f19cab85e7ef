//! The worker for the node itself. It lets the node's own clients in, and fences them.

use std::sync::mpsc::RecvTimeoutError;
use std::time::Duration;

use super::ControlPlane;
use super::jobs::{Job, Jobs};
use super::registry::{Ended, LinkId, OWN_LINK};
use crate::limits::FENCE_PAUSE;
use crate::session::wire::Reply;

/// Works until it is told to stop.
pub(super) fn serve(plane: &ControlPlane, mut jobs: Jobs) {
    let own = plane.members.own();
    let link_id = LinkId { home: own as u16, number: OWN_LINK };
    let mut pause = Duration::MAX;
    loop {
        match jobs.next(pause) {
            Ok(Job::Stop) | Err(RecvTimeoutError::Disconnected) => return,
            Ok(Job::Wake) | Err(RecvTimeoutError::Timeout) => (),
            Ok(Job::Ask { question, reply, .. }) => {
                reply(plane.ask_own(question).map_or_else(Reply::Refused, Reply::Told));
            }
            Ok(Job::Connect { caller, ask, reply }) => {
                let admitted = plane
                    .touch(own, caller)
                    .and_then(|()| plane.registry.admit(link_id, caller, &ask));
                reply(admitted.map_or_else(Reply::Refused, |answer| Reply::Connected { answer }));
            }
        }
        let owed = plane.owed(own);
        pause = match plane.registry.fence(link_id, &owed) {
            Ended::All => {
                plane.settle(|fences| fences.fenced(own, &owed));
                Duration::MAX
            }
            Ended::NotYet | Ended::Superseded => FENCE_PAUSE,
        };
    }
}
