//! Scans: the keys of a table, page by page.

use std::fmt;
use std::str::FromStr;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use loch_engines::limits::NODES_MAX;
use loch_engines::scan::{Cursor, Key};

use crate::client::scanning::ScanPlace;
use crate::{Result, Table, Version};

/// A key that a scan has found, and facts of its value.
///
/// Another client may have changed the value, or deleted it, since the scan looked at it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ScannedKey {
    /// The key.
    pub key: Vec<u8>,
    /// Bytes of the value.
    pub value_bytes: u64,
    /// The version of the value. All are alike in a table of `kv-direct` without versions.
    pub version: Version,
    /// The time at which the value expires, if it does.
    pub expires_at: Option<SystemTime>,
}

/// The place where a scan goes on. It can be kept as text, and used by another process.
///
/// A cursor means something only to the table that has given it. With one that is not its own, or
/// from before the table was made anew, a scan begins from the start.
///
/// ```
/// # use loch::{Cluster, EmbeddedConfig, ScanCursor};
/// # let table = Cluster::embedded(EmbeddedConfig::default())?.table("default")?;
/// let page = table.scan_page(&ScanCursor::default(), b"")?;
/// if let Some(next) = page.next {
///     let kept = next.to_string();
///     let page = table.scan_page(&kept.parse()?, b"")?;
/// }
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ScanCursor(pub(crate) ScanPlace);

/// The text is not that of a [`ScanCursor`].
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{text:?} is no cursor: use one that a scan has printed, or none to begin")]
pub struct ParseScanCursorError {
    text: String,
}

/// Some keys of a table, as [`Table::scan_page`] returns them.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ScanPage {
    /// The keys, in no order. There may be none although the scan has not come to its end.
    pub keys: Vec<ScannedKey>,
    /// Where the scan goes on; `None` if it has come to its end.
    pub next: Option<ScanCursor>,
}

/// A scan of a table: an iterator over its keys. See [`Table::scan`].
#[must_use = "a scan looks at nothing before it is asked for a key"]
pub struct Scan<'a> {
    table: &'a Table,
    prefix: Vec<u8>,
    /// The page whose keys are handed out.
    page: ScanPage,
}

impl fmt::Display for ScanCursor {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let ScanPlace { memory, worker, at: Cursor { place, noted, waited } } = &self.0;
        write!(f, "{memory}.{worker}.{place}.{waited}")?;
        noted.iter().try_for_each(|word| write!(f, ".{word}"))
    }
}

impl FromStr for ScanCursor {
    type Err = ParseScanCursorError;

    fn from_str(text: &str) -> std::result::Result<Self, ParseScanCursorError> {
        let wrong = || ParseScanCursorError { text: text.chars().take(100).collect() };
        let mut parts = text.split('.');
        let mut next = || parts.next()?.parse::<u64>().ok();
        let [memory, worker, place, waited] = [next(), next(), next(), next()];
        let small = |number: Option<u64>| number.and_then(|number| u32::try_from(number).ok());
        let (Some(memory), Some(worker), Some(place), Some(waited)) =
            (memory, small(worker), place, small(waited))
        else {
            return Err(wrong());
        };
        let noted: std::result::Result<Vec<u64>, _> = parts.map(str::parse).collect();
        match noted {
            Ok(noted) if noted.len() <= NODES_MAX => {
                Ok(Self(ScanPlace { memory, worker, at: Cursor { place, noted, waited } }))
            }
            _ => Err(wrong()),
        }
    }
}

impl From<Key> for ScannedKey {
    fn from(found: Key) -> Self {
        let Key { key, value_bytes, version, expires_at_ms } = found;
        let at = expires_at_ms.map(Duration::from_millis);
        let expires_at = at.and_then(|at| UNIX_EPOCH.checked_add(at));
        Self { key, value_bytes, version, expires_at }
    }
}

impl<'a> Scan<'a> {
    pub(crate) fn new(table: &'a Table) -> Self {
        let next = Some(ScanCursor::default());
        Self { table, prefix: Vec::new(), page: ScanPage { keys: Vec::new(), next } }
    }

    /// Finds only keys that begin with these bytes. The scan looks at all others all the same.
    pub fn prefix(self, prefix: &[u8]) -> Self {
        Self { prefix: prefix.to_vec(), ..self }
    }

    /// Goes on where another scan was.
    pub fn from(self, cursor: ScanCursor) -> Self {
        Self { page: ScanPage { keys: Vec::new(), next: Some(cursor) }, ..self }
    }

