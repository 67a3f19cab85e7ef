//! Rules of the log that matter only in rare situations, each tested in its situation.

use super::*;
use crate::log::record::{self, Header, Kind, RECORD_BYTES, Record};
use crate::operation::Version;

const NONE: DiskFaults =
    DiskFaults { appends_left: None, syncs_left: None, removes_left: None, sync_looks: 0 };

fn put(value: &[u8]) -> Change<'_> {
    Change::Put { value, version: Version::from_u64(1), expires_at_ms: None }
}

/// The result of a recovery.
fn found(disk: &MemoryStorage) -> Recovered {
    recover(disk.clone(), 77, policy(), |_| Ok::<(), LogError>(())).unwrap().1
}

#[test]
fn a_log_of_which_nothing_is_at_risk_has_room_however_long_ago_the_last_record_came() {
    let disk = MemoryStorage::default();
    let (mut log, _) = open_with(&disk, Policy { loss_us_max: 500, ..policy() }).unwrap();
    append(&mut log, 0).unwrap();
    log.sync(0).unwrap();
    assert!(log.has_room(1_000_000));
}

#[test]
fn with_sync_a_sync_begins_with_the_record() {
    let disk = MemoryStorage::default();
    let patient = Policy { sync: true, sync_us: 1 << 40, write_us: 1 << 40, ..policy() };
    let (mut log, _) = open_with(&disk, patient).unwrap();
    append(&mut log, 0).unwrap();
    log.turn(0).unwrap();
    log.turn(0).unwrap();
    assert_eq!(log.durable(), log.last());
}

/// A sync without new records would wear out the disk of a server that gets no changes.
#[test]
fn a_log_of_which_all_is_durable_is_not_synced_again() {
    let disk = MemoryStorage::default();
    let (mut log, _) = open(&disk).unwrap();
    append(&mut log, 0).unwrap();
    log.sync(0).unwrap();
    let syncs = disk.syncs();
    for now in 1..100 {
        log.turn(now).unwrap();
    }
    log.sync(100).unwrap();
    assert_eq!(disk.syncs(), syncs);
}

/// The bytes that a recovery copied into the segment count too.
#[test]
fn a_segment_is_full_when_it_has_its_bytes_and_not_before() {
    let policy = Policy { segment_bytes: 2_000, ..policy() };
    let mut disk = MemoryStorage::default();
    let (mut log, _) = open_with(&disk, policy).unwrap();
    let mut number = 0;
    for lives in 0..3 {
        while log.last() < 5 || disk.segments().unwrap().len() <= lives {
            append(&mut log, number).unwrap();
            log.turn(number).unwrap();
            number += 1;
        }
        disk.kill();
        log = open_with(&disk, policy).unwrap().0;
    }
    for segment in disk.segments().unwrap().iter().rev().skip(1) {
        let len = disk.len(*segment);
        // The last record, and the seal.
        assert!((2_000..2_400).contains(&len), "segment {segment} of {len} bytes");
    }
}

#[test]
fn records_are_written_when_they_are_many_or_old() {
    let lazy = Policy { write_bytes: 500, write_us: 1_000, sync_us: 1 << 40, ..policy() };
    let disk = MemoryStorage::default();
    let (mut log, _) = open_with(&disk, lazy).unwrap();
    append(&mut log, 0).unwrap();
    log.turn(999).unwrap();
    assert!(log.written() < log.last());
    log.turn(1_000).unwrap();
    assert_eq!(log.written(), log.last(), "it is a millisecond old");
    for _ in 0..10 {
        log.append(Op::Change { key: b"k", change: put(&[1; 100]) }, 1_000).unwrap();
    }
    log.turn(1_000).unwrap();
    assert_eq!(log.written(), log.last(), "they are 1,000 bytes and more");
}

