//! The worker for another node. It keeps a link to that node, and asks over it.
//!
//! # Invariants
//! 1. The worker asks one thing at a time, so requests are executed in order: a client is never
//!    fenced before a connection of it that was asked for earlier.
//! 2. After hello, the first message on a link says which clients live. While the node has not
//!    ended all others, other requests go on, and the node is told again which clients live.
//! 3. A link that cannot be made, or that breaks, settles no fence, whatever the reason
//!    (`fences.rs`, invariant 2).

use std::sync::Arc;
use std::sync::mpsc::RecvTimeoutError;
use std::time::{Duration, Instant};

use super::ControlPlane;
use super::channel::LinkError;
use super::jobs::{Job, Jobs};
use super::link::{Link, host_of, resolve};
use super::messages::{ControlReply, ControlRequest, Hello};
use crate::limits::{
    ADMIT_TIMEOUT, ASK_TIMEOUT, AWAY_MAX, CALLERS_MAX, DIAL_TIMEOUT, FENCE_PAUSE, HOME_SILENCE_MAX,
    PING_INTERVAL, REDIAL_PAUSE, REDIAL_PAUSE_MAX,
};
use crate::node::control_client::Caller;
use crate::session::wire::{Code, Connect, Question, Refused, Reply};

/// The worker's state.
pub(super) struct PeerWorker {
    plane: Arc<ControlPlane>,
    node: usize,
    link: Option<Link>,
    /// When to dial again, or to ping.
    due: Instant,
    /// The pause after the next link that cannot be made, or breaks.
    pause: Duration,
    /// Since when there is no link; `None` once the log says which sessions wait for the node.
    away: Option<Instant>,
    /// Whether the node has ended the connections of all clients that do not live.
    is_reconciled: bool,
    /// When to ask again for connections that had not ended.
    again: Option<Instant>,
}

impl PeerWorker {
    /// Makes a worker that dials at once.
    pub fn new(plane: Arc<ControlPlane>, node: usize) -> Self {
        let (due, pause) = (Instant::now(), REDIAL_PAUSE);
        let away = Some(due);
        Self { plane, node, link: None, due, pause, away, is_reconciled: false, again: None }
    }

    /// Works until it is told to stop.
    pub fn run(mut self, mut jobs: Jobs) {
        loop {
            let next = self.again.map_or(self.due, |again| again.min(self.due));
            let job = jobs.next(next.saturating_duration_since(Instant::now()));
            if self.link.is_none() && self.due <= Instant::now() {
                self.dial();
            }
            match job {
                Ok(Job::Stop) | Err(RecvTimeoutError::Disconnected) => return,
                Ok(Job::Connect { caller, ask, reply }) => {
                    let answer = self.connect(caller, ask);
                    reply(answer.map_or_else(Reply::Refused, |a| Reply::Connected { answer: a }));
                }
                Ok(Job::Ask { question, until, reply }) => match self.ask_workers(&question) {
                    // Other jobs for the node, such as fencing, come in between.
                    Reply::Refused(busy) if busy.code == Code::Busy && Instant::now() < until => {
                        let again = Job::Ask { question, until, reply };
                        drop(self.plane.jobs[self.node].send(again));
                    }
                    told => reply(told),
                },
                Ok(Job::Wake) | Err(RecvTimeoutError::Timeout) => (),
            }
            if self.link.is_some() && self.again.is_none_or(|again| again <= Instant::now()) {
                self.again = None;
                self.fence();
            }
            if self.link.is_some() && self.due <= Instant::now() {
                self.ping();
            }
            self.forget_silent();
        }
    }

    fn dial(&mut self) {
        match self.try_dial() {
            Ok(link) => {
                self.link = Some(link);
                self.due = Instant::now() + PING_INTERVAL;
            }
            Err(why) => {
                self.lose(why);
                self.warn_of_held_sessions();
            }
        }
    }

    /// Logs one warning for each long absence of the node.
    fn warn_of_held_sessions(&mut self) {
        if self.away.is_none_or(|since| since.elapsed() < AWAY_MAX) {
            return;
        }
        let held = self.plane.owed(self.node).len();
        if held > 0 {
            self.away = None;
            let (node, address) = (self.node, self.plane.members.address(self.node));
            tracing::warn!(
                node,
                address,
                held,
                "sessions that have ended keep their slots and memory until this node is back"
            );
        }
    }

    fn try_dial(&mut self) -> Result<Link, LinkError> {
        let (plane, node) = (self.plane.clone(), self.node);
        let deadline = Instant::now() + DIAL_TIMEOUT;
        let address = plane.members.address(node);
        let at = resolve(address)?;
        plane.handshakes.resolved(node, at.iter().map(|at| at.ip()));
        let mut link = Link::dial(host_of(address), &at, &plane.credentials, deadline)?;
        link.send(&ControlRequest::Hello(plane.members.hello()), deadline)?;
        let welcome: Hello = match link.receive(deadline)? {
            ControlReply::Welcome(hello) => hello,
            ControlReply::Refused(refused) if matches!(refused.code, Code::Untrusted) => {
                return Err(LinkError::Impostor(refused.text));
            }
            ControlReply::Refused(refused) => return Err(LinkError::Misfit(refused.text)),
            other => return Err(out_of_turn(&other)),
        };
        plane.members.check(&welcome, Some(node))?;
        plane.settle(|fences| fences.met(node, welcome.process))?;
        self.reconcile(&mut link)?;
        plane.members.met(node, &welcome);
        plane.publish_memory();
        Ok(link)
    }

