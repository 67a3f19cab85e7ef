//! Recovery: reads a log after its writer has died.
//!
//! A recovery reads a whole snapshot, and then every record after it. The log ends where the first
//! record is missing or damaged, if a crash can explain that: **a torn tail** is cut off. A crash
//! cannot explain it if that record is known to have been durable, because a later record says so
//! (each record says which records were durable when it was made), or if a snapshot relies on it.
//! Then the log is **damaged**, which is an error that names the place. A **missing segment** is
//! damage too: records are numbered, and the last record of a full segment names the next segment.
//!
//! A recovery cannot detect all damage: if the very last records are damaged, those of the last
//! sync and after, they look like a torn tail.
//!
//! # Readable is not durable
//! The writer may have died because a sync failed. Pages that never reached the disk can then be
//! read like any others, until the host loses its power; another sync of them succeeds and does
//! nothing. A disk may also refuse pages when no process is left to learn of it. So a recovery
//! counts as durable only the records that its predecessor must have synced:
//! 1. **A segment of the log after which something was appended** (the next segment has more than
//!    its header). The last segment with records is written again into a segment of this process's
//!    own, which is synced before the old one is removed.
//! 2. **A snapshot that has replaced something, part of which is gone.** If the log from before the
//!    snapshot is still there, the recovery begins with that log and drops the snapshot.
//!
//! A crash in the middle of this leaves two segments with the same first record. No record is
//! appended to the new one before the old one is gone, so the segment with more of the records has
//! all records that any client knows of.

use std::collections::BTreeMap;

use super::append::{Log, Resume};
use super::record::{self, Change, HEADER_BYTES, Header, Kind, Op, RECORD_BYTES, Record};
use super::storage::Storage;
use super::{LogError, Policy};
use crate::planted::{self, Bug};

/// The result of a recovery.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Recovered {
    /// Keys that came from the snapshot.
    pub from_snapshot: u64,
    /// Records of the log that were replayed.
    pub replayed: u64,
    /// The LSN of the last record.
    pub last: u64,
    /// Bytes of a torn tail that were cut off.
    pub torn_bytes: u64,
    /// Versions below this number may have been given away.
    pub leased: u64,
}

/// A change that the log reports to its reader, in order.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Told<'a> {
    /// The key.
    pub key: &'a [u8],
    /// The key's new state.
    pub change: Change<'a>,
}

/// A segment that was read.
struct Segment {
    header: Header,
    bytes: Vec<u8>,
}

impl Segment {
    fn is_empty(&self) -> bool {
        self.bytes.len() <= HEADER_BYTES
    }
}

/// The end of a log.
struct Ending {
    /// The length to which the last segment with records is cut, if it is cut.
    cut: Option<usize>,
    /// Segments that have to be removed.
    superfluous: Vec<u64>,
}

/// The part of a log that is written again.
struct Renewed {
    /// The LSN of the part's first record.
    first: u64,
    /// The part's records, as bytes of their new segment.
    records: Vec<u8>,
    /// The segments that the part replaces.
    replaced: Vec<u64>,
}

/// A complete snapshot.
#[derive(Clone, Copy, Default)]
struct Base {
    /// The snapshot makes the records up to this LSN superfluous.
    lsn: u64,
    /// The snapshot is valid only together with the log up to this LSN.
    needs: u64,
}

/// The end of a segment's records.
enum End {
    /// The records end with the segment's bytes.
    Whole,
    /// The bytes at this offset are not a valid record.
    Torn(usize),
}

