//! The names of the baselines, and their types.

use clap::ValueEnum;
use loch_bench::system::Capabilities;
use serde::{Deserialize, Serialize};

use super::baseline::Baseline;
use super::echo::{Echo, SendSend, WriteSend, WriteWrite};
use super::farm::Farm;
use super::verbs_only::VerbsOnly;

/// A baseline.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, ValueEnum)]
#[serde(rename_all = "kebab-case")]
pub enum BaselineName {
    /// Pilaf whose GETs are requests too.
    PilafVo,
    /// FaRM as HERD's authors emulate it, values in the hash table.
    FarmEm,
    /// The same, values out of the table.
    FarmEmVar,
    /// Requests and replies without a store, both by SEND.
    EchoSendSend,
    /// The same, both by WRITE.
    EchoWriteWrite,
    /// The same, requests by WRITE and replies by SEND.
    EchoWriteSend,
}

impl BaselineName {
    /// The name on the command line and in results.
    pub fn as_str(self) -> &'static str {
        match self {
            BaselineName::PilafVo => "pilaf-vo",
            BaselineName::FarmEm => "farm-em",
            BaselineName::FarmEmVar => "farm-em-var",
            BaselineName::EchoSendSend => "echo-send-send",
            BaselineName::EchoWriteWrite => "echo-write-write",
            BaselineName::EchoWriteSend => "echo-write-send",
        }
    }

    /// Its capabilities.
    pub fn capabilities(self) -> Capabilities {
        Capabilities {
            name: self.as_str(),
            serves: true,
            has_one_server: self == BaselineName::PilafVo,
            lets_clients_be_apart: self != BaselineName::PilafVo,
            packs_operations: false,
            keeps_previous_versions: false,
            evicts: false,
        }
    }
}

/// Code that works on any baseline.
pub trait Visit {
    /// Its result.
    type Output;

    /// Runs on the baseline `B`.
    fn visit<B: Baseline>(self) -> Self::Output;
}

/// Runs on the baseline of a name.
pub fn visit<V: Visit>(baseline: BaselineName, visit: V) -> V::Output {
    match baseline {
        BaselineName::PilafVo => visit.visit::<VerbsOnly>(),
        BaselineName::FarmEm => visit.visit::<Farm<true>>(),
        BaselineName::FarmEmVar => visit.visit::<Farm<false>>(),
        BaselineName::EchoSendSend => visit.visit::<Echo<SendSend>>(),
        BaselineName::EchoWriteWrite => visit.visit::<Echo<WriteWrite>>(),
        BaselineName::EchoWriteSend => visit.visit::<Echo<WriteSend>>(),
    }
}