#[test]
fn a_log_knows_how_much_of_it_a_snapshot_would_replace() {
    let disk = MemoryStorage::default();
    let (mut log, _) = open(&disk).unwrap();
    let mut all = log.grown_bytes();
    for number in 0..20 {
        append(&mut log, number).unwrap();
        log.turn(number).unwrap();
        assert!(log.grown_bytes() > all);
        all = log.grown_bytes();
    }
    log.sync(0).unwrap();
    assert_eq!(log.grown_bytes(), (disk.len(1) - HEADER_BYTES) as u64);
    let (mut log, mut told) = open(&disk).unwrap();
    assert_eq!(log.grown_bytes(), all);
    snapshot(&mut log, &mut told, &mut 20).unwrap();
    assert!(log.grown_bytes() < all && log.snapshot_bytes() > 0);
}

/// A restarted server makes its next snapshot at the same time as without the restart. It counts
/// the headers of segments, too.
#[test]
fn the_next_process_knows_how_much_of_the_log_a_snapshot_would_replace() {
    let small = Policy { segment_bytes: 600, ..policy() };
    let mut disk = MemoryStorage::default();
    let (mut log, _) = open_with(&disk, small).unwrap();
    let (mut told, mut next) = (Changes::new(), 0);
    for appends in [40, 10] {
        for _ in 0..appends {
            append(&mut log, next).unwrap();
            told.push(change(next));
            log.turn(next).unwrap();
            next += 1;
        }
        if appends == 40 {
            snapshot(&mut log, &mut told, &mut next).unwrap();
        }
    }
    log.sync(0).unwrap();
    let headers = (disk.segments().unwrap().len() * HEADER_BYTES) as u64;
    let before = [log.grown_bytes(), log.snapshot_bytes()];
    let (log, _) = open_with(&disk, small).unwrap();
    for (before, after) in before.iter().zip([log.grown_bytes(), log.snapshot_bytes()]) {
        assert!(*before > 300 && (*before..=before + headers).contains(&after), "{before} {after}");
    }
}

#[test]
fn a_recovery_says_what_it_found() {
    let disk = MemoryStorage::default();
    let (mut log, _) = open(&disk).unwrap();
    append(&mut log, 0).unwrap();
    let mut snapshot = log.begin_snapshot(0).unwrap();
    for key in [b"a", b"b", b"c"] {
        log.add(&mut snapshot, Op::Change { key, change: put(b"v") }).unwrap();
    }
    log.finish_snapshot(snapshot, 0).unwrap();
    for number in 0..4 {
        append(&mut log, number).unwrap();
    }
    log.sync(0).unwrap();
    // The first segment is gone, and the third is the snapshot.
    let (segment, whole) = (2, disk.len(2));
    let last = append(&mut log, 5).unwrap();
    log.turn(0).unwrap();
    disk.kill();
    disk.truncate(segment, disk.len(segment) - 1);
    let torn_bytes = (disk.len(segment) - whole) as u64;
    let expected =
        Recovered { from_snapshot: 3, replayed: 4, last: last - 1, torn_bytes, leased: 0 };
    assert_eq!(found(&disk), expected);
}

#[test]
fn a_snapshot_that_is_given_up_leaves_nothing() {
    let mut disk = MemoryStorage::default();
    let (mut log, _) = open_with(&disk, Policy { segment_bytes: 300, ..policy() }).unwrap();
    append(&mut log, 0).unwrap();
    let mut given_up = log.begin_snapshot(0).unwrap();
    let before = disk.segments().unwrap().len() - 1;
    for _ in 0..10 {
        log.add(&mut given_up, Op::Change { key: b"k", change: put(&[1; 100]) }).unwrap();
    }
    assert!(disk.segments().unwrap().len() > before + 3);
    log.abandon_snapshot(given_up).unwrap();
    assert_eq!(disk.segments().unwrap().len(), before);
}

