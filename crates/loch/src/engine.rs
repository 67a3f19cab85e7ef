//! The engines by their names, and which options of a table each of them has.

use loch_engines::region::EngineId;

use crate::{Error, TableConfig, TableProtocol};

/// An engine, as a configuration names it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Engine {
    Nessie,
    NessieServer,
    /// `plus`: with the optimisations that the paper's version lacks, as the table declares them.
    NessieHybrid {
        plus: bool,
    },
    Herd,
    Pilaf,
    KvDirect,
}

const ALL: [Engine; 7] = [
    Engine::Nessie,
    Engine::NessieServer,
    Engine::NessieHybrid { plus: false },
    Engine::NessieHybrid { plus: true },
    Engine::Herd,
    Engine::Pilaf,
    Engine::KvDirect,
];

/// Who knows this name from `loch bench` is told how to declare such a table.
const BENCHS_NAME_OF_PUBLISHED: &str = "nessie-published";

/// The name of an engine of the directory.
pub(crate) fn name_of(engine: EngineId) -> &'static str {
    match engine {
        EngineId::Nessie => Engine::Nessie.name(),
        EngineId::NessieServer => Engine::NessieServer.name(),
        EngineId::NessieHybrid => Engine::NessieHybrid { plus: false }.name(),
        EngineId::Herd => Engine::Herd.name(),
        EngineId::Pilaf => Engine::Pilaf.name(),
        EngineId::KvDirect => Engine::KvDirect.name(),
    }
}

impl Engine {
    /// The engine that a table is declared for.
    ///
    /// # Errors
    /// [`Error::NoSuchEngine`]; [`Error::Config`] for the name that `loch bench` has for a protocol.
    pub fn of(table: &TableConfig) -> Result<Self, Error> {
        if table.engine == BENCHS_NAME_OF_PUBLISHED {
            let problem = "engine nessie-published is for `loch bench`; a table has engine = \"nessie\" \
                           and protocol = \"published\"";
            return Err(Error::config(format!("table {:?}", table.name), problem));
        }
        let named = ALL.into_iter().find(|engine| engine.name() == table.engine);
        named.ok_or_else(|| Error::NoSuchEngine {
            table: table.name.clone(),
            engine: table.engine.clone(),
            have: ALL.map(|engine| engine.name().to_owned()).to_vec(),
        })
    }

