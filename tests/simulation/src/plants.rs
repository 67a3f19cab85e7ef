//! The test of the test: known bugs, planted one at a time, must be found.

use loch_engines::planted::Bug;

use crate::report::{BUDGET_SPENT, Report};
use crate::run::{Sabotage, run};
use crate::served::Engine;
use crate::side_by_side;
use crate::subject::Subject;
use crate::workload::{Kind, Protocol, Workload};

/// A bug, in an engine or around it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Plant {
    Engine(Family, Bug),
    /// A dead client's connections are not cut off before its place is given away.
    NoFence,
    /// A fence does nothing to a client that shares its host's connections: they live on, and so do
    /// the client's keys.
    KeysOutliveFences,
    /// A node's own atomics are executed by its processor, beside those of its card.
    CpuAtomics,
}

/// The owner of the rule that a bug leaves out. Some rules belong to several engines.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Family {
    Loch,
    Published,
    /// Requests and replies, of all engines that have them.
    Requests,
    Herd,
    Pilaf,
    KvDirect,
}

impl Family {
    const ALL: [Family; 6] =
        [Self::Loch, Self::Published, Self::Requests, Self::Herd, Self::Pilaf, Self::KvDirect];

    /// The subjects in which its bugs are looked for, in turn.
    fn subjects(self) -> Vec<Subject> {
        match self {
            Family::Loch => {
                // The rules of the engine are the same whoever shares connections, whether the
                // table evicts, and whether somebody scans it.
                let kinds = Kind::all(Protocol::Loch).into_iter();
                let others = [Workload::Hosts, Workload::Cache, Workload::Scans, Workload::Dropped];
                let kinds = kinds.filter(|kind| !others.contains(&kind.workload));
                kinds.map(Subject::Nessie).collect()
            }
            Family::Published => {
                Kind::all(Protocol::Published).into_iter().map(Subject::Nessie).collect()
            }
            Family::Requests => [Engine::Server, Engine::Hybrid].map(Subject::Served).into(),
            Family::Herd => vec![Subject::Served(Engine::HerdCache)],
            Family::Pilaf => vec![Subject::Served(Engine::Pilaf)],
            Family::KvDirect => vec![Subject::Served(Engine::KvDirect)],
        }
    }

    fn has(self, bug: Bug) -> bool {
        let shared = [Bug::NoSecondLook, Bug::NoGenerationCheck];
        match self {
            Family::Loch => {
                let others = [Family::Published, Family::Requests, Family::Herd, Family::KvDirect];
                let is_loch = |bug| !others.into_iter().any(|family| family.has(bug));
                shared.contains(&bug)
                    || (is_loch(bug) && !matches!(bug, Bug::PageCacheTrusted | Bug::SealUnchecked))
            }
            Family::Published => {
                shared.contains(&bug)
                    || matches!(
                        bug,
                        Bug::IdleBeforeStores
                            | Bug::CommitsBlindly
                            | Bug::NoReversePass
                            | Bug::RivalsIgnored
                            | Bug::StatusNotReread
                            | Bug::DestinationStays
                            | Bug::MoveSparesInserts
                            | Bug::RetiresPreviousEarly
                            | Bug::PreviousNotNeeded
                    )
            }
            Family::Requests => {
                matches!(
                    bug,
                    Bug::ExecutesAgain
                        | Bug::AnyIncarnation
                        | Bug::NobodyBelieved
                        | Bug::LargerSessionBelieved
                        | Bug::ResultsNotKept
                        | Bug::HalfExecuted
                        | Bug::ResendLosesOperation
                )
            }
            Family::Herd => bug == Bug::TagComparedOnly,
            Family::Pilaf => {
                shared.contains(&bug)
                    || matches!(
                        bug,
                        Bug::TornReadsBelieved
                            | Bug::PageCacheTrusted
                            | Bug::SealUnchecked
                            | Bug::ResultsAsTheyCome
                    )
            }
            Family::KvDirect => matches!(
                bug,
                Bug::ExecutesAgain
                    | Bug::ForwardsToAnyKey
                    | Bug::NoWriteBack
                    | Bug::StaleAtHand
                    | Bug::SlotOfKey
                    | Bug::FullStationExecutes
                    | Bug::ReadsBesideWrites
                    | Bug::InPlaceBesideOthers
                    | Bug::ReadsRemoveExpired
                    | Bug::ExpiredSeen
                    | Bug::HalfUpdateStays
                    | Bug::UpdateKeepsVersion
                    | Bug::ResultsAsTheyCome
                    | Bug::ResultsNotKept
                    | Bug::FailureFrees
                    | Bug::LeaksWhenFull
                    | Bug::ChainIsCut
            ),
        }
    }
}