#[test]
fn a_snapshot_is_gathered_before_it_is_written_and_its_parts_are_bounded() {
    let policy = Policy { segment_bytes: 200_000, ..policy() };
    let mut disk = MemoryStorage::default();
    let (mut log, _) = open_with(&disk, policy).unwrap();
    append(&mut log, 0).unwrap();
    let mut snapshot = log.begin_snapshot(0).unwrap();
    let part = *disk.segments().unwrap().last().unwrap();
    let records = disk.clone();
    let add = |log: &mut Log<_>, snapshot: &mut Snapshot| {
        log.add(snapshot, Op::Change { key: b"k", change: put(&[1; 1_000]) }).unwrap();
        records.len(part)
    };
    let lens: Vec<_> = (0..100).map(|_| add(&mut log, &mut snapshot)).collect();
    assert_eq!(lens[..50], [HEADER_BYTES; 50], "they are not as many as an append is worth");
    assert!(lens[99] > 64 << 10);
    for _ in 100..1_000 {
        add(&mut log, &mut snapshot);
    }
    log.finish_snapshot(snapshot, 0).unwrap();
    let parts = disk.segments().unwrap().into_iter().filter(|segment| *segment >= part);
    let mut lens: Vec<_> = parts.map(|part| disk.len(part)).collect();
    lens.pop();
    assert!(lens.len() > 4 && lens.iter().all(|len| (200_000..202_000).contains(len)), "{lens:?}");
}

#[test]
fn a_snapshot_that_was_never_ended_is_removed_by_the_next_process() {
    let mut disk = MemoryStorage::default();
    let (mut log, _) = open(&disk).unwrap();
    append(&mut log, 0).unwrap();
    let mut never_ended = log.begin_snapshot(0).unwrap();
    log.add(&mut never_ended, Op::Change { key: b"k", change: put(b"v") }).unwrap();
    append(&mut log, 1).unwrap();
    log.sync(0).unwrap();
    drop((log, never_ended));
    assert_eq!(open(&disk).unwrap().1, changes(0..2));
    // The sealed segment, and the copy of the last one.
    assert_eq!(disk.segments().unwrap().len(), 2);
}

/// Changes of many segments come while a snapshot is written.
#[test]
fn the_log_that_is_written_beside_a_snapshot_stays() {
    let tiny = Policy { segment_bytes: 300, ..policy() };
    let disk = MemoryStorage::default();
    let (mut log, _) = open_with(&disk, tiny).unwrap();
    let mut snapshot = log.begin_snapshot(0).unwrap();
    for number in 0..30 {
        append(&mut log, number).unwrap();
        log.turn(number).unwrap();
        log.add(&mut snapshot, Op::Change { key: b"k", change: put(&[1; 60]) }).unwrap();
    }
    log.finish_snapshot(snapshot, 0).unwrap();
    let (_, told) = open_with(&disk, tiny).unwrap();
    assert_eq!(told[told.len() - 30..], changes(0..30));
}

/// A disk with a snapshot of several parts and, in one segment, the log that it needs. Returns the
/// first part, the log's segment, and the length of that segment after each of its records.
fn snapshot_of_parts() -> (MemoryStorage, u64, u64, Vec<usize>) {
    let mut disk = MemoryStorage::default();
    let (mut log, _) = open_with(&disk, Policy { segment_bytes: 1_000, ..policy() }).unwrap();
    append(&mut log, 0).unwrap();
    let mut snapshot = log.begin_snapshot(0).unwrap();
    let segment = *disk.segments().unwrap().iter().rev().nth(1).unwrap();
    let mut ends = vec![disk.len(segment)];
    for number in 0..40 {
        log.add(&mut snapshot, Op::Change { key: b"k", change: put(&[1; 60]) }).unwrap();
        if number < 4 {
            append(&mut log, number).unwrap();
            log.sync(0).unwrap();
            ends.push(disk.len(segment));
        }
    }
    log.finish_snapshot(snapshot, 0).unwrap();
    disk.kill();
    let first_part = disk.segments().unwrap()[1];
    assert!(disk.segments().unwrap().len() > 4 && ends.is_sorted_by(|a, b| a < b));
    (disk, first_part, segment, ends)
}

