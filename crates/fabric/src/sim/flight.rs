//! The way of a verb: out through one network card, over the link, through another, and back.
//!
//! Each card takes up one message after the other, each link carries one byte after the other, each
//! way, and each card executes one atomic after the other. So throughput, and latency under load,
//! follow from the numbers of the [`Profile`](super::Profile).

use rand::seq::SliceRandom;

use super::profile::occupy;
use super::state::{Event, Inner, pair};
use super::verb::{Stage, Verb, VerbId, Work};
use super::watch::{Change, How};
use crate::{Atomics, RegionId, RemoteAddr};

/// How often a request that does not get through is sent again.
const RESEND_NS: u64 = 200_000;
/// A request that was given up may still arrive this much later, unless it is fenced.
const LATE_NS: u64 = 50_000_000;

impl Inner {
    /// Sends a verb on its way when its process has come to post it.
    pub fn leave(&self, id: VerbId) {
        if !self.goes_out(id) {
            return;
        }
        let mut verbs = self.verbs.borrow_mut();
        let verb = verbs.get(id).expect("it goes out");
        let host = self.process(verb.process).node;
        let profile = &self.profile;
        let issue_ns = match verb.work {
            Work::Write => profile.issue_write_ns,
            _ => profile.issue_read_ns,
        };
        let mut nodes = self.nodes.borrow_mut();
        let node = &mut nodes[host.0 as usize];
        // A connection's state is in the card with the share of connections that it can hold.
        let held = f64::from(profile.connections) / f64::from(node.connections.max(1));
        let missed = held < 1.0 && self.happens(1.0 - held);
        let miss_ns = if missed { profile.connection_miss_ns } else { 0.0 };
        let now = self.now_ns.get() as f64;
        let mut at = occupy(&mut node.nic.send_ns, now, issue_ns + miss_ns) + miss_ns;
        if verb.request_bytes() > profile.inline_bytes {
            at += profile.dma_ns as f64;
        }
        let arrives = if host == verb.at.region() {
            node.nic.loop_back(at, profile, verb.request_bytes())
        } else {
            let on_link = profile.on_link_ns(verb.request_bytes()) * self.slowness(host, verb);
            at = occupy(&mut node.nic.link_out_ns, at, on_link) + on_link;
            at + profile.one_way_ns as f64
        };
        drop(nodes);
        drop(verbs);
        self.at(arrives as u64 + self.delay(), Event::Arrive(id));
    }

    fn slowness(&self, host: RegionId, verb: &Verb) -> f64 {
        let nodes = pair(host, verb.at.region());
        self.slow.borrow().iter().find(|(n, _)| *n == nodes).map_or(1.0, |(_, times)| *times as f64)
    }

    /// How long a message is held up.
    fn delay(&self) -> u64 {
        let (rate, ns) = (self.faults.borrow().delays, self.faults.borrow().delay_ns);
        if !self.happens(rate) {
            return 0;
        }
        if self.happens(0.1) { self.up_to(ns * 100) } else { self.up_to(ns) }
    }

    /// Whether messages can pass between a verb's process and its node.
    fn passes(&self, verb: &Verb) -> bool {
        self.is_open(self.process(verb.process).node, verb.at.region())
    }

    /// Whether messages pass from a host to a node.
    pub fn is_open(&self, host: RegionId, node: RegionId) -> bool {
        self.nodes.borrow()[node.0 as usize].up && !self.cuts.borrow().contains(&pair(host, node))
    }

    /// How long a datagram of this many bytes is under way.
    pub fn message_ns(&self, bytes: u64) -> u64 {
        let profile = &self.profile;
        profile.one_way_ns + profile.on_link_ns(bytes) as u64 + self.delay()
    }

    /// Sends a request again that did not get through, until its process gives it up; it then stays
    /// on its way for a while longer.
    fn stuck(&self, id: VerbId, verb: &Verb, again: Event) {
        let now = self.now_ns.get();
        let give_up = verb.posted_ns + self.profile.retry_ns;
        if !verb.unknown && now + RESEND_NS >= give_up {
            self.at(give_up.max(now), Event::GiveUp(id));
        }
        if now < give_up + LATE_NS {
            self.at(now + RESEND_NS, again);
        }
    }