/// The workloads in which a bug of Loch's own protocol is looked for, if only some would find it.
fn workloads(bug: Bug) -> Option<&'static [Workload]> {
    Some(match bug {
        Bug::NoHomeBump | Bug::NoMoveScan => &[Workload::Moves],
        // The known seeds of these bugs are of the workloads that there were first.
        Bug::NoteWithoutGeneration | Bug::ForgetsWhatIsUnderWay => &Workload::ALL[..5],
        Bug::FreshUnchecked | Bug::RestedAfterCut => &[Workload::HeldUp],
        Bug::SessionsBeforeDescriptors | Bug::StoringTableEvicts | Bug::FreedBeforeExpired => {
            &[Workload::Scarce]
        }
        Bug::ExpiredByHint => &[Workload::Expiry],
        Bug::CacheLinesTooYoung
        | Bug::CacheOfAnyAge
        | Bug::UnusedScrubbed
        | Bug::NoteOutsideEpoch => &[Workload::Wraps],
        Bug::BatchUnpinned
        | Bug::BatchBelievesTorn
        | Bug::BatchForgetsRest
        | Bug::BatchLooksHomeLast
        | Bug::BatchDuplicateStays
        | Bug::BatchWordTwice
        | Bug::BatchDeletesAnyway
        | Bug::BatchRestUnpinned => &[Workload::Batches],
        Bug::BatchUnknownFailed => &[Workload::FarBatches],
        Bug::PinIgnored | Bug::PinRecut | Bug::PinUnverified => &[Workload::Pins],
        Bug::FreedBeforeEvicted | Bug::EvictedAnyway | Bug::EmptiedAnyway => &[Workload::Cache],
        Bug::MoveUnnoted | Bug::MoveNotedEarly | Bug::MovesNotFollowed | Bug::MoveAwaitedInVain => {
            &[Workload::Scans]
        }
        Bug::LeftAnnouncing
        | Bug::LeftWordStays
        | Bug::LeftLeased
        | Bug::LeftSeized
        | Bug::LeftClosing
        | Bug::LeftForming
        | Bug::LeftSeenEarly
        | Bug::GatheredLost => &[Workload::Dropped],
        bug if is_of_reuse(bug) => &[Workload::Scarce, Workload::Wraps],
        _ => return None,
    })
}

/// Whether a rule guards the reuse of memory.
fn is_of_reuse(bug: Bug) -> bool {
    matches!(
        bug,
        Bug::FreshUnchecked
            | Bug::RestedAfterCut
            | Bug::NoteOutsideEpoch
            | Bug::SeizedUsedAtOnce
            | Bug::RecutAtOnce
            | Bug::RecutAfterOne
            | Bug::NoRestAtWrap
            | Bug::CacheOfAnyAge
            | Bug::CacheLinesTooYoung
            | Bug::UnusedScrubbed
            | Bug::SessionsBeforeDescriptors
    )
}

impl Plant {
    pub fn all() -> Vec<Plant> {
        let of = |family: Family| {
            Bug::all().filter(move |bug| family.has(*bug)).map(move |bug| (family, bug))
        };
        let engines = Family::ALL.into_iter().flat_map(of);
        let engines = engines.map(|(family, bug)| Plant::Engine(family, bug));
        engines.chain([Plant::NoFence, Plant::KeysOutliveFences, Plant::CpuAtomics]).collect()
    }

    /// The subject that a seed runs to find the bug: all subjects with the rule in turn, unless
    /// only some of them would find it.
    fn subject(self, seed: u64) -> Subject {
        let of = |protocol, workloads: &[Workload]| -> Vec<Subject> {
            let kind =
                |workload: &Workload| Subject::Nessie(Kind { protocol, workload: *workload });
            workloads.iter().map(kind).collect()
        };
        let subjects = match self {
            Plant::Engine(
                Family::Published,
                Bug::DestinationStays | Bug::StatusNotReread | Bug::MoveSparesInserts,
            ) => of(Protocol::Published, &[Workload::Moves]),
            Plant::Engine(Family::Published, Bug::IdleBeforeStores) => {
                of(Protocol::Published, &[Workload::HeldUp])
            }
            Plant::Engine(Family::Published, Bug::NoGenerationCheck) => {
                of(Protocol::Published, &Workload::ALL[..5])
            }
            Plant::Engine(Family::Requests, Bug::LargerSessionBelieved) => {
                vec![Subject::Served(Engine::Server)]
            }
            Plant::Engine(Family::Loch, bug) => match workloads(bug) {
                Some(workloads) => of(Protocol::Loch, workloads),
                None => Family::Loch.subjects(),
            },
            Plant::Engine(family, _) => family.subjects(),
            Plant::KeysOutliveFences => of(Protocol::Loch, &[Workload::Hosts]),
            Plant::NoFence | Plant::CpuAtomics => Family::Loch.subjects(),
        };
        subjects[(seed % subjects.len() as u64) as usize]
    }

