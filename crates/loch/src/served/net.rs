//! What carries the verbs and the messages of the clients of served tables.

use loch_fabric::shm::{ShmEndpoint, ShmMessages};
#[cfg(feature = "verbs")]
use loch_fabric::verbs::{Datagrams, VerbsEndpoint};
use loch_fabric::{Fabric, Messages, UnreliableWrites};

#[cfg(feature = "verbs")]
use crate::limits::RESEND_NETWORK_US;
use crate::limits::RESEND_US;
#[cfg(feature = "verbs")]
use crate::remote::Ways;

/// A fabric, as clients of served tables use it.
pub(crate) trait Net: Sized + 'static {
    /// Verbs.
    type Fabric: Fabric + UnreliableWrites;
    /// Messages.
    type Mail: Messages;
    /// What a client needs for its pauses.
    type Patience;
    /// How long a client waits for a reply before it sends its request again, in microseconds.
    const RESEND_US: u64;

    /// What a client does that has waited for a while.
    fn wait(fabric: &Self::Fabric, patience: &Self::Patience);
}

/// All memory of the cluster is mapped.
pub(crate) struct Shm;

impl Net for Shm {
    type Fabric = ShmEndpoint;
    type Mail = ShmMessages;
    type Patience = ();
    const RESEND_US: u64 = RESEND_US;

    #[inline]
    fn wait(_: &ShmEndpoint, (): &()) {
        std::thread::yield_now();
    }
}

/// Nodes are on other hosts, but for the client's home.
#[cfg(feature = "verbs")]
pub(crate) struct Verbs;

#[cfg(feature = "verbs")]
impl Net for Verbs {
    type Fabric = VerbsEndpoint;
    type Mail = Datagrams;
    type Patience = Ways;
    const RESEND_US: u64 = RESEND_NETWORK_US;

    fn wait(endpoint: &VerbsEndpoint, ways: &Ways) {
        ways.wait(endpoint);
        std::thread::yield_now();
    }
}