#[test]
fn damage_to_any_part_of_a_snapshot_is_no_end_of_it() {
    let (intact, ..) = snapshot_of_parts();
    assert!(open(&intact).is_ok());
    let (mut whole, ..) = snapshot_of_parts();
    for segment in whole.segments().unwrap() {
        for at in [HEADER_BYTES + 4, whole.len(segment) - 4] {
            if at < whole.len(segment) {
                let (disk, ..) = snapshot_of_parts();
                disk.flip(segment, at * 8);
                assert!(open(&disk).is_err(), "segment {segment}, byte {at}");
            }
        }
    }
}

/// A table without changes since its snapshot was made: each record of the snapshot, also the last
/// one, has a part of its own, and the log has no records.
fn nothing_but_a_snapshot() -> (MemoryStorage, Vec<u64>) {
    let mut disk = MemoryStorage::default();
    let (mut log, _) = open_with(&disk, Policy { segment_bytes: 1, ..policy() }).unwrap();
    let mut snapshot = log.begin_snapshot(0).unwrap();
    for key in [b"a", b"b", b"c"] {
        log.add(&mut snapshot, Op::Change { key, change: put(b"v") }).unwrap();
    }
    log.finish_snapshot(snapshot, 0).unwrap();
    disk.kill();
    let parts: Vec<_> = disk.segments().unwrap().into_iter().skip(1).collect();
    assert_eq!(parts.len(), 4);
    (disk, parts)
}

/// A segment without records at the end of the log may be unfinished. The first segment is never
/// unfinished: the records before it are in the snapshot. It once counted as unfinished when the
/// snapshot was damaged, and the table was empty.
#[test]
fn a_damaged_snapshot_is_an_error_though_nothing_was_logged_after_it() {
    let (disk, parts) = nothing_but_a_snapshot();
    assert_eq!(open(&disk).unwrap().1.len(), 3);
    let missing = |lsn, found| Some(LogError::Missing { lsn, found });
    for part in &parts {
        let (disk, _) = nothing_but_a_snapshot();
        disk.flip(*part, (HEADER_BYTES + 20) * 8);
        assert_eq!(open(&disk).err(), missing(1, 2), "part {part}");
        let (mut disk, _) = nothing_but_a_snapshot();
        disk.remove(*part).unwrap();
        assert_eq!(open(&disk).err(), missing(1, 2), "part {part}");
    }
    let (mut disk, _) = nothing_but_a_snapshot();
    parts.iter().for_each(|part| disk.remove(*part).unwrap());
    assert_eq!(open(&disk).err(), missing(1, 2));
    // A missing log is not an empty log either.
    for damaged in [false, true] {
        let (mut disk, _) = nothing_but_a_snapshot();
        disk.remove(parts[0] - 1).unwrap();
        if damaged {
            disk.flip(parts[0], (HEADER_BYTES + 20) * 8);
        }
        assert!(matches!(open(&disk), Err(LogError::Missing { .. })));
    }
}

#[test]
fn a_part_that_is_missing_is_no_end_of_a_snapshot() {
    let (mut whole, first_part, ..) = snapshot_of_parts();
    for part in whole.segments().unwrap().into_iter().filter(|segment| *segment >= first_part) {
        let (mut disk, ..) = snapshot_of_parts();
        disk.remove(part).unwrap();
        assert!(matches!(open(&disk), Err(LogError::Missing { .. })), "part {part}");
    }
}

/// The snapshot's keys are from the time of its writing. Without the log of that time they belong
/// to no single moment.
#[test]
fn a_snapshot_is_not_told_without_the_log_that_it_counts_on() {
    let (_, _, segment, ends) = snapshot_of_parts();
    for (end, next) in ends.iter().zip(&ends[1..]) {
        let (disk, ..) = snapshot_of_parts();
        disk.truncate(segment, *end);
        assert!(matches!(open(&disk), Err(LogError::Missing { .. })), "{end}");
        let (disk, ..) = snapshot_of_parts();
        disk.truncate(segment, *next - 8);
        assert_eq!(open(&disk).err(), Some(LogError::Damaged { segment, offset: *end as u64 }));
    }
}

