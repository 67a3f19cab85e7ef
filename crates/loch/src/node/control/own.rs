//! The worker for the node itself: lets in its own clients, and fences them.

use std::sync::mpsc::{Receiver, RecvTimeoutError};
use std::time::Duration;

use super::gate::{Ended, OWN_LINK, Speaker};
use super::{Hub, Job};
use crate::limits::FENCE_PAUSE;
use crate::session::wire::Reply;

/// Works until it is told to stop.
pub(super) fn serve(hub: &Hub, jobs: &Receiver<Job>) {
    let own = hub.roster.own();
    let speaker = Speaker { home: own as u16, link: OWN_LINK };
    let mut pause = Duration::MAX;
    loop {
        match jobs.recv_timeout(pause) {
            Ok(Job::Stop) | Err(RecvTimeoutError::Disconnected) => return,
            Ok(Job::Look) | Err(RecvTimeoutError::Timeout) => (),
            Ok(Job::Inspect { table, reply, .. }) => {
                reply(hub.told_of(table).map_or_else(Reply::Refused, Reply::Inspected));
            }
            Ok(Job::Connect { caller, ask, reply }) => {
                let admitted =
                    hub.touch(own, caller).and_then(|()| hub.registry.admit(speaker, caller, &ask));
                reply(admitted.map_or_else(Reply::Refused, |answer| Reply::Connected { answer }));
            }
        }
        let owed = hub.owed(own);
        pause = match hub.registry.fence(speaker, &owed) {
            Ended::All => {
                hub.settle(|fences| fences.fenced(own, &owed));
                Duration::MAX
            }
            Ended::NotYet | Ended::Superseded => FENCE_PAUSE,
        };
    }
}
