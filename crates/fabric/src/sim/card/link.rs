//! One PCIe link of a card, and its DMA engine.
//!
//! A READ takes a tag and a credit, goes up as a TLP without payload, is answered by the root
//! complex after a while, and comes down as one or more TLPs: then its tag is free. A WRITE takes a
//! credit and goes up; it is over for the card when its last byte is on the link. The way up and
//! the way down each carry one byte after the other. Waiting WRITEs do not hold up READs, nor
//! waiting READs WRITEs, except on the way up itself.

use std::collections::VecDeque;

use super::profile::CardProfile;
use crate::sim::profile::occupy;

/// A part of a DMA that is one request on the link.
#[derive(Clone, Copy, Debug)]
pub(super) struct Request {
    /// Its operation.
    pub op: u32,
    pub bytes: u64,
    /// The time until the host has the bytes, from when the engine takes up the request.
    pub host_ns: f64,
}

/// A request that was sent, and the time of its next step.
#[derive(Clone, Copy, Debug)]
pub(super) struct Sent {
    pub request: Request,
    pub ns: f64,
}

/// When the parts of a link are free again, and the requests that wait for them.
#[derive(Debug, Default)]
pub(super) struct Link {
    engine_ns: f64,
    up_ns: f64,
    down_ns: f64,
    reads: VecDeque<Request>,
    writes: VecDeque<Request>,
    tags_used: u32,
    read_credits_used: u32,
    write_credits_used: u32,
}

impl Link {
    /// Requests that wait or are under way.
    pub fn load(&self) -> usize {
        self.reads.len() + self.writes.len() + (self.tags_used + self.write_credits_used) as usize
    }

    pub fn add_read(&mut self, request: Request) {
        self.reads.push_back(request);
    }

    pub fn add_write(&mut self, request: Request) {
        self.writes.push_back(request);
    }

    /// The next READ that can be sent: when the root complex answers it.
    pub fn send_read(&mut self, now: f64, profile: &CardProfile) -> Option<Sent> {
        if self.tags_used == profile.tags || self.read_credits_used == profile.read_credits {
            return None;
        }
        let request = self.reads.pop_front()?;
        self.tags_used += 1;
        self.read_credits_used += 1;
        let begins = occupy(&mut self.engine_ns, now, profile.clock_ns());
        let sent = occupy(&mut self.up_ns, begins, profile.on_link_ns(0));
        // The profile's time is from the engine to the arrival of 64 bytes.
        Some(Sent { request, ns: sent + request.host_ns - profile.on_link_ns(64) })
    }

    /// The next WRITE that can be sent: when its last byte is on the link.
    pub fn send_write(&mut self, now: f64, profile: &CardProfile) -> Option<Sent> {
        if self.write_credits_used == profile.write_credits {
            return None;
        }
        let request = self.writes.pop_front()?;
        self.write_credits_used += 1;
        let begins = occupy(&mut self.engine_ns, now, profile.clock_ns());
        let on_link_ns = profile.on_link_ns(request.bytes);
        let sent = occupy(&mut self.up_ns, begins, on_link_ns);
        Some(Sent { request, ns: sent + on_link_ns })
    }

    /// The root complex answers a READ: when the last byte is at the card.
    pub fn answer(&mut self, sent: Sent, profile: &CardProfile) -> f64 {
        self.read_credits_used -= 1;
        let on_link_ns = profile.on_link_ns(sent.request.bytes);
        occupy(&mut self.down_ns, sent.ns, on_link_ns) + on_link_ns
    }

    pub fn return_tag(&mut self) {
        self.tags_used -= 1;
    }

    pub fn return_write_credit(&mut self) {
        self.write_credits_used -= 1;
    }
}
