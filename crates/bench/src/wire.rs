//! What the bench and its clients say to each other: one JSON object a line,
//! the bench's on a client's stdin, the client's on its stdout.
//!
//! ```text
//! bench   Open        Load        Prepare      Try…   Probe      Go        Count        Limit
//! client      Opened   Loading… Loaded   Ready     Tried    Tried    Done      Counted      Limit
//! ```
//! A client can answer anything with `Failed`, and then ends.

use std::io::{self, Write};
use std::ops::Range;

use serde::{Deserialize, Serialize};

use crate::measured::ClientReport;
use crate::spec::Spec;
use crate::tally::Traffic;
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
    /// Run for a moment in this way.
    Try(Tuning),
    /// Run a closed loop for as long as tells what this client can do.
    Probe,
    /// Run the measured phase: in an open loop, if it is told how many operations a second.
    Go(Option<f64>),
    /// Count what operations send.
    Count,
    /// Measure the bare loop over the store's memory.
    Limit,
}

/// All a client needs to know.
#[derive(Debug, Serialize, Deserialize)]
pub struct Open {
    /// Name of what is measured.
    pub system: String,
    /// How.
    pub spec: Spec,
    /// Where.
    pub endpoint: Endpoint,
    /// The client's number, from 0.
    pub client: u32,
}

/// From a client to the bench.
#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum FromClient {
    /// Connected.
    Opened,
    /// So many of its records are stored.
    Loading(u64),
    /// All of its records are stored.
    Loaded,
    /// Waiting for `Go`.
    Ready,
    /// Operations a second in the way tried, or probed.
    Tried(f64),
    /// The measured phase is over.
    Done(Box<ClientReport>),
    /// What operations send over the fabric, where there is one.
    Counted(Option<Traffic>),
    /// Operations a second of the bare loop, where there is one.
    Limit(Option<f64>),
    /// It cannot go on.
    Failed(String),
}

/// Writes one message.
pub fn say(to: &mut impl Write, message: &impl Serialize) -> io::Result<()> {
    let mut line = serde_json::to_vec(message)?;
    line.push(b'\n');
    to.write_all(&line)?;
    to.flush()
}
