//! The worker for the node itself: lets in its own clients, and fences them.

use std::sync::mpsc::Receiver;

use super::{Hub, Job};
use crate::wire::Reply;

/// Works until it is told to stop.
pub(super) fn serve(hub: &Hub, jobs: &Receiver<Job>) {
    let own = hub.roster.own();
    for job in jobs {
        match job {
            Job::Stop => return,
            Job::Look => (),
            Job::Inspect { table, reply } => {
                reply(hub.told_of(table).map_or_else(Reply::Refused, Reply::Inspected));
            }
            Job::Connect { caller, ask, reply } => {
                let admitted = hub
                    .touch(own, caller)
                    .and_then(|()| hub.registry.admit(own as u16, caller, &ask));
                reply(admitted.map_or_else(Reply::Refused, |answer| Reply::Connected { answer }));
            }
        }
        let owed = hub.owed(own);
        hub.registry.fence(own as u16, &owed);
        hub.settle(|fences| fences.fenced(own, &owed));
    }
}
