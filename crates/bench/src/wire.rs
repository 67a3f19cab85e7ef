//! The messages between the bench and its clients: one JSON object a line, from the bench on a
//! client's stdin, from the client on its stdout.
//!
//! ```text
//! bench   Open        Load        Prepare      Try…   Probe      Go…       Limit…      Count
//! client      Opened   Loading… Loaded   Ready     Tried    Tried    Done       Limit      Counted
//! ```
//! In the workload of a cache one client also answers `Use` with `Used`, before the first `Go` and
//! after the last. In a replay there are no `Load`, `Try`, `Limit` and `Count`. A client can answer
//! anything with `Failed`, and then ends.

use std::io::{self, Write};
use std::ops::Range;

use serde::{Deserialize, Serialize};

use crate::measured::{ClientReport, Limits};
use crate::spec::Spec;
use crate::tally::{Traffic, Usage};
use crate::target::Endpoint;
use crate::tuning::Tuning;

/// From the bench to a client.
#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum ToClient {
    /// Connect.
    Open(Box<Open>),
    /// Store these records.
    Load(Range<u64>),
    /// Generate the trace and warm up.
    Prepare,
    /// Run for a moment with this way to share cores.
    Try(Tuning),
    /// Run a closed loop long enough to measure this client's rate.
    Probe,
    /// Run this turn of the measured phase: in an open loop, if there is a number of operations a
    /// second.
    Go(u32, Option<f64>),
    /// Count the traffic of operations.
    Count,
    /// Say what the store holds and has evicted.
    Use,
    /// Measure the bare loops over the store's memory.
    Limit,
}

/// All data that a client needs.
#[derive(Debug, Serialize, Deserialize)]
pub struct Open {
    /// Name of the measured system.
    pub system: String,
    /// The workload.
    pub spec: Spec,
    /// The place of the servers.
    pub endpoint: Endpoint,
    /// The client's number, from 0.
    pub client: u32,
}

/// From a client to the bench.
#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum FromClient {
    /// Connected.
    Opened {
        /// Whether the client's outstanding operations are batches.
        batches: bool,
    },
    /// This many of its records are stored.
    Loading(u64),
    /// All of its records are stored.
    Loaded,
    /// Waiting for `Go`.
    Ready,
    /// Operations a second in the way tried, or probed.
    Tried(f64),
    /// The turn is over.
    Done(Box<ClientReport>),
    /// The traffic of operations over the fabric, if there is one.
    Counted(Option<Traffic>),
    /// What the store holds and has evicted, if it evicts.
    Used(Option<Usage>),
    /// The rates of the bare loops, if there are any.
    Limit(Option<Limits>),
    /// It cannot continue.
    Failed(String),
}

/// Writes one message.
pub fn say(to: &mut impl Write, message: &impl Serialize) -> io::Result<()> {
    let mut line = serde_json::to_vec(message)?;
    line.push(b'\n');
    to.write_all(&line)?;
    to.flush()
}