    /// The place where another scan can go on, behind the keys that were read already; `None` at
    /// the end. Keys are read in pages, so take those of [`Scan::rest`] first.
    pub fn cursor(&self) -> Option<&ScanCursor> {
        self.page.next.as_ref()
    }

    /// The keys that were read and not handed out yet.
    pub fn rest(&mut self) -> Vec<ScannedKey> {
        std::mem::take(&mut self.page.keys)
    }
}

impl Iterator for Scan<'_> {
    type Item = Result<ScannedKey>;

    /// The next key. After an error the scan can go on: the next call tries the same page again.
    fn next(&mut self) -> Option<Result<ScannedKey>> {
        loop {
            if let Some(key) = self.page.keys.pop() {
                return Some(Ok(key));
            }
            match self.table.scan_page(self.page.next.as_ref()?, &self.prefix) {
                Ok(page) => self.page = page,
                Err(error) => return Some(Err(error)),
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::{Cluster, EmbeddedConfig};

    proptest! {
        #[test]
        fn a_cursor_survives_as_text(
            memory: u64,
            worker: u32,
            place: u64,
            waited: u32,
            noted in prop::collection::vec(any::<u64>(), 0..=3),
        ) {
            let at = Cursor { place, noted, waited };
            let cursor = ScanCursor(ScanPlace { memory, worker, at });
            prop_assert_eq!(cursor.to_string().parse(), Ok(cursor));
        }

        #[test]
        fn no_text_makes_the_parser_panic(text: String) {
            let _ = text.parse::<ScanCursor>();
        }
    }

    #[test]
    fn text_that_is_no_cursor_is_quoted() {
        for text in
            ["", "1", "1.2.3", "0.1.2.x", "0.-1.2.3", "0.1.2.3.", "0.5000000000.0.0", "0.1.2.3 "]
        {
            let error = text.parse::<ScanCursor>().unwrap_err().to_string();
            assert!(error.contains(&format!("{text:?}")), "{error}");
        }
        assert!(vec!["1"; NODES_MAX + 5].join(".").parse::<ScanCursor>().is_err());
    }

    /// A scan that went on there would miss the keys before that place.
    #[test]
    fn a_cursor_of_other_memory_or_of_another_table_is_the_beginning() {
        let table =
            |name: &str| crate::TableConfig { name: name.into(), ..crate::TableConfig::default() };
        let config =
            || EmbeddedConfig { tables: vec![table("a"), table("b")], ..Default::default() };
        let clusters = [config(), config()].map(|config| Cluster::embedded(config).unwrap());
        let names: Vec<Vec<u8>> = (0..3_000u32).map(|n| n.to_string().into()).collect();
        let pairs: Vec<_> = names.iter().map(|name| (name, b"v")).collect();
        let tables = [(0, "a"), (0, "b"), (1, "a")].map(|(cluster, name)| {
            let table = clusters[cluster].table(name).unwrap();
            table.put_many(&pairs).unwrap();
            table
        });
        let first = tables[0].scan_page(&ScanCursor::default(), b"").unwrap();
        let place: ScanCursor = first.next.unwrap().to_string().parse().unwrap();
        let from = |table: &Table| table.scan().from(place.clone()).count();
        assert_eq!(from(&tables[0]), names.len() - first.keys.len());
        assert_eq!([from(&tables[1]), from(&tables[2])], [names.len(); 2]);
    }

    #[test]
    fn a_scan_goes_on_where_another_was() {
        let cluster = Cluster::embedded(EmbeddedConfig::default()).unwrap();
        let table = cluster.table("default").unwrap();
        let names: Vec<Vec<u8>> = (0..5_000u32).map(|n| n.to_string().into()).collect();
        let pairs: Vec<_> = names.iter().map(|name| (name, b"v")).collect();
        table.put_many(&pairs).unwrap();
        let mut scan = table.scan();
        let mut found: Vec<Vec<u8>> = scan.by_ref().take(700).map(|key| key.unwrap().key).collect();
        found.extend(scan.rest().into_iter().map(|key| key.key));
        let kept = scan.cursor().unwrap().to_string();
        assert!(found.len() < 4_000, "{}", found.len());
        let rest = table.scan().from(kept.parse().unwrap());
        found.extend(rest.map(|key| key.unwrap().key));
        found.sort_unstable();
        let mut names = names;
        names.sort_unstable();
        assert_eq!(found, names, "nothing moves here, so nothing comes twice");
    }
}