    pub fn arrive(&self, id: VerbId) {
        let mut verbs = self.verbs.borrow_mut();
        let Some(verb) = verbs.get(id) else { return };
        if verb.stage != Stage::Request {
            return;
        }
        let passes = self.passes(verb);
        if verb.lost || (verb.unreliable && !passes) {
            drop(verbs);
            return self.settle_lost(id);
        }
        if !passes {
            return self.stuck(id, verb, Event::Arrive(id));
        }
        let mut now = self.now_ns.get() as f64;
        let profile = &self.profile;
        let is_local = self.process(verb.process).node == verb.at.region();
        let mut nodes = self.nodes.borrow_mut();
        let nic = &mut nodes[verb.at.region().0 as usize].nic;
        if !is_local {
            now = nic.receive(now, profile.on_link_ns(verb.request_bytes()));
        }
        let begins = match verb.work {
            Work::Read => occupy(&mut nic.serve_ns, now, profile.serve_read_ns),
            Work::Write => occupy(&mut nic.serve_ns, now, profile.serve_write_ns),
            Work::CompareSwap { .. } | Work::FetchAdd { .. } => {
                let window = self.faults.borrow().atomic_window_ns as f64;
                let begins = occupy(&mut nic.serve_ns, now, profile.serve_write_ns);
                occupy(&mut nic.atomic_ns, begins, profile.serve_atomic_ns + window)
            }
        };
        drop(nodes);
        let torn = self.faults.borrow().torn;
        let is_atomic = matches!(verb.work, Work::CompareSwap { .. } | Work::FetchAdd { .. });
        if !is_atomic && verb.words() > 1 && self.happens(torn) {
            verb.order = (0..verb.words() as u32).collect();
            verb.order.shuffle(&mut *self.random.borrow_mut());
        }
        drop(verbs);
        self.at((begins + profile.dma_ns as f64 / 2.0) as u64, Event::Execute(id));
    }

    /// Executes a verb, or those words of a torn verb that are moved at this moment.
    pub fn execute(&self, id: VerbId) {
        let mut verbs = self.verbs.borrow_mut();
        let Some(verb) = verbs.get(id) else { return };
        if verb.stage != Stage::Request {
            return;
        }
        if !self.nodes.borrow()[verb.at.region().0 as usize].up {
            // The node failed since the verb arrived. Its executed part stays executed.
            return self.stuck(id, verb, Event::Arrive(id));
        }
        if self.is_in_error(verb) {
            return;
        }
        if self.is_refused(verb) {
            drop(verbs);
            return self.refuse(id);
        }
        let memory = self.memory(verb.at.region());
        let (by, region, at) = (verb.process, verb.at.region(), verb.at.offset());
        let now = self.now_ns.get();
        if !verb.order.is_empty() {
            let count = 1 + self.up_to(verb.order.len() as u64 - 1) as usize;
            let left = verb.order.len() - count;
            for word in verb.order.split_off(left) {
                let part = verb.part(word);
                let at = at + part.start as u64;
                match verb.work {
                    Work::Read => memory.read(at, &mut verb.data[part]),
                    _ => {
                        let at = RemoteAddr::new(region, at);
                        self.change(by, at, &verb.data[part], How::Write);
                    }
                }
            }
            if left > 0 {
                drop(verbs);
                let ns = self.faults.borrow().tear_ns;
                return self.at(now + 1 + self.up_to(ns), Event::Execute(id));
            }
            drop(verbs);
            return self.answer(id);
        }
        let window = self.faults.borrow().atomic_window_ns;
        match verb.work {
            Work::Read => memory.read(at, &mut verb.data),
            Work::Write => self.change(by, verb.at, &verb.data, How::Write),
            Work::CompareSwap { .. } | Work::FetchAdd { .. } => {
                // Read at one moment, written at another: `data` says that it was read.
                if window > 0 && verb.data.is_empty() {
                    verb.old = memory.load(at);
                    verb.data.push(0);
                    drop(verbs);
                    return self.at(now + window, Event::Execute(id));
                }
                if window == 0 || self.profile.caps.atomics == Atomics::Coherent {
                    verb.old = memory.load(at);
                }
                let from = verb.old;
                let to = match verb.work {
                    Work::CompareSwap { expect, new } if expect == from => Some(new),
                    Work::FetchAdd { add } => Some(from.wrapping_add(add)),
                    _ => None,
                };
                if let Some(to) = to {
                    memory.store(at, to);
                    let how = How::Atomic { from, to };
                    self.changed(Change { by, at: verb.at, len: 8, before: from, how });
                }
            }
        }
        drop(verbs);
        self.answer(id);
    }