    /// For a bug that takes too many seeds for every change, one seed that found it. After a change
    /// of the drawing of settings another seed finds it; `plants` without `--quick` finds that
    /// seed.
    fn known_seed(self) -> Option<u64> {
        let Plant::Engine(family, bug) = self else { return None };
        Some(match (family, bug) {
            (_, Bug::NoMoveScan) => 35_067,
            (_, Bug::NoHomeBump) => 71_446,
            (_, Bug::NoteWithoutGeneration) => 276_708,
            (_, Bug::StatusNotReread) => 3_440,
            (_, Bug::IdleBeforeStores) => 4_105,
            (_, Bug::ForgetsWhatIsUnderWay) => 17_283,
            (_, Bug::BatchUnpinned) => 2_871,
            (_, Bug::BatchRestUnpinned) => 24_047,
            (_, Bug::BatchLooksHomeLast) => 4_251,
            (_, Bug::EvictedAnyway) => 42_379,
            (_, Bug::MoveAwaitedInVain) => 5_207,
            (Family::Published, Bug::NoGenerationCheck) => 4_966,
            _ => return None,
        })
    }

    pub fn name(self) -> String {
        match self {
            Plant::Engine(Family::Loch, bug) => format!("{bug:?}"),
            Plant::Engine(family, bug) => format!("{family:?}:{bug:?}"),
            other => format!("{other:?}"),
        }
    }

    /// Runs a seed with the bug planted.
    pub fn run(self, subject: Subject, seed: u64) -> Result<Report, String> {
        let sabotage = Sabotage {
            no_fence: matches!(self, Plant::NoFence),
            cpu_atomics: matches!(self, Plant::CpuAtomics),
            keys_outlive_fences: matches!(self, Plant::KeysOutliveFences),
        };
        if let Plant::Engine(_, bug) = self {
            plant(Some(bug))?;
        }
        let ran = run(subject, seed, sabotage);
        plant(None).ok();
        ran
    }
}

/// The bug of that name.
pub fn by_name(name: &str) -> Result<Plant, String> {
    let names = || Plant::all().into_iter().map(Plant::name).collect::<Vec<_>>().join(", ");
    let found = Plant::all().into_iter().find(|plant| plant.name() == name);
    found.ok_or_else(|| format!("there is no bug {name:?}; there are {}", names()))
}

#[cfg(feature = "planted")]
fn plant(bug: Option<Bug>) -> Result<(), String> {
    loch_engines::planted::plant(bug);
    Ok(())
}

#[cfg(not(feature = "planted"))]
fn plant(_: Option<Bug>) -> Result<(), String> {
    Err("no bug can be planted in this build: build with --features planted".into())
}

/// Plants every bug, or one, and looks for it with up to `most` seeds, in all subjects that have
/// the rule in turn.
pub fn hunt_all(most: u64, only: Option<&str>, quick: bool) -> Result<(), String> {
    plant(None)?;
    let plants = match only {
        None => Plant::all(),
        Some(name) => vec![by_name(name)?],
    };
    println!("| bug | found by | how | seeds | CPU s | what was seen |");
    println!("| --- | --- | --- | ---: | ---: | --- |");
    let mut missed = Vec::new();
    for plant in plants {
        let began = cpu_seconds();
        let from = plant.known_seed().filter(|_| quick).unwrap_or(0);
        let found = hunt(plant, from, most);
        let (name, seconds) = (plant.name(), cpu_seconds() - began);
        match found {
            Some((seed, seen)) => {
                let subject = plant.subject(seed).name();
                let tried = seed + 1 - from;
                let how = if from > 0 { "replayed" } else { "search" };
                println!("| {name} | {subject} {seed} | {how} | {tried} | {seconds:.1} | {seen} |");
            }
            None => {
                println!("| {name} | **missed** | | {most} | {seconds:.1} | |");
                missed.push(name);
            }
        }
    }
    if missed.is_empty() { Ok(()) } else { Err(format!("not found: {}", missed.join(", "))) }
}

/// Processor time of this process so far: the time that a search takes then does not depend on the
/// machine's other work.
fn cpu_seconds() -> f64 {
    // Fields 14 and 15, counted from 1; the second field, in parentheses, may hold spaces.
    let stat = std::fs::read_to_string("/proc/self/stat").unwrap_or_default();
    let fields = stat.rsplit(')').next().unwrap_or_default().split_whitespace();
    fields.skip(11).take(2).filter_map(|ticks| ticks.parse::<f64>().ok()).sum::<f64>() / 100.0
}

/// A seed that finds a bug, with its failure: the first such seed, or one of the first.
fn hunt(plant: Plant, from: u64, most: u64) -> Option<(u64, String)> {
    let look = |seed: u64| {
        let ran = plant.run(plant.subject(seed), seed);
        // A search that was given up has found nothing.
        let ran = ran.or_else(|failure| {
            if failure.contains(BUDGET_SPENT) { Ok(Report::default()) } else { Err(failure) }
        });
        (seed < from + most).then_some(ran)
    };
    let (seed, failure) = side_by_side(from, look).err()?;
    let seen = failure.lines().next().unwrap_or_default();
    let end = seen.char_indices().nth(100).map_or(seen.len(), |(at, _)| at);
    Some((seed, seen[..end].to_string()))
}