/// A sealed segment was durable, whatever its records say of each other.
#[test]
fn damage_to_a_sealed_segment_is_no_torn_tail() {
    let write = || {
        let disk = MemoryStorage::default();
        let (mut log, _) = open_with(&disk, Policy { segment_bytes: 600, ..policy() }).unwrap();
        for number in 0..20 {
            append(&mut log, number).unwrap();
            log.turn(number).unwrap();
        }
        log.sync(0).unwrap();
        disk
    };
    assert!(write().segments().unwrap().len() > 2);
    for byte in HEADER_BYTES..write().len(1) {
        let disk = write();
        disk.flip(1, byte * 8);
        let error = open(&disk).err();
        assert!(matches!(error, Some(LogError::Damaged { segment: 1, .. })), "{byte}: {error:?}");
    }
}

/// A seal is on the disk without the records that were written with it.
#[test]
fn a_seal_does_not_say_that_what_came_with_it_is_durable() {
    let (disk, segment) = sealed_in_vain();
    let len = disk.len(segment);
    for byte in (len - 200)..(len - RECORD_BYTES) {
        let (disk, segment) = sealed_in_vain();
        disk.flip(segment, byte * 8);
        let (_, told) = open(&disk).unwrap();
        assert!(told.len() >= 10 && told == changes(0..told.len() as u64), "{byte}");
    }
}

/// Ten durable changes and ten that are not, and a seal that could not be made durable.
fn sealed_in_vain() -> (MemoryStorage, u64) {
    let disk = MemoryStorage::default();
    let (mut log, _) = open_with(&disk, Policy { segment_bytes: 1_000, ..policy() }).unwrap();
    for number in 0..20 {
        append(&mut log, number).unwrap();
        if number == 9 {
            log.sync(0).unwrap();
        }
    }
    // One sync is for the next segment.
    disk.set_faults(DiskFaults { syncs_left: Some(1), ..NONE });
    assert!(matches!(log.turn(0), Err(LogError::Storage(_))));
    disk.set_faults(NONE);
    disk.kill();
    (disk, 1)
}

/// A process has copied the last segment, and died before it removed the old one.
fn copied() -> (MemoryStorage, u64, u64) {
    let (mut disk, old) = ten_and_ten();
    disk.set_faults(DiskFaults { removes_left: Some(0), ..NONE });
    assert!(matches!(open(&disk), Err(LogError::Storage(_))));
    disk.set_faults(NONE);
    disk.kill();
    let copy = *disk.segments().unwrap().last().unwrap();
    assert_ne!(copy, old);
    (disk, old, copy)
}

/// The length of a segment up to its record of change `number`, which comes after the first
/// `number` records.
fn up_to(disk: &mut MemoryStorage, segment: u64, number: usize) -> usize {
    let bytes = disk.read(segment).unwrap();
    (0..number).fold(HEADER_BYTES, |at, _| at + record::read(segment, &bytes[at..]).unwrap().1)
}

#[test]
fn of_a_segment_and_its_copy_the_one_with_more_records_counts() {
    for cut in [10, 15, 19] {
        for of_old in [true, false] {
            let (mut disk, old, copy) = copied();
            let cut_one = if of_old { old } else { copy };
            let len = up_to(&mut disk, cut_one, cut);
            disk.truncate(cut_one, len);
            assert_eq!(open(&disk).unwrap().1, changes(0..20), "{cut} of {cut_one}");
            assert_eq!(disk.segments().unwrap().len(), 1);
        }
    }
}

/// A host that loses its power during the copying may keep more of the copy than of the segment.
#[test]
fn a_copy_does_not_say_that_it_is_durable() {
    let (mut disk, old, copy) = copied();
    let (len, at) = (up_to(&mut disk, old, 12), up_to(&mut disk, copy, 15));
    disk.truncate(old, len);
    disk.flip(copy, at * 8);
    assert_eq!(open(&disk).unwrap().1, changes(0..15));
}

