//! `loch check`.

use anyhow::{Context, Result};
use clap::Args;
use loch::CheckReport;
use serde::Serialize;

use super::stats::deleted_region;
use super::target::{Access, ClusterArgs};
use crate::outcome::{Answer, tell};
use crate::output;

const EXAMPLES: &str = "\
Examples:
  loch check                     every table; may run beside clients at work
  loch check --leaks             memory that no key owns counts as well
  loch check --json | jq .ok

Entries that no slot shows belong to operations under way, or were left by clients that died; the
node frees the latter within seconds. Exit code 1: something is broken, and standard output lists it.";

/// Walk every table and verify its invariants
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub struct CheckArgs {
    #[command(flatten)]
    cluster: ClusterArgs,
    /// Only this table
    #[arg(long, value_name = "NAME")]
    table: Option<String>,
    /// Exit with code 1 also if there are entries that no slot shows
    #[arg(long)]
    leaks: bool,
    /// Print one JSON object
    #[arg(long)]
    json: bool,
}

/// The findings, as printed in JSON.
#[derive(Debug, Serialize)]
struct Checked {
    /// Whether the exit code is 0.
    ok: bool,
    tables: Vec<TableChecked>,
    /// Nodes whose region files were deleted, in words.
    deleted: Vec<String>,
}

#[derive(Debug, Serialize)]
struct TableChecked {
    table: String,
    #[serde(flatten)]
    report: CheckReport,
}

/// Runs `loch check`.
pub fn run(args: &CheckArgs) -> Result<Answer> {
    // For writing, though nothing is written: only a session keeps memory from being reused while
    // the check looks at it.
    let cluster = args.cluster.connect(Access::Write)?;
    let names = match &args.table {
        Some(name) => vec![name.clone()],
        None => cluster.tables(),
    };
    let mut tables = Vec::new();
    for name in names {
        let checking = || format!("cannot check table {name:?}");
        let table = cluster.table(&name).with_context(checking)?;
        let report = table.check().with_context(checking)?;
        tables.push(TableChecked { table: name, report });
    }
    let deleted: Vec<String> = cluster.info().nodes.iter().filter_map(deleted_region).collect();
    let ok = deleted.is_empty() && tables.iter().all(|t| t.is_good(args.leaks));
    let checked = Checked { ok, tables, deleted };
    if args.json {
        output::json(&checked)?;
    } else {
        output::line(&checked.in_words())?;
    }
    if ok {
        return Ok(Answer::Done);
    }
    tell("check", &checked.verdict());
    Ok(Answer::No)
}

impl TableChecked {
    fn is_good(&self, leaks_count: bool) -> bool {
        self.report.broken.is_empty() && !(leaks_count && self.report.unshown > 0)
    }

    fn in_words(&self) -> String {
        let CheckReport { slots, values, tentative, moving, unshown, unshown_bytes, broken } =
            &self.report;
        let mut text = format!(
            "table {:?}: {slots} slots, {values} values, {tentative} tentative, {moving} moving, \
             {unshown} unshown entries ({unshown_bytes} bytes), {} broken",
            self.table,
            broken.len()
        );
        for broken in broken {
            text.push_str("\n  ");
            text.push_str(broken);
        }
        text
    }
}

impl Checked {
    fn in_words(&self) -> String {
        let tables = self.tables.iter().map(TableChecked::in_words);
        tables.chain(self.deleted.iter().cloned()).collect::<Vec<_>>().join("\n")
    }

    fn verdict(&self) -> String {
        let broken: usize = self.tables.iter().map(|t| t.report.broken.len()).sum();
        let unshown: u64 = self.tables.iter().map(|t| t.report.unshown).sum();
        let deleted = match self.deleted.len() {
            0 => String::new(),
            count => format!(", {count} deleted region files"),
        };
        format!("{broken} broken invariants, {unshown} entries that no slot shows{deleted}")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn leaks_count_when_they_are_asked_for_and_broken_invariants_always() {
        let table = |unshown, broken: &[&str]| {
            let broken = broken.iter().map(ToString::to_string).collect();
            let report = CheckReport { unshown, broken, ..CheckReport::default() };
            TableChecked { table: "t".into(), report }
        };
        assert!(table(0, &[]).is_good(true));
        assert!(table(3, &[]).is_good(false));
        assert!(!table(3, &[]).is_good(true));
        assert!(!table(0, &["I1"]).is_good(false));
        assert!(table(0, &["I1: two slots"]).in_words().ends_with("\n  I1: two slots"));
    }
}