    /// Tells which clients live; the node ends the connections of all others.
    fn reconcile(&mut self, link: &mut Link) -> Result<(), LinkError> {
        let plane = &self.plane;
        let living = plane.living();
        let callers: Vec<Caller> = living.iter().copied().collect();
        // There is at least one message, even if no client lives.
        let mut chunks = callers.chunks(CALLERS_MAX).peekable();
        loop {
            let callers = chunks.next().unwrap_or_default().to_vec();
            let last = chunks.peek().is_none();
            self.is_reconciled =
                done(&link.ask(&ControlRequest::Living { callers, last }, ASK_TIMEOUT)?)?;
            if last {
                break;
            }
        }
        if self.is_reconciled {
            plane.settle(|fences| fences.reconciled(self.node, &living));
        } else {
            self.again = Some(Instant::now() + FENCE_PAUSE);
        }
        Ok(())
    }

    fn lose(&mut self, why: LinkError) {
        if self.link.take().is_some() {
            self.away = Some(Instant::now());
        }
        self.again = None;
        self.plane.members.lost(self.node, why);
        self.due = Instant::now() + self.pause;
        self.pause = (self.pause * 2).min(REDIAL_PAUSE_MAX);
    }

    /// Asks over the link. Any failure ends the link.
    fn ask(&mut self, ask: &ControlRequest, within: Duration) -> Option<ControlReply> {
        match self.link.as_mut()?.ask(ask, within) {
            Ok(told) => Some(told),
            Err(why) => {
                self.lose(why);
                None
            }
        }
    }

    fn connect(&mut self, caller: Caller, ask: Connect) -> Result<serde_json::Value, Refused> {
        if self.link.is_none() {
            return Err(self.plane.members.why_away(self.node));
        }
        self.plane.touch(self.node, caller)?;
        match self.ask(&ControlRequest::Connect { caller, connect: ask }, ADMIT_TIMEOUT) {
            None => Err(self.plane.members.why_away(self.node)),
            Some(ControlReply::Connected { answer }) => Ok(answer),
            Some(ControlReply::Refused(refused)) => {
                Err(refused.of_node(self.node, self.plane.members.address(self.node)))
            }
            Some(other) => {
                self.lose(out_of_turn(&other));
                Err(Refused::new(Code::Away, "it answered out of turn"))
            }
        }
    }

    fn ask_workers(&mut self, question: &Question) -> Reply {
        let refused = match self.ask(&ControlRequest::Ask(question.clone()), ADMIT_TIMEOUT) {
            None => self.plane.members.why_away(self.node),
            Some(ControlReply::Told(told)) => return Reply::Told(told),
            Some(ControlReply::Refused(refused)) => refused,
            Some(other) => {
                self.lose(out_of_turn(&other));
                Refused::new(Code::Away, "it answered out of turn")
            }
        };
        Reply::Refused(refused)
    }

    /// Asks the node to fence all clients that it has to fence.
    fn fence(&mut self) {
        if !self.is_reconciled
            && let Some(mut link) = self.link.take()
        {
            match self.reconcile(&mut link) {
                Ok(()) => self.link = Some(link),
                Err(why) => return self.lose(why),
            }
        }
        while self.is_reconciled {
            let mut callers = self.plane.owed(self.node);
            callers.truncate(CALLERS_MAX);
            if callers.is_empty() {
                return;
            }
            let fence = ControlRequest::Fence { callers: callers.clone() };
            let Some(told) = self.ask(&fence, ASK_TIMEOUT) else {
                return;
            };
            match done(&told) {
                Ok(true) => self.plane.settle(|fences| fences.fenced(self.node, &callers)),
                Ok(false) => {
                    self.again = Some(Instant::now() + FENCE_PAUSE);
                    return;
                }
                Err(why) => return self.lose(why),
            }
        }
    }

    fn ping(&mut self) {
        let own = self.plane.members.own_state();
        match self.ask(&ControlRequest::Ping(own), ASK_TIMEOUT) {
            Some(ControlReply::Pong(state)) => {
                self.plane.members.heard(self.node, state);
                // The pause is reset only here: links that break at once are also made ever more
                // slowly.
                self.pause = REDIAL_PAUSE;
                self.due = Instant::now() + PING_INTERVAL;
            }
            Some(other) => self.lose(out_of_turn(&other)),
            None => (),
        }
    }

    /// Ends the connections of a node's clients if the node has been silent for too long.
    fn forget_silent(&self) {
        let inbound = self.plane.inbound(self.node);
        let silent = inbound.last_heard.is_some_and(|at| at.elapsed() > HOME_SILENCE_MAX);
        if silent && self.plane.registry.count(self.node as u16) > 0 {
            let ended = self.plane.registry.forget(self.node as u16);
            tracing::warn!(node = self.node, ended, "ended connections of a silent node's clients");
        }
    }
}

/// Returns whether all connections that were to be ended have ended.
fn done(told: &ControlReply) -> Result<bool, LinkError> {
    match told {
        ControlReply::Done {} => Ok(true),
        ControlReply::Later {} => Ok(false),
        other => Err(out_of_turn(other)),
    }
}

fn out_of_turn(told: &ControlReply) -> LinkError {
    LinkError::Garbage(match told {
        ControlReply::Refused(refused) => refused.text.clone(),
        _ => "an answer to something else".into(),
    })
}