    /// Sends the answer back.
    pub fn answer(&self, id: VerbId) {
        let mut verbs = self.verbs.borrow_mut();
        let verb = verbs.get(id).expect("it was just executed");
        verb.stage = Stage::Response;
        let host = self.process(verb.process).node;
        let profile = &self.profile;
        let now = (self.now_ns.get() + profile.dma_ns / 2) as f64;
        let slowness = self.slowness(host, verb);
        let mut nodes = self.nodes.borrow_mut();
        let nic = &mut nodes[verb.at.region().0 as usize].nic;
        let arrives = if host == verb.at.region() {
            verb.landed = true;
            nic.loop_back(now, profile, verb.response_bytes())
        } else {
            let on_link = profile.on_link_ns(verb.response_bytes()) * slowness;
            occupy(&mut nic.link_out_ns, now, on_link) + on_link + profile.one_way_ns as f64
        };
        drop(nodes);
        drop(verbs);
        self.at(arrives as u64 + self.delay(), Event::Complete(id));
    }

    pub fn complete(&self, id: VerbId) {
        let mut verbs = self.verbs.borrow_mut();
        let Some(verb) = verbs.get(id) else { return };
        if verb.stage != Stage::Response && !verb.unknown {
            return;
        }
        // An unreliable WRITE has no answer.
        if !self.passes(verb) && !verb.unknown && !verb.unreliable {
            return self.stuck(id, verb, Event::Complete(id));
        }
        let (process, number) = (verb.process, verb.number);
        if verb.unknown {
            // Executed, but its process was told that the outcome is unknown. Only a fence settles
            // that.
            return;
        }
        let now = self.now_ns.get();
        if !std::mem::replace(&mut verb.landed, true) {
            let on_link_ns = self.profile.on_link_ns(verb.response_bytes());
            let host = self.process(process).node;
            let nic = &mut self.nodes.borrow_mut()[host.0 as usize].nic;
            let lands = nic.receive(now as f64, on_link_ns) as u64;
            if lands > now {
                return self.at(lands, Event::Complete(id));
            }
        }
        if let Some(queue) = verb.queue.filter(|_| verb.refused) {
            drop(verbs);
            return self.flush_queue(queue);
        }
        verb.stage = Stage::Done(Ok(()));
        let (place, work) = (verb.place(), verb.work);
        if verb.detached {
            verbs.remove(id);
        }
        drop(verbs);
        self.free_place(place, work);
        self.settle(process, number);
        self.wake(process, self.now_ns.get());
    }

    /// A process gives a verb up: its connection is broken, and all verbs under way on it have an
    /// unknown outcome. They may still be executed until the connection is made again.
    pub fn give_up(&self, id: VerbId) {
        let broken = self.verbs.borrow_mut().get(id).map(|verb| {
            let is_over = matches!(verb.stage, Stage::Done(_));
            (verb.process, verb.at.region(), verb.queue, is_over)
        });
        // A verb that is over says nothing about the connection, which may be a new one.
        let Some((process, node, shared, false)) = broken else { return };
        if let Some(queue) = shared {
            return self.lose_queue(queue);
        }
        let flying = |verb: &Verb| {
            verb.process == process
                && verb.at.region() == node
                && !matches!(verb.stage, Stage::Done(_))
        };
        let ids = self.verbs.borrow().ids(flying);
        for id in ids {
            if let Some(verb) = self.verbs.borrow_mut().get(id) {
                verb.unknown = true;
            }
        }
        self.process(process).disconnect(node);
        self.wake(process, self.now_ns.get());
    }

    /// Ends an unreliable WRITE that was lost.
    pub fn settle_lost(&self, id: VerbId) {
        let verb = self.verbs.borrow_mut().remove(id);
        if let Some(verb) = verb {
            self.free_place(verb.place(), verb.work);
            self.settle(verb.process, verb.number);
        }
    }
}