/// A segment: its number, its first LSN, and its records as (LSN, content).
type Made<'a> = (u64, u64, &'a [(u64, Op<'a>)]);

/// A disk with these segments.
fn made(segments: &[Made<'_>]) -> MemoryStorage {
    let mut disk = MemoryStorage::default();
    for (segment, lsn, records) in segments {
        let (segment, lsn) = (*segment, *lsn);
        let header = Header { table: 77, segment, kind: Kind::Log, lsn };
        let mut bytes = header.bytes().to_vec();
        for (lsn, op) in *records {
            record::write(segment, &Record { lsn: *lsn, durable: 0, op: *op }, &mut bytes);
        }
        disk.create(segment).unwrap();
        disk.append(segment, &bytes).unwrap();
        disk.seal(segment).unwrap();
    }
    disk
}

const A: Op<'_> = Op::Change { key: b"a", change: Change::Delete };
const B: Op<'_> = Op::Change { key: b"b", change: Change::Delete };

fn told(keys: &[&[u8]]) -> Changes {
    keys.iter().map(|key| (key.to_vec(), None)).collect()
}

#[test]
fn records_that_do_not_follow_each_other_are_not_told() {
    assert_eq!(open(&made(&[(1, 1, &[(1, A), (2, B)])])).unwrap().1, told(&[b"a", b"b"]));
    for wrong in [1, 3, 9] {
        let disk = made(&[(1, 1, &[(1, A), (wrong, B)])]);
        assert_eq!(open(&disk).unwrap().1, told(&[b"a"]), "{wrong}");
    }
}

#[test]
fn a_seal_is_followed_by_the_segment_that_it_names_or_a_copy_of_it() {
    let follows =
        |next: u64| open(&made(&[(4, 1, &[(1, A), (2, Op::Seal { next })]), (7, 3, &[(3, B)])]));
    for next in [5, 6, 7] {
        assert_eq!(follows(next).unwrap().1, told(&[b"a", b"b"]), "{next}");
    }
    assert_eq!(follows(8).err(), Some(LogError::Missing { lsn: 3, found: 3 }));
    // A segment without records is not unfinished if the segment before it is missing.
    let disk = made(&[(4, 1, &[(1, A), (2, Op::Seal { next: 5 })]), (7, 9, &[])]);
    assert_eq!(open(&disk).err(), Some(LogError::Missing { lsn: 3, found: 9 }));
}

#[test]
fn the_highest_lease_counts_wherever_it_is() {
    let leased = |disk: &MemoryStorage| found(disk).leased;
    let disk = MemoryStorage::default();
    let (mut log, _) = open(&disk).unwrap();
    for end in [700, 300] {
        log.append(Op::Lease { end }, 0).unwrap();
    }
    log.sync(0).unwrap();
    assert_eq!(leased(&disk), 700);
    let (mut log, _) = open(&disk).unwrap();
    let mut snapshot = log.begin_snapshot(0).unwrap();
    log.add(&mut snapshot, Op::Lease { end: 700 }).unwrap();
    log.finish_snapshot(snapshot, 0).unwrap();
    assert_eq!(leased(&disk), 700, "the snapshot says it");
}

/// The removal of replaced segments stopped half-way: the remaining ones are not reported again.
#[test]
fn records_that_a_snapshot_made_superfluous_are_not_told() {
    let tiny = Policy { segment_bytes: 300, ..policy() };
    let disk = MemoryStorage::default();
    let (mut log, _) = open_with(&disk, tiny).unwrap();
    for number in 0..20 {
        append(&mut log, number).unwrap();
        log.turn(number).unwrap();
    }
    disk.set_faults(DiskFaults { removes_left: Some(1), ..NONE });
    let all = (0..20).map(change).collect();
    let snapshot = log.begin_snapshot(0).and_then(|mut snapshot| {
        for (key, value) in state(&all) {
            log.add(&mut snapshot, Op::Change { key: &key, change: put(&value) })?;
        }
        log.finish_snapshot(snapshot, 0)
    });
    assert!(matches!(snapshot, Err(LogError::Storage(_))));
    disk.set_faults(NONE);
    disk.kill();
    let (_, told) = open_with(&disk, tiny).unwrap();
    assert_eq!(told.len(), state(&all).len());
    assert_eq!(state(&told), state(&all));
}
