//! The protocol with one rule left out. The checker must detect each mutation; otherwise its other
//! results mean nothing.

/// A rule that is left out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mutation {
    /// An operation that finds no value reports that after one look at the slots instead of two
    /// equal ones.
    OneLookIsEnough,
    /// An insert shows its value at once, without the tentative stage.
    NoTentativeInsert,
    /// A move leaves tentative inserts of its key alone.
    MoveSparesTentative,
    /// A move that is undone leaves the free destination its tag, so that a slow mover can still
    /// place its copy.
    UndoneMoveKeepsTag,
    /// Entries are read without looking at their generation.
    NoGenerationCheck,
    /// EMPTY is one word, without a tag.
    UntaggedEmpty,
    /// A tentative insert does not mind that the home slot is free.
    FreeHomeIgnored,
    /// A PUT that loses a CAS on a remembered word counts as overwritten.
    AbsorbedByMemory,
    /// A withdrawn tentative insert comes back with the same generation.
    TentativeWordReused,
    /// A note frees the entry whatever generation it has by now.
    NoteIgnoresGeneration,
    /// A move leaves the free home slot its tag.
    MoveKeepsHomeTag,
    /// A move reads its destination only after it froze its source.
    DestinationReadLate,
    /// A move shows its copy for good before it drops the source.
    FinishedBeforeDropped,
    /// A PUT counts as overwritten by a conditional PUT.
    AbsorbedByConditional,
    /// A DELETE that loses its CAS to a PUT reports that it found a value just before.
    DeleteAbsorbed,
    /// The scrubber does not wait for the operations that are under way.
    NoGracePeriod,
    /// A reader relies on the generation that it reads first, and does not look again after it has
    /// read the body.
    NoSecondGenerationRead,
    /// A tentative insert waits for a rival in a lower slot for ever.
    EndlessPatience,
    /// An entry is used again although a client reads it in place.
    PinIgnored,
    /// A pin is believed without another look at the slot.
    PinUnverified,
    /// An evicted entry is noted free before its word is out of the index.
    NotedBeforeEvicted,
    /// A victim is noted free although its word has changed.
    EvictedAnyway,
}

impl Mutation {
    /// All of them.
    pub const ALL: [Self; 22] = [
        Self::OneLookIsEnough,
        Self::NoTentativeInsert,
        Self::MoveSparesTentative,
        Self::UndoneMoveKeepsTag,
        Self::NoGenerationCheck,
        Self::UntaggedEmpty,
        Self::FreeHomeIgnored,
        Self::AbsorbedByMemory,
        Self::TentativeWordReused,
        Self::NoteIgnoresGeneration,
        Self::MoveKeepsHomeTag,
        Self::DestinationReadLate,
        Self::FinishedBeforeDropped,
        Self::AbsorbedByConditional,
        Self::DeleteAbsorbed,
        Self::NoGracePeriod,
        Self::NoSecondGenerationRead,
        Self::EndlessPatience,
        Self::PinIgnored,
        Self::PinUnverified,
        Self::NotedBeforeEvicted,
        Self::EvictedAnyway,
    ];

    /// The mutation with a name.
    pub fn named(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|mutation| format!("{mutation:?}") == name)
    }
}
