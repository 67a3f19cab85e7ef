//! A network card: when each of its parts is free again.

use super::Profile;
use super::profile::occupy;

/// When the parts of a network card are free again, in nanoseconds.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Nic {
    pub send_ns: f64,
    pub serve_ns: f64,
    pub atomic_ns: f64,
    pub link_out_ns: f64,
    link_in_ns: f64,
    /// The longest that one message took to come in.
    longest_in_ns: f64,
    bus_ns: f64,
}

impl Nic {
    /// When a message arrives that would arrive at `ns` if it had the way in to itself. Messages
    /// from several nodes at once arrive part by part, in turn. So the link may have been busy with
    /// others before, but the bytes of the message count as on time for as long as the longest
    /// message takes.
    pub fn receive(&mut self, ns: f64, on_link_ns: f64) -> f64 {
        self.longest_in_ns = self.longest_in_ns.max(on_link_ns);
        occupy(&mut self.link_in_ns, ns - self.longest_in_ns, on_link_ns);
        ns.max(self.link_in_ns)
    }

    /// When a message to the card's own host arrives: it crosses the host's bus, not the link.
    pub fn loop_back(&mut self, ns: f64, profile: &Profile, bytes: u64) -> f64 {
        let on_bus_ns = (bytes * 8) as f64 / profile.bus_gbit_s;
        occupy(&mut self.bus_ns, ns, on_bus_ns) + on_bus_ns + profile.one_way_ns as f64 / 4.0
    }
}
