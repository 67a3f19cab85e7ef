//! The queue of a worker of the control plane.
//!
//! A client that was not answered in time asks again, and does not want the first answer any more.
//! Such requests are answered at once, so that a worker that is behind does not fall behind
//! further.

use std::collections::VecDeque;
use std::sync::mpsc::{Receiver, RecvTimeoutError};
use std::time::{Duration, Instant};

use crate::node::control_client::Caller;
use crate::session::wire::{Code, Connect, Question, Refused, Reply};

/// A job for the worker of a node.
pub(super) enum Job {
    /// Have a connection let in.
    Connect {
        caller: Caller,
        ask: Connect,
        reply: Box<dyn FnOnce(Reply) + Send>,
    },
    /// Ask the workers. A busy node is asked again until then.
    Ask {
        question: Question,
        until: Instant,
        reply: Box<dyn FnOnce(Reply) + Send>,
    },
    /// A client may have to be fenced.
    Wake,
    Stop,
}

impl Job {
    /// The connection that is to be let in.
    fn connection(&self) -> Option<(Caller, u32, bool)> {
        match self {
            Self::Connect { caller, ask, .. } => Some((*caller, ask.table, ask.unreliable)),
            _ => None,
        }
    }
}

/// The jobs of one worker.
pub(super) struct Jobs {
    queue: Receiver<Job>,
    waiting: VecDeque<Job>,
}

impl Jobs {
    pub fn new(queue: Receiver<Job>) -> Self {
        Self { queue, waiting: VecDeque::new() }
    }

    /// Waits for the next job.
    ///
    /// # Errors
    /// The errors of [`Receiver::recv_timeout`].
    pub fn next(&mut self, timeout: Duration) -> Result<Job, RecvTimeoutError> {
        loop {
            self.waiting.extend(self.queue.try_iter());
            let job = match self.waiting.pop_front() {
                Some(job) => job,
                None => return self.queue.recv_timeout(timeout),
            };
            let connection = job.connection();
            let is_asked_again = connection.is_some()
                && self.waiting.iter().any(|later| later.connection() == connection);
            match job {
                Job::Connect { reply, .. } if is_asked_again => {
                    let text = "it was asked again meanwhile";
                    reply(Reply::Refused(Refused::new(Code::Away, text)));
                }
                job => return Ok(job),
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc;

    use super::*;
    use crate::session::slot::SessionId;

    #[test]
    fn a_request_that_was_repeated_is_done_once() {
        let (sender, queue) = mpsc::channel();
        let (answers, answered) = mpsc::channel();
        let caller = |slot| Caller::Session(SessionId { slot, incarnation: 1 });
        let ask = |number: u64, slot, table, unreliable| {
            let ask = Connect {
                session: None,
                secret: None,
                endpoint: number,
                node: 0,
                identity: 0,
                table,
                unreliable,
                offer: serde_json::Value::Null,
            };
            let answers = answers.clone();
            let reply = Box::new(move |reply| answers.send((number, reply)).unwrap());
            sender.send(Job::Connect { caller: caller(slot), ask, reply }).unwrap();
        };
        ask(1, 1, 0, false);
        ask(2, 2, 0, false);
        ask(3, 1, 1, false);
        ask(4, 1, 0, true);
        sender.send(Job::Wake).unwrap();
        ask(5, 1, 0, false);
        let mut jobs = Jobs::new(queue);
        let mut done = Vec::new();
        while let Ok(job) = jobs.next(Duration::ZERO) {
            match job {
                Job::Connect { ask, .. } => done.push(ask.endpoint),
                Job::Wake => done.push(0),
                _ => panic!("nobody has sent that"),
            }
        }
        assert_eq!(done, [2, 3, 4, 0, 5]);
        let refused: Vec<_> = answered.try_iter().collect();
        assert!(matches!(&refused[..], [(1, Reply::Refused(_))]), "{refused:?}");
    }
}
