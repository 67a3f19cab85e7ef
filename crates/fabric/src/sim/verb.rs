//! A verb on its way, and the table of all of them.

use crate::counters::Verb as Kind;
use crate::{FabricError, RemoteAddr, Result};

/// A process of the simulation.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ProcessId(pub(super) u32);

/// Names a verb; a name is never given twice.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct VerbId {
    index: u32,
    generation: u32,
}

/// A connection that the processes of a host share, with its send queue. A number is never given
/// twice.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct QueueId(pub u32);

/// The work of a verb.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Work {
    Read,
    Write,
    CompareSwap { expect: u64, new: u64 },
    FetchAdd { add: u64 },
}

impl Work {
    /// Its kind, as the counters name it.
    pub fn kind(self) -> Kind {
        match self {
            Work::Read => Kind::Read,
            Work::Write => Kind::Write,
            Work::CompareSwap { .. } => Kind::CompareSwap,
            Work::FetchAdd { .. } => Kind::FetchAdd,
        }
    }
}

/// How far a verb is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Stage {
    /// Not executed yet, or only in part.
    Request,
    /// Executed; the answer is on its way.
    Response,
    /// Its process knows the outcome.
    Done(Result<()>),
}

/// A posted verb.
#[derive(Debug)]
pub(super) struct Verb {
    pub process: ProcessId,
    /// Its place among the verbs that its process posted.
    pub number: u64,
    pub work: Work,
    pub at: RemoteAddr,
    /// Bytes to be written, or as they are read.
    pub data: Vec<u8>,
    /// The word that an atomic found.
    pub old: u64,
    /// The words of a torn transfer that are still to be moved, in their order.
    pub order: Vec<u32>,
    pub stage: Stage,
    /// Whether its answer has had its turn on the link to the node of its process.
    pub landed: bool,
    /// Whether nobody waits for it.
    pub detached: bool,
    /// Whether its process was told that the outcome is unknown, while the verb may still be
    /// executed.
    pub unknown: bool,
    /// Whether it is sent once and never again.
    pub unreliable: bool,
    /// Whether it was lost on the way: an unreliable one.
    pub lost: bool,
    /// The shared connection on which it was posted, if it was one.
    pub queue: Option<QueueId>,
    /// Whether it has a place among the verbs of that connection that are under way.
    pub is_sent: bool,
    /// Whether it has a key that its node does not know.
    pub wrong_key: bool,
    /// Whether its node refused it.
    pub refused: bool,
    pub posted_ns: u64,
    /// When it leaves its process: after all stores that were made before it.
    pub leaves_ns: u64,
}

impl Verb {
    /// A verb that was not posted yet.
    pub fn new(process: ProcessId, number: u64, work: Work, at: RemoteAddr, data: Vec<u8>) -> Self {
        Self {
            process,
            number,
            work,
            at,
            data,
            old: 0,
            order: Vec::new(),
            stage: Stage::Request,
            landed: false,
            detached: false,
            unknown: false,
            unreliable: false,
            lost: false,
            queue: None,
            is_sent: false,
            wrong_key: false,
            refused: false,
            posted_ns: 0,
            leaves_ns: 0,
        }
    }

    /// The shared connection on which it has a place.
    pub fn place(&self) -> Option<QueueId> {
        self.queue.filter(|_| self.is_sent)
    }

    /// The outcome that its process gets, once there is one.
    pub fn outcome(&self) -> Option<Result<()>> {
        match self.stage {
            Stage::Done(outcome) => Some(outcome),
            _ if self.unknown => Some(Err(self.lost())),
            _ => None,
        }
    }

    /// The error of its process if its connection breaks.
    pub fn lost(&self) -> FabricError {
        FabricError::lost(self.at, !matches!(self.work, Work::Read))
    }

    /// The words of memory that it touches.
    pub fn words(&self) -> u64 {
        let at = self.at.offset();
        (at + self.data.len() as u64).div_ceil(8) - at / 8
    }

    /// The bytes of `data` that are in the word of that number.
    pub fn part(&self, word: u32) -> std::ops::Range<usize> {
        let (into, word) = ((self.at.offset() & 7) as usize, word as usize);
        (word * 8).saturating_sub(into)..((word + 1) * 8 - into).min(self.data.len())
    }

    /// Bytes of payload in the request.
    pub fn request_bytes(&self) -> u64 {
        match self.work {
            Work::Read => 0,
            Work::Write => self.data.len() as u64,
            Work::CompareSwap { .. } | Work::FetchAdd { .. } => 16,
        }
    }

    /// Bytes of payload in the response.
    pub fn response_bytes(&self) -> u64 {
        match self.work {
            Work::Read => self.data.len() as u64,
            Work::Write => 0,
            Work::CompareSwap { .. } | Work::FetchAdd { .. } => 8,
        }
    }
}

/// The verbs that are not over.
#[derive(Debug, Default)]
pub(super) struct Verbs {
    slots: Vec<(u32, Option<Verb>)>,
    free: Vec<u32>,
}

impl Verbs {
    pub fn add(&mut self, verb: Verb) -> VerbId {
        let index = self.free.pop().unwrap_or_else(|| {
            self.slots.push((0, None));
            self.slots.len() as u32 - 1
        });
        let slot = &mut self.slots[index as usize];
        slot.1 = Some(verb);
        VerbId { index, generation: slot.0 }
    }

    pub fn get(&mut self, id: VerbId) -> Option<&mut Verb> {
        let (generation, verb) = self.slots.get_mut(id.index as usize)?;
        if *generation == id.generation { verb.as_mut() } else { None }
    }

    pub fn remove(&mut self, id: VerbId) -> Option<Verb> {
        self.get(id)?;
        let slot = &mut self.slots[id.index as usize];
        slot.0 += 1;
        self.free.push(id.index);
        slot.1.take()
    }

    /// The verbs for which `wanted` holds.
    pub fn ids(&self, wanted: impl Fn(&Verb) -> bool) -> Vec<VerbId> {
        let name = |(index, (generation, verb)): (usize, &(u32, Option<Verb>))| {
            let wanted = verb.as_ref().is_some_and(&wanted);
            wanted.then_some(VerbId { index: index as u32, generation: *generation })
        };
        self.slots.iter().enumerate().filter_map(name).collect()
    }
}
