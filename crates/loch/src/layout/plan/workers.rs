//! The session slots of workers.

use loch_engines::region::TableEntry;
use loch_engines::registry::EngineId;

use crate::limits::WORKERS_MAX;
use crate::{Error, Result, TableConfig};

/// The number of session slots that a table's workers have on each node.
pub(crate) fn worker_sessions_of(table: &TableEntry) -> u64 {
    let has_some = EngineId::of(table).is_some_and(|engine| engine.needs().sessions);
    if has_some { table.params.service.workers.into() } else { 0 }
}

/// The number of session slots that the workers of planned tables have on a node.
///
/// # Errors
/// [`Error::Config`] if a table cannot have as many workers.
pub(super) fn worker_sessions(tables: &[TableConfig]) -> Result<u32> {
    let mut sessions = 0;
    for table in tables {
        let workers = table.workers.unwrap_or(1);
        if workers == 0 || workers > WORKERS_MAX {
            let problem = format!("workers is {workers}, it may be 1 to {WORKERS_MAX}");
            return Err(Error::config(format!("table {:?}", table.name), problem));
        }
        if table.engine.engine().needs().sessions {
            sessions += u32::from(workers);
        }
    }
    Ok(sessions)
}
