//! The subject of a seed: clients that do everything themselves, by one of two protocols, or an
//! engine whose workers take part.

use std::str::FromStr;

use clap::ValueEnum;

use crate::served::Engine;
use crate::workload::{Kind, Protocol, Workload};

/// The subject of a seed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Subject {
    Nessie(Kind),
    Served(Engine),
}

/// A subject's name on the command line. The names of nessie's workloads also need a protocol.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Name {
    Workload(Workload),
    Engine(Engine),
}

impl Subject {
    /// All subjects.
    pub fn all() -> Vec<Subject> {
        let driven = [Protocol::Loch, Protocol::Published].into_iter().flat_map(Kind::all);
        driven.map(Subject::Nessie).chain(Engine::all().map(Subject::Served)).collect()
    }

    /// The name on the command line.
    pub fn name(self) -> String {
        match self {
            Subject::Nessie(kind) => kind.name(),
            Subject::Served(engine) => engine.name().into(),
        }
    }

    pub fn is_called(self, name: Name) -> bool {
        match (self, name) {
            (Subject::Nessie(kind), Name::Workload(workload)) => kind.workload == workload,
            (Subject::Served(engine), Name::Engine(other)) => engine == other,
            _ => false,
        }
    }

    pub fn is_by(self, protocol: Protocol) -> bool {
        matches!(self, Subject::Nessie(kind) if kind.protocol == protocol)
    }
}

impl Name {
    /// The subject of the name.
    pub fn subject(self, protocol: Protocol) -> Subject {
        match self {
            Name::Workload(workload) => Subject::Nessie(Kind { protocol, workload }),
            Name::Engine(engine) => Subject::Served(engine),
        }
    }
}

impl FromStr for Name {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let workload = Workload::from_str(text, false).map(Name::Workload);
        workload.or_else(|_| text.parse().map(Name::Engine)).map_err(|engines: String| {
            let names = Workload::ALL.map(|workload| workload.name().to_string());
            format!("there are {}, {engines}", names.join(", "))
        })
    }
}
