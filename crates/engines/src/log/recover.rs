//! Recovery: what a log says after its writer died.
//!
//! The newest whole snapshot is read, and then every record after it. The end of the log is where
//! the first record is missing or damaged, if that can be the work of a crash: **a torn tail** is cut
//! off. It cannot be if that record is known to have been durable, because a later one says so (each
//! says what was durable when it was made), or if a snapshot counts on it: then the log is
//! **damaged**, which is an error that names the place. So is a **missing segment**: records are
//! numbered, and the last of a full segment names the next.
//!
//! What cannot be told: damage to the very last records, those of the last sync and after, looks like
//! a torn tail.

use std::collections::BTreeMap;

use super::append::{Log, Resume};
use super::record::{self, Change, HEADER_BYTES, Header, Kind, Op};
use super::storage::Storage;
use super::{LogError, Policy};

/// What a recovery found.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Recovered {
    /// Keys that came from the snapshot.
    pub from_snapshot: u64,
    /// Records of the log that were replayed.
    pub replayed: u64,
    /// The LSN of the last.
    pub last: u64,
    /// Bytes of a torn tail that were cut off.
    pub torn_bytes: u64,
    /// Versions below this number may have been given away.
    pub leased: u64,
}

/// What a log tells whoever recovers from it, in order.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Told<'a> {
    /// The key.
    pub key: &'a [u8],
    /// Its new state.
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

/// How a log ends.
struct Ending {
    /// What is left of the last segment of which anything is.
    cut: Option<u64>,
    /// Segments to be removed.
    superfluous: Vec<u64>,
}

/// A snapshot that is whole.
#[derive(Clone, Copy, Default)]
struct Base {
    /// It makes the records up to this LSN superfluous.
    lsn: u64,
    /// It is only good together with the log up to this LSN.
    needs: u64,
}

/// How the records of a segment end.
enum End {
    /// With its bytes.
    Whole,
    /// With a record that is none, at this offset.
    Torn(usize),
}

/// Reads the log of `table` from `storage`, tells `each` what it says, and returns it to be appended
/// to. Storage without any segment is an empty log.
///
/// # Errors
/// [`LogError`], and whatever `each` returns. Unless the storage itself failed it is as it was.
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
    let base = tell_snapshot(&snapshots, &mut found, &mut each)?;
    let Ending { cut, mut superfluous } = tell_logs(&logs, base, &mut found, &mut each)?;
    superfluous.extend(unmade);
    // Snapshots that are not whole are of no use any more.
    let not_whole = snapshots.iter().filter(|part| part.header.lsn != base.lsn);
    superfluous.extend(not_whole.map(|part| part.header.segment));
    for segment in &superfluous {
        storage.remove(*segment).map_err(LogError::Storage)?;
    }
    let kept = logs.iter().rfind(|log| !superfluous.contains(&log.header.segment));
    let kept = kept.map(|log| (log.header.segment, log.bytes.len() as u64));
    if let (Some((segment, had)), Some(len)) = (kept, cut) {
        found.torn_bytes = had - len;
        storage.truncate(segment, len).map_err(LogError::Storage)?;
    }
    let segment = kept.map(|(segment, had)| (segment, cut.unwrap_or(had)));
    let bytes = |segments: &[Segment], counts: &dyn Fn(&Header) -> bool| {
        let counted = segments.iter().filter(|segment| counts(&segment.header));
        counted.map(|segment| segment.bytes.len() as u64).sum()
    };
    let at = Resume {
        table,
        segment,
        next_segment,
        last: found.last,
        grown_bytes: bytes(&logs, &|header| header.lsn > base.lsn),
        snapshot_bytes: bytes(&snapshots, &|header| header.lsn == base.lsn),
    };
    Ok((Log::resume(storage, policy, at)?, found))
}