    pub fn name(self) -> &'static str {
        match self {
            Self::Nessie => "nessie",
            Self::NessieServer => "nessie-server",
            Self::NessieHybrid { plus: false } => "nessie-hybrid",
            Self::NessieHybrid { plus: true } => "nessie-hybrid+",
            Self::Herd => "herd",
            Self::Pilaf => "pilaf",
            Self::KvDirect => "kv-direct",
        }
    }

    pub fn id(self) -> EngineId {
        match self {
            Self::Nessie => EngineId::Nessie,
            Self::NessieServer => EngineId::NessieServer,
            Self::NessieHybrid { .. } => EngineId::NessieHybrid,
            Self::Herd => EngineId::Herd,
            Self::Pilaf => EngineId::Pilaf,
            Self::KvDirect => EngineId::KvDirect,
        }
    }

    /// Refuses options that are not this engine's: what is said in vain is a mistake.
    ///
    /// # Errors
    /// [`Error::Config`] names table, option, and the engines that have it.
    pub fn check_options(self, table: &TableConfig) -> Result<(), Error> {
        let plain = TableConfig::default();
        let (laid_out, read_by_clients) = (self.id().has_nessie_layout(), self.has_nessie_gets());
        let (nessies, readers) = ("nessie, nessie-server, nessie-hybrid", "nessie, nessie-hybrid+");
        let served = "nessie-server, nessie-hybrid, herd, pilaf, kv-direct";
        let others = "nessie, nessie-server, nessie-hybrid, herd, pilaf";
        let (is_nessie, is_direct) = (self == Self::Nessie, self == Self::KvDirect);
        let direct = "kv-direct";
        let options = [
            ("protocol", "nessie", is_nessie, table.protocol != plain.protocol),
            ("previous_versions", "nessie", is_nessie, table.previous_versions.is_some()),
            ("ways", nessies, laid_out, table.ways != plain.ways),
            ("bucket_slots", nessies, laid_out, table.bucket_slots != plain.bucket_slots),
            ("filter_bits", nessies, laid_out, table.filter_bits != plain.filter_bits),
            ("cache", readers, read_by_clients, table.cache.is_some()),
            ("multi_read", nessies, laid_out, table.multi_read != plain.multi_read),
            ("batched_reads", nessies, laid_out, table.batched_reads.is_some()),
            ("checksums", nessies, laid_out, table.checksums),
            ("workers", served, self.id().is_served(), table.workers.is_some()),
            ("window", served, self.id().is_served(), table.window.is_some()),
            ("sessions", served, self.id().is_served(), table.sessions.is_some()),
            ("mode", "herd", self == Self::Herd, table.mode.is_some()),
            ("requests", "herd", self == Self::Herd, table.requests.is_some()),
            ("log", "pilaf", self == Self::Pilaf, table.log.is_some()),
            ("sync", "pilaf", self == Self::Pilaf, table.sync),
            ("index_slots", others, !is_direct, table.index_slots.is_some()),
            ("index_ratio", direct, is_direct, table.index_ratio.is_some()),
            ("inline_bytes", direct, is_direct, table.inline_bytes.is_some()),
            ("tuned_for", direct, is_direct, table.tuned_for.is_some()),
            ("functions", direct, is_direct, !table.functions.is_empty()),
            ("key_bytes", direct, is_direct, table.key_bytes.is_some()),
            ("versions", direct, is_direct, table.versions.is_some()),
            ("packet_bytes", direct, is_direct, table.packet_bytes.is_some()),
            ("out_of_order", direct, is_direct, table.out_of_order.is_some()),
        ];
        let vain = options.into_iter().find(|(_, _, has_it, said)| *said && !has_it);
        if let Some((option, engines, ..)) = vain {
            let problem = format!("{option} is for {engines}; this table's is {}", self.name());
            return Err(Error::config(format!("table {:?}", table.name), problem));
        }
        if table.previous_versions.is_some() && table.protocol != TableProtocol::Published {
            let problem =
                "previous_versions is for protocol \"published\"; this table's is \"loch\"";
            return Err(Error::config(format!("table {:?}", table.name), problem));
        }
        if table.sync && table.log.is_none() {
            let problem = "sync needs a log: name its folder (log)";
            return Err(Error::config(format!("table {:?}", table.name), problem));
        }
        Ok(())
    }

    /// Whether clients GET as those of nessie do, with the table's options.
    fn has_nessie_gets(self) -> bool {
        matches!(self, Self::Nessie | Self::NessieHybrid { plus: true })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_option_of_another_engine_is_refused_by_its_name() {
        let of = |engine: &str, change: fn(&mut TableConfig)| {
            let mut table = TableConfig { engine: engine.into(), ..TableConfig::default() };
            change(&mut table);
            Engine::of(&table).unwrap().check_options(&table).map_err(|e| e.to_string())
        };
        for (engine, change, words) in [
            ("herd", (|t| t.ways = 2) as fn(&mut TableConfig), "ways is for nessie"),
            ("nessie", |t| t.workers = Some(2), "workers is for nessie-server"),
            ("nessie-server", |t| t.log = Some("/l".into()), "log is for pilaf"),
            ("nessie-hybrid", |t| t.cache = Some(true), "cache is for nessie, nessie-hybrid+"),
            ("pilaf", |t| t.mode = Some(crate::TableMode::Store), "mode is for herd"),
            ("pilaf", |t| t.sync = true, "sync needs a log"),
            ("herd", |t| t.protocol = TableProtocol::Published, "protocol is for nessie;"),
            ("pilaf", |t| t.previous_versions = Some(true), "previous_versions is for nessie;"),
            ("nessie", |t| t.previous_versions = Some(true), "is for protocol \"published\""),
            (
                "herd",
                |t| t.index_ratio = Some(0.5),
                "index_ratio is for kv-direct; this table's is herd",
            ),
            ("kv-direct", |t| t.index_slots = Some(64), "index_slots is for nessie, nessie-server"),
            ("kv-direct", |t| t.mode = Some(crate::TableMode::Cache), "mode is for herd"),
        ] {
            let error = of(engine, change).unwrap_err();
            assert!(error.contains(words) && error.contains("default"), "{words}: {error}");
        }
        for engine in ALL {
            assert_eq!(of(engine.name(), |_| ()), Ok(()));
        }
    }
}
