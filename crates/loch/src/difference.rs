//! In what two layouts may differ, for people.

use loch_engines::nessie::geometry::{Geometry, Shape};
use loch_engines::region::TableEntry;

use crate::engine::name_of;
use crate::served::direct::Partition;

/// A field in which a region and a configuration may differ.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Difference {
    pub field: String,
    pub have: String,
    pub want: String,
}

impl Difference {
    /// A field that is a number: its name, what it is and what it should be.
    pub fn of_numbers((field, have, want): (&str, u64, u64)) -> Self {
        Self { field: field.into(), have: have.to_string(), want: want.to_string() }
    }
}

/// Everything in which two declarations of a table may differ.
pub(crate) fn table_facts(have: &TableEntry, want: &TableEntry) -> Vec<Difference> {
    let name = want.name().unwrap_or_default();
    let fact = |field: &str, have: String, want: String| Difference {
        field: format!("table {name:?}: {field}"),
        have,
        want,
    };
    let names = Difference {
        field: "table name".into(),
        have: format!("{:?}", have.name().unwrap_or_default()),
        want: format!("{name:?}"),
    };
    let (h, w) = (&have.geometry, &want.geometry);
    // Of engines without a geometry of nessie's both say nothing.
    let shown =
        |g: &Geometry, show: fn(Shape) -> String| g.validate().map(show).unwrap_or_default();
    let options = |g| shown(g, |shape| format!("{:?}", shape.options));
    let protocol = |g| shown(g, |shape| format!("{:?}", shape.protocol));
    let words = |entry: &TableEntry| format!("{:?}", entry.words);
    // As much as it was given, to within what is lost to alignment.
    let memory = |entry: &TableEntry| format!("about {} MiB", (entry.bytes + (1 << 19)) >> 20);
    let engine = |entry: &TableEntry| {
        entry.engine().map_or_else(|| entry.engine.to_string(), |id| name_of(id).into())
    };
    let (h_service, w_service) = (&have.service, &want.service);
    let number = |field, have: u64, want: u64| fact(field, have.to_string(), want.to_string());
    let mut facts = vec![
        names,
        fact("engine", engine(have), engine(want)),
        number("workers", h_service.workers.into(), w_service.workers.into()),
        number("window", h_service.window.into(), w_service.window.into()),
        number(
            "sessions",
            h_service.sessions_per_node.saturating_sub(1).into(),
            w_service.sessions_per_node.saturating_sub(1).into(),
        ),
        number(
            "bytes of a request",
            h_service.request_bytes.into(),
            w_service.request_bytes.into(),
        ),
        number("bytes of a reply", h_service.reply_bytes.into(), w_service.reply_bytes.into()),
        number("replies", h_service.replies.into(), w_service.replies.into()),
        number("ways", h.ways as u64, w.ways as u64),
        number("bucket_slots", h.bucket_slots as u64, w.bucket_slots as u64),
        fact("protocol", protocol(h), protocol(w)),
        fact("options", options(h), options(w)),
        fact("memory", memory(have), memory(want)),
        number("index_slots", h.index_slots(), w.index_slots()),
        number("index shards", h.shards_per_node as u64, w.shards_per_node as u64),
        number("data bytes a node", h.data_bytes(), w.data_bytes()),
        number("value_max", h.value_bytes_max, w.value_bytes_max),
        number("nodes", h.nodes as u64, w.nodes as u64),
        number("hash seed", h.seed, w.seed),
    ];
    match (Partition::facts_of(have), Partition::facts_of(want)) {
        (Some(have), Some(want)) => {
            let both = have.into_iter().zip(want);
            facts.extend(both.map(|((field, have), (_, want))| fact(field, have, want)));
        }
        // Mode, memory and index of engines that have no geometry of nessie's.
        _ => facts.push(fact("mode, memory or index_slots", words(have), words(want))),
    }
    facts
}
