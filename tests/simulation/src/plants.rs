//! The test of the test: known bugs, planted one at a time, must be found.

use std::time::Instant;

use loch_engines::planted::Bug;

use crate::run::{BUDGET_SPENT, Report, Sabotage, run};
use crate::side_by_side;
use crate::workload::{Kind, Protocol, Workload};

/// A bug, in the engine or around it.
#[derive(Clone, Copy, Debug)]
pub enum Plant {
    Engine(Bug),
    /// A dead client's connections are not cut off before its place is given away.
    NoFence,
    /// A node's own atomics are executed by its processor, beside those of its card.
    CpuAtomics,
}

impl Plant {
    pub fn all() -> Vec<Plant> {
        let engine = Bug::ALL.into_iter().map(Plant::Engine);
        engine.chain([Plant::NoFence, Plant::CpuAtomics]).collect()
    }

    /// What a seed runs to find it: all kinds of work in turn, unless only moves would find it.
    fn kind(self, seed: u64) -> Kind {
        let protocol = self.protocol();
        if let Plant::Engine(Bug::DestinationStays | Bug::StatusNotReread) = self {
            return Kind { protocol, workload: Workload::Moves };
        }
        let kinds = Kind::all(protocol);
        kinds[(seed % kinds.len() as u64) as usize]
    }

    /// Whether it takes thousands of seeds to find it: too long for every change.
    fn is_rare(self) -> bool {
        matches!(
            self,
            Plant::Engine(
                Bug::NoMoveScan
                    | Bug::NoHomeBump
                    | Bug::NoteWithoutGeneration
                    | Bug::ForgetsWhatIsUnderWay
                    | Bug::DestinationStays
                    | Bug::StatusNotReread
            )
        )
    }

    /// The protocol whose rule it leaves out.
    fn protocol(self) -> Protocol {
        match self {
            Plant::Engine(
                Bug::CommitsBlindly
                | Bug::NoReversePass
                | Bug::RivalsIgnored
                | Bug::StatusNotReread
                | Bug::DestinationStays
                | Bug::MoveSparesInserts
                | Bug::RetiresPreviousEarly
                | Bug::PreviousNotNeeded,
            ) => Protocol::Published,
            _ => Protocol::Loch,
        }
    }

    pub fn name(self) -> String {
        match self {
            Plant::Engine(bug) => format!("{bug:?}"),
            other => format!("{other:?}"),
        }
    }

    /// Runs a seed with the bug planted.
    pub fn run(self, workload: Kind, seed: u64) -> Result<Report, String> {
        let sabotage = Sabotage {
            no_fence: matches!(self, Plant::NoFence),
            cpu_atomics: matches!(self, Plant::CpuAtomics),
        };
        if let Plant::Engine(bug) = self {
            plant(Some(bug))?;
        }
        let ran = run(workload, seed, sabotage);
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

/// Plants every bug, or one, and looks for it with up to `most` seeds, all workloads in turn.
pub fn hunt_all(most: u64, only: Option<&str>, quick: bool) -> Result<(), String> {
    plant(None)?;
    let plants =
        only.map_or_else(|| Ok(Plant::all()), |name| by_name(name).map(|one| vec![one]))?;
    println!("| bug | found by | seeds | s | what was seen |");
    println!("| --- | --- | ---: | ---: | --- |");
    let mut missed = Vec::new();
    for plant in plants.into_iter().filter(|plant| !(quick && plant.is_rare())) {
        let began = Instant::now();
        let found = hunt(plant, most);
        let (name, seconds) = (plant.name(), began.elapsed().as_secs_f64());
        match found {
            Some((seed, seen)) => {
                let workload = plant.kind(seed).workload.name();
                println!("| {name} | {workload} {seed} | {} | {seconds:.1} | {seen} |", seed + 1);
            }
            None => {
                println!("| {name} | **missed** | {most} | {seconds:.1} | |");
                missed.push(name);
            }
        }
    }
    if missed.is_empty() { Ok(()) } else { Err(format!("not found: {}", missed.join(", "))) }
}

/// A seed that finds a bug, and what it says: the first, or one of the first.
fn hunt(plant: Plant, most: u64) -> Option<(u64, String)> {
    let look = |seed: u64| {
        let ran = plant.run(plant.kind(seed), seed);
        // A search that was given up has found nothing.
        let ran = ran.or_else(|failure| {
            if failure.contains(BUDGET_SPENT) { Ok(Report::default()) } else { Err(failure) }
        });
        (seed < most).then_some(ran)
    };
    let (seed, failure) = side_by_side(0, look).err()?;
    let seen = failure.lines().next().unwrap_or_default();
    let end = seen.char_indices().nth(100).map_or(seen.len(), |(at, _)| at);
    Some((seed, seen[..end].to_string()))
}
