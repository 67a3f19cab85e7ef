//! The differences of two layouts, in words.

use loch_engines::region::TableEntry;
use loch_engines::registry::EngineId;

/// A field in which a region and a configuration may differ.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Difference {
    pub field: String,
    pub have: String,
    pub want: String,
}

impl Difference {
    /// A numeric field: its name, its value in the region and in the configuration.
    pub fn of_numbers((field, have, want): (&str, u64, u64)) -> Self {
        Self { field: field.into(), have: have.to_string(), want: want.to_string() }
    }
}

/// All fields in which two declarations of a table may differ.
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
    // Alignment takes some of the memory that the table was given.
    let memory = |entry: &TableEntry| format!("about {} MiB", (entry.bytes + (1 << 19)) >> 20);
    let engine = |entry: &TableEntry| {
        EngineId::of(entry).map_or_else(|| entry.engine.to_string(), |id| id.name().into())
    };
    let (h, w) = (&have.params, &want.params);
    let (h_service, w_service) = (&h.service, &w.service);
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
        fact("memory", memory(have), memory(want)),
    ];
    let own = |entry| EngineId::of(entry).map(|engine| engine.facts(&entry.params));
    // Tables of different engines have no other fields in common.
    let both = own(have).into_iter().flatten().zip(own(want).into_iter().flatten());
    facts.extend(both.map(|((field, have), (_, want))| fact(field, have, want)));
    facts.push(number("value_max", h.value_bytes_max, w.value_bytes_max));
    // An engine may list some of its facts, or none.
    let options = |words: &_| format!("{words:?}");
    facts.push(fact("options of its engine", options(&h.words), options(&w.words)));
    facts.extend([
        number(
            "bytes of a request",
            h_service.request_bytes.into(),
            w_service.request_bytes.into(),
        ),
        number("bytes of a reply", h_service.reply_bytes.into(), w_service.reply_bytes.into()),
        number("replies", h_service.replies.into(), w_service.replies.into()),
        number("nodes", h.nodes.into(), w.nodes.into()),
        number("hash seed", h.seed, w.seed),
    ]);
    facts
}
