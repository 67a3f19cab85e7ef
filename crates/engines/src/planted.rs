//! Known protocol bugs that tests plant, to see whether they would be found.
//!
//! Each bug leaves out one rule of a protocol. Without the feature `planted`, which only the
//! simulation test switches on, no bug can be planted and none of this code is compiled in.

use zerocopy::TryFromBytes;

/// A rule that is left out.
#[derive(Clone, Copy, Debug, PartialEq, Eq, TryFromBytes)]
#[repr(u8)]
pub enum Bug {
    /// A miss is believed at the first look.
    NoSecondLook,
    /// A client believes that an entry is the one the index names, without looking at its
    /// generation.
    NoGenerationCheck,
    /// Torn READs are believed: neither checksums nor the generation are looked at after the READ.
    TornReadsBelieved,
    /// An insert does not look for another insert of the same key: the duplicate stays.
    DuplicateStays,
    /// A cached entry is served without looking at the slot.
    CacheOutlivesReuse,
    /// All EMPTY words are equal.
    UntaggedEmpty,
    /// A batch of PUTs gives up its epoch before the general path has installed its other entries.
    BatchRestUnpinned,
    /// A batch of GETs gives up its epoch after it has read the index.
    BatchUnpinned,
    /// A batch of GETs does not look at generations again after it has read the entries.
    BatchBelievesTorn,
    /// A DELETE of a batch that lost its CAS counts as done.
    BatchDeletesAnyway,
    /// A batch of PUTs over a network gives the entry of a CAS of unknown outcome back, as if the
    /// CAS had failed.
    BatchUnknownFailed,
    /// A batch of GETs takes the keys that the stages could not answer for absent.
    BatchForgetsRest,
    /// A batch of PUTs inserts a key at home, if home is free after the look at the other slots.
    BatchLooksHomeLast,
    /// A tentative insert of a batch does not look for another insert of the same key.
    BatchDuplicateStays,
    /// The entry of a batch's insert that has withdrawn its word is named by the same word again.
    BatchWordTwice,
    /// A PUT that lost its CAS to any operation on the key counts as done.
    AbsorbAnything,
    /// A PUT whose CAS expected a remembered word also counts as done.
    AbsorbSpeculative,
    /// A TOUCH PUTs the bytes that it has read, whatever value the key has by now.
    TouchPutsAnyway,
    /// A move does not remove tentative inserts of its key.
    NoMoveScan,
    /// A move does not change a free home's tag.
    NoHomeBump,
    /// A move reads its destination after it has frozen its source.
    DestinationReadLate,
    /// A move shows the copy before it drops the source.
    FinishBeforeDrop,
    /// A client that undoes a move does not change the destination's tag first.
    NoBumpOnUndo,
    /// A tentative insert does not give way to a free home.
    HomeIgnored,
    /// A note frees an entry whatever generation the note carries.
    NoteWithoutGeneration,
    /// The scrubber frees what looks leaked without waiting for a grace period.
    NoGraceInScrub,
    /// A session does not wait for verbs that it posted and whose outcome it does not know.
    ForgetsWhatIsUnderWay,
    /// A session that may not be used again for long leaves the end of its announcement to nobody.
    LeftAnnouncing,
    /// A session that is used again does not take back the word that it has left to be stored.
    LeftWordStays,
    /// A session believes what it remembers of a slab's unused entries, even if the slab was lost
    /// and leased again since.
    FreshUnchecked,
    /// Entries that have rested are noted free although their slab was cut anew meanwhile.
    RestedAfterCut,
    /// The notes of entries that have rested are stored outside an epoch.
    NoteOutsideEpoch,
    /// A generation starts over without a rest.
    NoRestAtWrap,
    /// An entry is used again although it is pinned.
    PinIgnored,
    /// A slab is taken apart although an entry of it is pinned.
    PinRecut,
    /// A pin is believed without another look at the index.
    PinUnverified,
    /// A table that stores evicts.
    StoringTableEvicts,
    /// An evicted entry is noted free before its word is out of the index.
    FreedBeforeEvicted,
    /// An eviction that lost its CAS notes the entry free all the same.
    EvictedAnyway,
    /// A slab is cut anew although not all of its values could be evicted.
    EmptiedAnyway,
    /// A move is not noted for scans.
    MoveUnnoted,
    /// A move is noted before its copy is in place, and not after.
    MoveNotedEarly,
    /// A scan does not look at the slots to which words were moved.
    MovesNotFollowed,
    /// A scan takes a move that is counted and not written yet for none.
    MoveAwaitedInVain,
    /// An entry that has expired is noted free before its word is out of the index.
    FreedBeforeExpired,
    /// The node removes the value of a key of which it has seen an entry that has expired, without
    /// looking whether that entry is still the key's value.
    ExpiredByHint,
    /// A seized slab is allocated from without a grace period.
    SeizedUsedAtOnce,
    /// A slab changes its class without a grace period.
    RecutAtOnce,
    /// A slab changes its class after one grace period.
    RecutAfterOne,
    /// A slab is forgotten that a lane had leased, and not listed, when its future ended.
    LeftLeased,
    /// A slab is forgotten that a lane had seized when its future ended.
    LeftSeized,
    /// A slab is forgotten that a lane had closed when its future ended.
    LeftClosing,
    /// A slab is forgotten that a lane was putting together when its future ended.
    LeftForming,
    /// A slab whose descriptor a lane was changing when its future ended is looked at although
    /// verbs of the lane are still under way.
    LeftSeenEarly,
    /// Slabs that were seized or closed are forgotten if the future ends before their grace period
    /// has begun.
    GatheredLost,
    /// A remembered word is used however old it is.
    CacheOfAnyAge,
    /// A remembered word carries the epoch of the session's newest operation.
    CacheLinesTooYoung,
    /// The scrubber frees an entry without looking whether its slab is still cut as it was.
    UnusedScrubbed,
    /// The scrubber reads the sessions before the chunk descriptors that name them.
    SessionsBeforeDescriptors,
    /// A session goes idle with a store that may overtake those of its operation.
    IdleBeforeStores,
    /// Published protocol: an entry is committed whatever its status is by now.
    CommitsBlindly,
    /// Published protocol: an insert is committed without a reverse pass.
    NoReversePass,
    /// Published protocol: an insert ignores other pending inserts.
    RivalsIgnored,
    /// Published protocol: a miss does not look again at pending entries.
    StatusNotReread,
    /// Published protocol: an aborted copy is replaced although its mover may still put it into its
    /// destination.
    DestinationStays,
    /// Published protocol: a MIGRATE does not abort pending inserts of its key.
    MoveSparesInserts,
    /// Published protocol: the previous version is retired before the commit.
    RetiresPreviousEarly,
    /// Published protocol: the scrubber does not count previous versions as needed.
    PreviousNotNeeded,
    /// Log: everything that a recovery reads of the last segment counts as durable.
    PageCacheTrusted,
    /// Requests: a worker does not remember which requests it has executed.
    ExecutesAgain,
    /// Requests: a worker executes requests that were meant for an earlier incarnation.
    AnyIncarnation,
    /// Requests: a client takes 0, which says that a worker has no incarnation, for one.
    NobodyBelieved,
    /// Requests: a worker believes a session because its number is larger.
    LargerSessionBelieved,
    /// Requests: a worker takes datagrams whatever their seal.
    SealUnchecked,
    /// Herd: a cache compares a key's tag and not the key.
    TagComparedOnly,
    /// KV-Direct: a lane forwards to any operation that waits for its slot, without comparing keys.
    ForwardsToAnyKey,
    /// KV-Direct: a value that was changed at hand is not written back.
    NoWriteBack,
    /// KV-Direct: a value that is too long to be kept at hand leaves the value before it there.
    StaleAtHand,
    /// KV-Direct: the key, not its bucket, chooses the station's slot: two keys of one bucket race.
    SlotOfKey,
    /// KV-Direct: an operation for which the station has no room executes at once.
    FullStationExecutes,
    /// KV-Direct: without forwarding, reads execute beside a write.
    ReadsBesideWrites,
    /// KV-Direct: an operation is executed in its place beside others of its slot.
    InPlaceBesideOthers,
    /// KV-Direct: without forwarding, reads that execute beside each other remove expired values.
    ReadsRemoveExpired,
    /// KV-Direct: a value that has expired is shown.
    ExpiredSeen,
    /// KV-Direct: a function that fails in the middle of a vector leaves what it has done.
    HalfUpdateStays,
    /// KV-Direct: an update of a vector gives no new version.
    UpdateKeepsVersion,
    /// Requests: the outcomes of a packet stand in the order in which they become known.
    ResultsAsTheyCome,
    /// Requests: the outcomes of a packet that changed something are not kept: those of an earlier
    /// one stay in their place.
    ResultsNotKept,
    /// Requests: a worker skips the last PUT of a packet, and answers as if it were done.
    HalfExecuted,
    /// Requests: a client that sends a packet again leaves out its last operation.
    ResendLosesOperation,
    /// KV-Direct: an entry whose new value finds no memory loses its slab.
    FailureFrees,
    /// KV-Direct: an insert that finds no memory for a bucket does not give back its slab.
    LeaksWhenFull,
    /// KV-Direct: a bucket that leaves its chain takes the buckets behind it along.
    ChainIsCut,
}

impl Bug {
    /// All bugs.
    pub fn all() -> impl Iterator<Item = Self> {
        (0..=u8::MAX).map_while(|number| Self::try_read_from_bytes(&[number]).ok())
    }
}

#[cfg(feature = "planted")]
mod switch {
    use super::Bug;
    use std::cell::Cell;

    thread_local! {
        static PLANTED: Cell<Option<Bug>> = const { Cell::new(None) };
    }

    /// Plants a bug in the engines of this thread, or removes it.
    pub fn plant(bug: Option<Bug>) {
        PLANTED.set(bug);
    }

    #[inline]
    pub(crate) fn is(bug: Bug) -> bool {
        PLANTED.get() == Some(bug)
    }
}

#[cfg(feature = "planted")]
pub(crate) use switch::is;
#[cfg(feature = "planted")]
pub use switch::plant;

#[cfg(not(feature = "planted"))]
#[inline(always)]
pub(crate) const fn is(_: Bug) -> bool {
    false
}
