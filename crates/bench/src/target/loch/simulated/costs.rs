//! The costs of a worker's work, in virtual time: few numbers, all of them here.
//!
//! A request costs its worker
//!
//! 1. a share that is the same for all requests: to take it out of its slot, decode and hash it,
//!    execute it on memory that is in the processor's cache, and make the reply
//!    ([`Costs::request_ns`]);
//! 2. the doorbell and the verb of the reply (the profile's numbers);
//! 3. each access to memory that is not in the cache ([`Costs::memory_ns`]): the key's slots
//!    together, since they do not depend on each other, and each look at an entry. HERD's pipeline
//!    prefetches memory before it needs it, so its accesses cost nothing by themselves;
//! 4. each byte that the processor copies (the profile's rate): out of the request slot, into and
//!    out of the entry, out of the reply slot.
//!
//! And each poll that finds no request costs [`Costs::poll_ns`].

use loch_fabric::sim::Profile;

use crate::spec::Spec;
use crate::system::Hardware;

/// Requests that one core of HERD's server answers in a second, in millions (herd §5.7, Figure 13).
const HERD_CORE_MOPS: f64 = 4.2;
/// The cost of a request on a host of today without the doorbell of its reply: a `nessie-server`
/// worker over shm takes 63 to 66 ns in all for an operation on 16 + 64 bytes.
const REQUEST_TODAY_NS: f64 = 65.0;
/// "Each random memory access takes 60-120 ns" (herd §4.1.1).
const MEMORY_NS: u64 = 90;
/// On average, a worker finds a request, and a client its reply, half of this after it has arrived.
/// A round of polls takes less than that; to simulate it more often would show nothing more.
const POLL_NS: u64 = 200;
/// Values that take longer on the link are polled for less often: once in this part of that time.
const POLLS_A_VALUE: f64 = 32.0;
const POLL_NS_MAX: f64 = 2_000.0;

/// The costs on one kind of hardware.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Costs {
    /// Cost of a request: nanoseconds of the worker's processor.
    pub request_ns: u64,
    /// Cost of an access to memory.
    pub memory_ns: u64,
    /// Cost of a copied byte.
    pub byte_ns: f64,
    /// Cost of a poll in vain.
    pub poll_ns: u64,
    /// Cost of a doorbell.
    pub doorbell_ns: u64,
    /// The time that a card needs to send a short message.
    pub send_ns: f64,
    /// The time that the link needs for a byte.
    pub link_byte_ns: f64,
    /// Bytes of each message besides its content.
    pub header_bytes: u64,
}

impl Costs {
    /// The costs on the simulated hardware.
    pub fn of(spec: &Spec) -> Self {
        let profile = spec.hardware.profile();
        let Profile { doorbell_ns, post_ns, .. } = profile;
        let request_ns = match spec.hardware {
            // Hosts of the papers' time. HERD's measurement includes the posting of the reply.
            Hardware::ConnectX3At10 | Hardware::ConnectX3At56 => {
                1e3 / HERD_CORE_MOPS - (doorbell_ns + post_ns) as f64
            }
            Hardware::ConnectX6At200 => REQUEST_TODAY_NS,
        };
        let value_ns = spec.value_size as f64 * 8.0 / profile.link_gbit_s;
        Costs {
            request_ns: request_ns as u64,
            memory_ns: MEMORY_NS,
            byte_ns: 1.0 / profile.copy_gbyte_s,
            poll_ns: (value_ns / POLLS_A_VALUE).clamp(POLL_NS as f64, POLL_NS_MAX) as u64,
            doorbell_ns,
            send_ns: profile.issue_write_ns,
            link_byte_ns: 8.0 / profile.link_gbit_s,
            header_bytes: profile.header_bytes,
        }
    }

    /// The time that card and link need for a message of `bytes` bytes.
    pub fn of_send(&self, bytes: usize) -> f64 {
        let on_link = (bytes as u64 + self.header_bytes) as f64 * self.link_byte_ns;
        self.send_ns.max(on_link)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::args::tests::spec;

    #[test]
    fn a_core_of_the_papers_time_does_what_herd_measured() {
        let costs = Costs::of(&spec("--fabric sim --profile connectx3-56g").unwrap());
        let profile = Profile::CONNECTX_3_56;
        let ns = costs.request_ns + profile.doorbell_ns + profile.post_ns;
        assert!((4.1..4.3).contains(&(1e3 / ns as f64)), "{ns}");
        assert_eq!((costs.poll_ns, costs.byte_ns), (POLL_NS, 0.2));
    }

    #[test]
    fn long_messages_fill_the_link() {
        let costs = Costs::of(&spec("--fabric sim --profile connectx3-56g").unwrap());
        assert_eq!(costs.of_send(80), costs.send_ns);
        let gbit_s = 4096.0 * 8.0 / costs.of_send(4096);
        assert!((55.0..56.0).contains(&gbit_s), "{gbit_s}");
    }

    #[test]
    fn long_values_are_looked_for_less_often() {
        let poll_ns = |size: &str| {
            let line = format!("--fabric sim --profile connectx3-10g --value-size {size}");
            Costs::of(&spec(&line).unwrap()).poll_ns
        };
        assert_eq!((poll_ns("2KiB"), poll_ns("16KiB"), poll_ns("128KiB")), (200, 409, 2000));
    }
}