/// All segments that have a header, in order; one that was being made; and the number of the next.
fn load<S: Storage>(
    storage: &mut S,
    table: u64,
) -> Result<(Vec<Segment>, Option<u64>, u64), LogError> {
    let numbers = storage.segments().map_err(LogError::Storage)?;
    let next = numbers.last().map_or(1, |last| last + 1);
    let (mut segments, mut unmade) = (Vec::new(), None);
    for segment in &numbers {
        let bytes = storage.read(*segment).map_err(LogError::Storage)?;
        match Header::read(&bytes, *segment) {
            Some(header) if header.table == table => segments.push(Segment { header, bytes }),
            Some(header) => {
                let (segment, found) = (*segment, header.table);
                return Err(LogError::AnotherTable { segment, found, expected: table });
            }
            // It was being made: the header is durable before anything else is there.
            None if Some(segment) == numbers.last() && bytes.len() <= HEADER_BYTES => {
                unmade = Some(*segment);
            }
            None => return Err(LogError::Damaged { segment: *segment, offset: 0 }),
        }
    }
    Ok((segments, unmade, next))
}

/// Reads the records of a segment until `each` says no or they end.
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

/// Tells the newest snapshot that is whole.
fn tell_snapshot<E: From<LogError>>(
    parts: &[Segment],
    found: &mut Recovered,
    each: &mut impl FnMut(Told<'_>) -> Result<(), E>,
) -> Result<Base, E> {
    let mut by_lsn: BTreeMap<u64, Vec<&Segment>> = BTreeMap::new();
    for part in parts {
        by_lsn.entry(part.header.lsn).or_default().push(part);
    }
    for (lsn, parts) in by_lsn.into_iter().rev() {
        let Some(needs) = whole(&parts) else { continue };
        for part in parts {
            walk(part, |record| {
                match record.op {
                    Op::Change { key, change } => {
                        found.from_snapshot += 1;
                        each(Told { key, change })?;
                    }
                    Op::Lease { end } => found.leased = found.leased.max(end),
                    Op::Seal { .. } | Op::End { .. } => (),
                }
                Ok::<bool, E>(true)
            })?;
        }
        return Ok(Base { lsn, needs });
    }
    Ok(Base::default())
}

/// The LSN that a snapshot of these parts needs the log up to, if it is whole.
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

/// Tells the records after `base`, and says how the log ends.
fn tell_logs<E: From<LogError>>(
    logs: &[Segment],
    base: Base,
    found: &mut Recovered,
    each: &mut impl FnMut(Told<'_>) -> Result<(), E>,
) -> Result<Ending, E> {
    let mut sealed = None;
    // Nothing is wrong with records that the snapshot made superfluous.
    let mut lsn = base.lsn.min(logs.first().map_or(0, |log| log.header.lsn - 1));
    for (index, log) in logs.iter().enumerate() {
        let (first, segment) = (log.header.lsn, log.header.segment);
        let follows = first == lsn + 1 && sealed.is_none_or(|next| next == segment);
        if !follows && sealed.is_none() && log.is_empty() && index + 1 == logs.len() {
            // It was being made: the segment before it was not sealed yet.
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
    /// That segment, and those after it.
    logs: &'a [Segment],
    offset: usize,
    /// The first record that is not there.
    lsn: u64,
    /// What a snapshot counts on.
    needs: u64,
}

impl Torn<'_> {
    /// What is to be cut off, if this can be the work of a crash.
    fn judge(&self, base: u64) -> Result<Ending, LogError> {
        let segment = self.logs[0].header.segment;
        // A segment is synced before there is anything in the next one.
        let goes_on = self.logs[1..].iter().any(|log| !log.is_empty());
        if self.lsn <= self.needs.max(base) || goes_on || self.was_durable() {
            return Err(LogError::Damaged { segment, offset: self.offset as u64 });
        }
        let superfluous = self.logs[1..].iter().map(|log| log.header.segment).collect();
        Ok(Ending { cut: Some(self.offset as u64), superfluous })
    }

    /// Whether a later record of the segment says that the first one that is not there was durable.
    fn was_durable(&self) -> bool {
        let segment = &self.logs[0];
        let later = (self.offset..segment.bytes.len()).step_by(8);
        later.into_iter().any(|at| {
            record::read(segment.header.segment, &segment.bytes[at..])
                .is_some_and(|(record, _)| record.durable >= self.lsn)
        })
    }
}