/// Reads the log of `table` from `storage`, reports its changes to `each`, and returns the log to
/// be appended to. Storage without any segment is an empty log.
///
/// # Errors
/// [`LogError`], and the errors that `each` returns. Unless the storage itself failed it is
/// unchanged then.
pub fn recover<S, E>(
    mut storage: S,
    table: u64,
    policy: Policy,
    mut each: impl FnMut(Told<'_>) -> Result<(), E>,
) -> Result<(Log<S>, Recovered), E>
where
    S: Storage,
    E: From<LogError>,
{
    let mut found = Recovered::default();
    let (segments, unmade, next_segment) = load(&mut storage, table)?;
    let (snapshots, logs): (Vec<_>, Vec<_>) =
        segments.into_iter().partition(|s| matches!(s.header.kind, Kind::Snapshot { .. }));
    let (mut logs, others) = in_order(logs);
    if logs.is_empty() && !snapshots.is_empty() {
        return Err(LogError::Missing { lsn: 1, found: 0 }.into());
    }
    let first = logs.first().map(|log| log.header.lsn);
    let base = tell_snapshot(&snapshots, first, &mut found, &mut each)?;
    let ending = tell_logs(&logs, base, &mut found, &mut each)?;
    logs.retain(|log| !ending.superfluous.contains(&log.header.segment));
    let mut superfluous = [unmade, others, ending.superfluous].concat();
    // The recovery did not begin with the other snapshots, so they are of no use any more.
    let others = snapshots.iter().filter(|part| part.header.lsn != base.lsn);
    superfluous.extend(others.map(|part| part.header.segment));
    let renewed = renew(&logs, ending.cut, next_segment, &mut found);
    superfluous.extend(&renewed.replaced);
    let bytes = |segments: &[Segment], counts: &dyn Fn(&Segment) -> bool| {
        let counted = segments.iter().filter(|segment| counts(segment));
        counted.map(|segment| segment.bytes.len() as u64).sum::<u64>()
    };
    let is_kept = |log: &Segment| !renewed.replaced.contains(&log.header.segment);
    let at = Resume {
        table,
        segment: next_segment,
        first: renewed.first,
        last: found.last,
        grown_bytes: bytes(&logs, &|log| log.header.lsn > base.lsn && is_kept(log))
            + renewed.records.len() as u64,
        snapshot_bytes: bytes(&snapshots, &|part| part.header.lsn == base.lsn),
        records: renewed.records,
    };
    let mut log = Log::resume(storage, policy, at)?;
    // The segments are removed only now, the oldest first: the records with which the log goes on
    // are durable.
    superfluous.sort_unstable();
    log.store(|storage| superfluous.iter().try_for_each(|segment| storage.remove(*segment)))?;
    Ok((log, found))
}

/// The segments of the log in the order of their records, and the numbers of the segments that are
/// dropped. Of two segments with the same first record, one is an unfinished copy by a recovery:
/// the one with more of the records stays, or the old one if both have equally many.
fn in_order(mut logs: Vec<Segment>) -> (Vec<Segment>, Vec<u64>) {
    logs.sort_by_key(|log| (log.header.lsn, log.header.segment));
    let (mut kept, mut others): (Vec<Segment>, _) = (Vec::new(), Vec::new());
    for log in logs {
        match kept.last_mut().filter(|last| last.header.lsn == log.header.lsn) {
            None => kept.push(log),
            Some(last) if records(&log) > records(last) => {
                others.push(std::mem::replace(last, log).header.segment);
            }
            Some(_) => others.push(log.header.segment),
        }
    }
    (kept, others)
}

/// The number of records that a segment of the log has before it is torn.
fn records(log: &Segment) -> u64 {
    let mut count = 0;
    let walked = walk(log, |record| {
        let follows = record.lsn == log.header.lsn + count;
        count += u64::from(follows);
        Ok::<bool, LogError>(follows)
    });
    walked.map_or(0, |_| count)
}

/// The last segment with records, up to where it is cut, as segment `into`. It also replaces the
/// empty segment after it.
fn renew(logs: &[Segment], cut: Option<usize>, into: u64, found: &mut Recovered) -> Renewed {
    let number = |log: &Segment| log.header.segment;
    let Some(at) = logs.iter().rposition(|log| !log.is_empty()) else {
        let replaced = logs.iter().map(number).collect();
        return Renewed { first: found.last + 1, records: Vec::new(), replaced };
    };
    let old = &logs[at];
    let end = cut.unwrap_or(old.bytes.len());
    found.torn_bytes = (old.bytes.len() - end) as u64;
    if planted::is(Bug::PageCacheTrusted) && cut.is_none() {
        let replaced = logs[at + 1..].iter().map(number).collect();
        return Renewed { first: found.last + 1, records: Vec::new(), replaced };
    }
    let (mut next, mut records) = (HEADER_BYTES, Vec::with_capacity(end - HEADER_BYTES));
    while next < end {
        let read = record::read(number(old), &old.bytes[next..]);
        let (record, len) = read.expect("it was read when it was told");
        // The segment that a seal names is dropped with the seal. The seal's LSN is counted and
        // stays in use.
        let op = match record.op {
            Op::Seal { .. } => Op::Lease { end: 0 },
            op => op,
        };
        record::write(into, &Record { op, ..record }, &mut records);
        next += len;
    }
    let replaced = logs[at..].iter().map(number).collect();
    Renewed { first: old.header.lsn, records, replaced }
}

/// All segments with a header, in order; the unfinished segments; and the number of the next
/// segment.
fn load<S: Storage>(
    storage: &mut S,
    table: u64,
) -> Result<(Vec<Segment>, Vec<u64>, u64), LogError> {
    let numbers = storage.segments().map_err(LogError::Storage)?;
    let next = numbers.last().map_or(1, |last| last + 1);
    let (mut segments, mut unmade) = (Vec::new(), Vec::new());
    for segment in &numbers {
        let bytes = storage.read(*segment).map_err(LogError::Storage)?;
        match Header::read(&bytes, *segment) {
            Some(header) if header.table == table => segments.push(Segment { header, bytes }),
            Some(header) => {
                let (segment, found) = (*segment, header.table);
                return Err(LogError::AnotherTable { segment, found, expected: table });
            }
            // The segment was unfinished: its header is durable before anything else is in it.
            // There may be several such segments, as a recovery makes its own after its
            // predecessor's.
            None if bytes.len() <= HEADER_BYTES => unmade.push(*segment),
            None => return Err(LogError::Damaged { segment: *segment, offset: 0 }),
        }
    }
    Ok((segments, unmade, next))
}

/// Reads the records of a segment until `each` returns no or the records end.
fn walk<E>(
    segment: &Segment,
    mut each: impl FnMut(record::Record<'_>) -> Result<bool, E>,
) -> Result<End, E> {
    let mut at = HEADER_BYTES;
    while at < segment.bytes.len() {
        let number = segment.header.segment;
        let Some((record, len)) = record::read(number, &segment.bytes[at..]) else {
            return Ok(End::Torn(at));
        };
        if !each(record)? {
            return Ok(End::Torn(at));
        }
        at += len;
    }
    Ok(End::Whole)
}

/// Reports the oldest complete snapshot after which no part of the log is missing, up to `first`,
/// the LSN of the log's first record. Such a snapshot was made durable. Reports nothing if the
/// whole log is there. If there is no such snapshot, reports the newest one.
fn tell_snapshot<E: From<LogError>>(
    parts: &[Segment],
    first: Option<u64>,
    found: &mut Recovered,
    each: &mut impl FnMut(Told<'_>) -> Result<(), E>,
) -> Result<Base, E> {
    let mut by_lsn: BTreeMap<u64, Vec<&Segment>> = BTreeMap::new();
    for part in parts {
        by_lsn.entry(part.header.lsn).or_default().push(part);
    }
    let nothing = (Base::default(), Vec::new());
    let snapshots = by_lsn.into_iter().filter_map(|(lsn, parts)| {
        let needs = whole(&parts)?;
        Some((Base { lsn, needs }, parts))
    });
    let mut bases: Vec<_> = std::iter::once(nothing).chain(snapshots).collect();
    let goes_on = |base: &Base| first.is_some_and(|first| first <= base.lsn + 1);
    let oldest = bases.iter().position(|(base, _)| goes_on(base));
    let (base, parts) = bases.swap_remove(oldest.unwrap_or(bases.len() - 1));
    for part in parts {
        walk(part, |record| {
            found.from_snapshot += u64::from(matches!(record.op, Op::Change { .. }));
            tell(record.op, found, each)?;
            Ok::<bool, E>(true)
        })?;
    }
    Ok(base)
}

/// If the snapshot with these parts is complete: the LSN up to which it needs the log.
fn whole(parts: &[&Segment]) -> Option<u64> {
    let (mut last, mut end) = (0, None);
    for (number, part) in parts.iter().enumerate() {
        let in_place = part.header.kind == Kind::Snapshot { part: number as u32 };
        let walked = walk(part, |record| {
            last += 1;
            if let Op::End { lsn } = record.op {
                end = Some(lsn);
            }
            Ok::<bool, LogError>(record.lsn == last)
        });
        if !in_place || !matches!(walked, Ok(End::Whole)) {
            return None;
        }
    }
    end
}

/// Reports the records after `base`, and returns the end of the log.
fn tell_logs<E: From<LogError>>(
    logs: &[Segment],
    base: Base,
    found: &mut Recovered,
    each: &mut impl FnMut(Told<'_>) -> Result<(), E>,
) -> Result<Ending, E> {
    let mut sealed = None;
    // Missing records do not matter if the snapshot made them superfluous.
    let mut lsn = base.lsn.min(logs.first().map_or(0, |log| log.header.lsn - 1));
    for (index, log) in logs.iter().enumerate() {
        let (first, segment) = (log.header.lsn, log.header.segment);
        // A later segment than the seal names is a copy of that one.
        let follows = first == lsn + 1 && sealed.is_none_or(|next| next <= segment);
        let is_last = index > 0 && index + 1 == logs.len();
        if !follows && sealed.is_none() && log.is_empty() && is_last {
            // The segment was unfinished: the segment before it, which is there, was not sealed
            // yet.
            found.last = lsn.max(base.lsn);
            return Ok(Ending { cut: None, superfluous: vec![segment] });
        }
        if !follows {
            return Err(LogError::Missing { lsn: lsn + 1, found: first }.into());
        }
        sealed = None;
        let end = walk(log, |record| {
            if record.lsn != lsn + 1 {
                return Ok(false);
            }
            lsn = record.lsn;
            if let Op::Seal { next } = record.op {
                sealed = Some(next);
            }
            if lsn > base.lsn {
                found.replayed += 1;
                tell(record.op, found, each)?;
            }
            Ok::<bool, E>(true)
        })?;
        if let End::Torn(offset) = end {
            let torn = Torn { logs: &logs[index..], offset, lsn: lsn + 1, needs: base.needs };
            found.last = lsn;
            return torn.judge(base.lsn).map_err(E::from);
        }
    }
    found.last = lsn.max(base.lsn);
    if sealed.is_some() || lsn < base.needs.max(base.lsn) {
        return Err(LogError::Missing { lsn: lsn + 1, found: 0 }.into());
    }
    Ok(Ending { cut: None, superfluous: Vec::new() })
}

fn tell<E>(
    op: Op<'_>,
    found: &mut Recovered,
    each: &mut impl FnMut(Told<'_>) -> Result<(), E>,
) -> Result<(), E> {
    match op {
        Op::Change { key, change } => each(Told { key, change })?,
        Op::Lease { end } => found.leased = found.leased.max(end),
        Op::Seal { .. } | Op::End { .. } => (),
    }
    Ok(())
}

/// A log that ends in the middle of a segment.
struct Torn<'a> {
    /// That segment, and the segments after it.
    logs: &'a [Segment],
    offset: usize,
    /// The first missing record.
    lsn: u64,
    /// The LSN up to which a snapshot needs the log.
    needs: u64,
}

impl Torn<'_> {
    /// The part that has to be cut off, if a crash can explain it.
    fn judge(&self, base: u64) -> Result<Ending, LogError> {
        let segment = self.logs[0].header.segment;
        // A segment is synced before the next one gets a record.
        let goes_on = self.logs[1..].iter().any(|log| !log.is_empty());
        if self.lsn <= self.needs.max(base) || goes_on || self.was_durable().is_said {
            return Err(LogError::Damaged { segment, offset: self.offset as u64 });
        }
        let superfluous = self.logs[1..].iter().map(|log| log.header.segment).collect();
        Ok(Ending { cut: Some(self.offset), superfluous })
    }

    /// Whether a later record of the segment says that the first missing record was durable.
    ///
    /// A record may begin at any word, and a client's value may be made of words that look like the
    /// beginnings of long records. So a checksum is computed only where a record with this
    /// statement could be, and over a bounded number of bytes. A malicious value can hide damage,
    /// but cannot keep a node from starting.
    fn was_durable(&self) -> Evidence {
        let (number, bytes) = (self.logs[0].header.segment, &self.logs[0].bytes[..]);
        let budget = (bytes.len() - self.offset) as u64 * CHECKED_TIMES_MAX;
        let mut evidence = Evidence::default();
        for at in (self.offset..bytes.len()).step_by(8) {
            let Some(claim) = record::claim(&bytes[at..]) else { continue };
            // Between the two stand as many records as their numbers allow.
            let records_max = ((at - self.offset) / RECORD_BYTES) as u64 + 1;
            let is_later = claim.lsn > self.lsn && claim.lsn - self.lsn <= records_max;
            if !is_later || claim.durable < self.lsn {
                continue;
            }
            if evidence.checked_bytes + claim.len as u64 > budget {
                break;
            }
            evidence.checked_bytes += claim.len as u64;
            if record::read(number, &bytes[at..]).is_some() {
                evidence.is_said = true;
                break;
            }
        }
        evidence
    }
}

/// Checksums are computed over at most this many times the bytes that are searched. Records that a
/// log has written need one time.
const CHECKED_TIMES_MAX: u64 = 4;

/// The result of the search for a later record.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Evidence {
    is_said: bool,
    /// The number of bytes over which checksums were computed.
    checked_bytes: u64,
}

#[cfg(test)]
mod tests {
    use super::*;

    const SEGMENT: u64 = 7;
    const TORN: u64 = 1_000_000;

    /// The evidence in a segment whose first record is torn and which goes on with these words.
    fn evidence(words: &[u64]) -> (Evidence, u64) {
        let header = Header { table: 1, segment: SEGMENT, kind: Kind::Log, lsn: TORN };
        let mut bytes = header.bytes().to_vec();
        bytes.extend(words.iter().flat_map(|word| word.to_le_bytes()));
        let len = (bytes.len() - HEADER_BYTES) as u64;
        let logs = [Segment { header, bytes }];
        let torn = Torn { logs: &logs, offset: HEADER_BYTES, lsn: TORN, needs: 0 };
        (torn.was_durable(), len)
    }

    fn words_of(bytes: &[u8]) -> impl Iterator<Item = u64> + '_ {
        bytes.chunks_exact(8).map(|word| u64::from_le_bytes(word.try_into().expect("eight")))
    }

    /// A client chooses the bytes of its values. Each word of these values looks like the beginning
    /// of a long record, so checking every checksum would read tens of gigabytes.
    #[test]
    fn a_value_made_of_headers_is_looked_at_a_few_times_and_not_once_for_each_word() {
        /// A multiple of a header's words.
        const WORDS: usize = 3 << 15;
        let record = |number: u64, len: usize| {
            let rest = (len * 8).saturating_sub(RECORD_BYTES + 8) as u64;
            [0, TORN + number, 5, 0, rest | number << 32, 1 << 32 | 8]
        };
        let patterns: [Vec<u64>; 4] = [
            // Every word is a header with a key and a value of 60,000 bytes.
            vec![1 << 32 | 60_000; WORDS],
            // The client knows the LSN, and that the record after the next is the next but one.
            (0..WORDS / 6).flat_map(|i| record(1, WORDS - i * 6)).collect(),
            (0..WORDS / 6).flat_map(|i| record(1 + i as u64, (WORDS - i * 6) / 2)).collect(),
            // Each record reaches over the five after it.
            (0..WORDS / 6).flat_map(|i| record(1 + i as u64, 30)).collect(),
        ];
        for (number, words) in patterns.iter().enumerate() {
            let (evidence, len) = evidence(words);
            assert!(!evidence.is_said, "{number}");
            let least = if number == 0 { 0 } else { 3 * len };
            let looked_at = (least..=4 * len).contains(&evidence.checked_bytes);
            assert!(looked_at, "{number}: {evidence:?} of {len} bytes");
        }
    }

    #[test]
    fn a_record_that_could_not_be_so_near_is_not_believed() {
        let op = Op::Change { key: b"k", change: Change::Delete };
        let said = |lsn: u64, durable: u64, words_before: usize| {
            let mut bytes = Vec::new();
            record::write(SEGMENT, &Record { lsn, durable, op }, &mut bytes);
            let before = std::iter::repeat_n(0, words_before);
            evidence(&before.chain(words_of(&bytes)).collect::<Vec<_>>()).0.is_said
        };
        assert!(said(TORN + 1, TORN, 6) && said(TORN + 3, TORN + 2, 18));
        assert!(!said(TORN + 1, TORN - 1, 6), "it does not say that the torn one was durable");
        assert!(!said(TORN, TORN, 6) && !said(TORN - 1, TORN - 1, 6), "it is not a later one");
        assert!(!said(TORN + 5, TORN, 18), "there is no room for the records before it");
        assert!(said(TORN + 1, TORN, 0), "it stands in the place of the one that was durable");
    }
}
