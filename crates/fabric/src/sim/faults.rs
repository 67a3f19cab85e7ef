//! The faults, and how often they strike. All are off by default; the effect of a fault on an
//! operation is described at its option.

/// A rate is a share of the events that the fault can strike, 0 to 1.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Faults {
    /// READs and WRITEs of more than a word whose words are moved one by one, in any order, spread
    /// over [`Faults::tear_ns`].
    pub torn: f64,
    /// Longest time from the first to the last word of a torn transfer.
    pub tear_ns: u64,
    /// Requests and responses, each, that are held up on their way, so that verbs of one process
    /// overtake each other.
    pub delays: f64,
    /// The longest hold-up. One in ten is a hundred times as long.
    pub delay_ns: u64,
    /// Calls of the `store` family whose words reach memory later, in any order that `store_before`
    /// and `store_after` allow, and not at all if the process dies first.
    pub slow_stores: f64,
    /// The longest time until they do.
    pub store_ns: u64,
    /// Remote atomics that read and write their word at two moments this far apart: other atomics
    /// of the NIC wait, the CPU does not ([`Atomics::Nic`](crate::Atomics)). Where atomics are
    /// coherent, they only take so long.
    pub atomic_window_ns: u64,
    /// Whether a process's own processor wrongly executes atomics on its node, instead of the
    /// node's card. [`Atomics::Nic`](crate::Atomics) forbids this.
    pub cpu_atomics: bool,
    /// Whether a fence wrongly leaves the keys of a process valid that
    /// [shares connections](super::World::share_connections).
    pub keys_outlive_fences: bool,
    /// Verbs at which a mortal process dies, just before or just after it posts them.
    pub deaths: f64,
    /// Verbs at which a process stands still.
    pub pauses: f64,
    /// For how long: from half of this to twice as long.
    pub pause_ns: u64,
    /// Stores of the CPU just before which a mortal process is stopped, as SIGSTOP or the scheduler
    /// would stop it: no later step of its program happens before the process continues, whatever
    /// the others do meanwhile. So a process also stands still between a check and the store that
    /// relies on it. Before loads, in the middle of copies, and before verbs it is stopped a
    /// quarter as often.
    pub stops: f64,
    /// For how long: from half of this to twice as long.
    pub stop_ns: u64,
    /// Datagrams and unreliable WRITEs that get lost.
    pub lost_messages: f64,
    /// Datagrams that arrive twice.
    pub doubled_messages: f64,
    /// The most by which the wall clocks of two processes differ.
    pub wall_skew_ms: u64,
}
