//! The content of a log after every possible failure.

mod rules;

use super::record::HEADER_BYTES;
use super::*;
use crate::operation::Version;
use proptest::prelude::*;

const TABLE: u64 = 77;

type Changes = Vec<(Vec<u8>, Option<Vec<u8>>)>;

fn policy() -> Policy {
    Policy { write_us: 0, sync_us: 0, ..Policy::default() }
}

fn open_with(
    disk: &MemoryStorage,
    policy: Policy,
) -> Result<(Log<MemoryStorage>, Changes), LogError> {
    let mut told = Vec::new();
    let (log, found) = recover(disk.clone(), TABLE, policy, |one| {
        let value = match one.change {
            Change::Put { value, .. } => Some(value.to_vec()),
            Change::Delete => None,
        };
        told.push((one.key.to_vec(), value));
        Ok::<(), LogError>(())
    })?;
    assert!(found.last <= log.last());
    Ok((log, told))
}

fn open(disk: &MemoryStorage) -> Result<(Log<MemoryStorage>, Changes), LogError> {
    open_with(disk, policy())
}

/// The change with this number: its key and value.
fn change(number: u64) -> (Vec<u8>, Option<Vec<u8>>) {
    let key = format!("key {}", number % 5).into_bytes();
    let value = (!number.is_multiple_of(4)).then(|| vec![number as u8; number as usize % 90]);
    (key, value)
}

fn append(log: &mut Log<MemoryStorage>, number: u64) -> Result<u64, LogError> {
    let (key, value) = change(number);
    let change = match &value {
        Some(value) => {
            Change::Put { value, version: Version::from_u64(number), expires_at_ms: None }
        }
        None => Change::Delete,
    };
    log.append(Op::Change { key: &key, change }, number)
}

fn changes(numbers: std::ops::Range<u64>) -> Changes {
    numbers.map(change).collect()
}

/// The disk after ten durable changes and, in the same segment, ten changes that are only written.
fn ten_and_ten() -> (MemoryStorage, u64) {
    let disk = ten_and_ten_of_the_dead(|_, log| {
        log.turn(1_000).unwrap();
    });
    (disk, 1)
}

#[test]
fn what_was_appended_is_told_and_the_log_goes_on() {
    let disk = MemoryStorage::default();
    for round in 0..5 {
        let (mut log, told) = open(&disk).unwrap();
        assert_eq!(told, changes(0..round * 10));
        for number in round * 10..round * 10 + 10 {
            append(&mut log, number).unwrap();
        }
        log.sync(0).unwrap();
        assert_eq!(log.durable(), log.last());
    }
}

#[test]
fn a_torn_tail_is_cut_off_wherever_it_is_torn() {
    let (disk, segment) = ten_and_ten();
    let len = disk.len(segment);
    let mut before = Changes::new();
    for cut in HEADER_BYTES..=len {
        let (disk, segment) = ten_and_ten();
        disk.truncate(segment, cut);
        let (mut log, told) = open(&disk).unwrap();
        assert_eq!(told, changes(0..told.len() as u64));
        assert!(told.len() >= before.len());
        // Changes that are appended now do not mix with the changes that were there.
        let next = told.len() as u64;
        append(&mut log, next).unwrap();
        log.sync(0).unwrap();
        assert_eq!(open(&disk).unwrap().1, changes(0..next + 1));
        before = told;
    }
    assert_eq!(before, changes(0..20));
}

#[test]
fn damage_to_what_was_durable_is_named() {
    let (disk, segment) = ten_and_ten();
    let len = disk.len(segment);
    let mut kept = 0;
    for byte in HEADER_BYTES..len {
        let (disk, segment) = ten_and_ten();
        disk.flip(segment, byte * 8 + byte % 8);
        match open(&disk) {
            Err(LogError::Damaged { segment: of, offset }) => {
                assert_eq!(of, segment);
                assert!(offset as usize <= byte && kept == 0);
            }
            // From here on no record says that it was durable.
            Ok((_, told)) => {
                assert!(told.len() >= 10, "byte {byte}");
                kept += 1;
            }
            Err(error) => panic!("byte {byte}: {error}"),
        }
    }
    assert!(kept > 100 && kept < len - 300, "{kept} of {len}");
}

#[test]
fn a_damaged_header_is_no_torn_tail() {
    let (disk, segment) = ten_and_ten();
    disk.flip(segment, 3);
    assert_eq!(open(&disk).err(), Some(LogError::Damaged { segment, offset: 0 }));
}

#[test]
fn a_missing_segment_is_noticed_whichever_it_is() {
    let write = || {
        let disk = MemoryStorage::default();
        let (mut log, _) = open_with(&disk, Policy { segment_bytes: 1_000, ..policy() }).unwrap();
        for number in 0..100 {
            append(&mut log, number).unwrap();
            log.turn(number).unwrap();
        }
        log.sync(0).unwrap();
        disk
    };
    let segments = write().segments().unwrap();
    assert!(segments.len() > 5);
    assert_eq!(open(&write()).unwrap().1, changes(0..100));
    for (at, gone) in segments.iter().enumerate() {
        let mut disk = write();
        let mut first_of = |segment| {
            let bytes = disk.read(segment).unwrap();
            record::Header::read(&bytes, segment).unwrap().lsn
        };
        let (lsn, found) =
            (first_of(*gone), segments.get(at + 1).map_or(0, |next| first_of(*next)));
        disk.remove(*gone).unwrap();
        assert_eq!(open(&disk).err(), Some(LogError::Missing { lsn, found }), "{gone}");
    }
}

#[test]
fn another_tables_segments_are_not_taken() {
    let (disk, segment) = ten_and_ten();
    let other = recover(disk, 5, policy(), |_| Ok::<(), LogError>(()));
    assert_eq!(other.err(), Some(LogError::AnotherTable { segment, found: TABLE, expected: 5 }));
}

#[test]
fn a_failed_sync_poisons_the_log() {
    let disk = MemoryStorage::default();
    let (mut log, _) = open(&disk).unwrap();
    append(&mut log, 0).unwrap();
    log.sync(0).unwrap();
    append(&mut log, 1).unwrap();
    disk.set_faults(DiskFaults { syncs_left: Some(0), ..DiskFaults::default() });
    log.turn(1).unwrap();
    let durable = log.durable();
    assert!(matches!(log.turn(2), Err(LogError::Storage(_))));
    // The disk works again, but nobody knows which bytes are on it.
    disk.set_faults(DiskFaults::default());
    assert!(matches!(log.turn(3), Err(LogError::Poisoned(_))));
    assert!(matches!(log.sync(3), Err(LogError::Poisoned(_))));
    assert!(matches!(append(&mut log, 2), Err(LogError::Poisoned(_))));
    assert_eq!(log.durable(), durable);
    assert_eq!(open(&disk).unwrap().1, changes(0..2));
}

#[test]
fn a_full_disk_poisons_the_log_and_loses_nothing_that_was_durable() {
    let disk = MemoryStorage::default();
    let (mut log, _) = open(&disk).unwrap();
    for number in 0..5 {
        append(&mut log, number).unwrap();
    }
    log.sync(0).unwrap();
    disk.set_faults(DiskFaults { appends_left: Some(0), ..DiskFaults::default() });
    for number in 5..9 {
        append(&mut log, number).unwrap();
    }
    assert!(matches!(log.sync(1), Err(LogError::Storage(_))));
    disk.set_faults(DiskFaults::default());
    let (_, told) = open(&disk).unwrap();
    assert!(told.len() >= 5 && told == changes(0..told.len() as u64));
}

#[test]
fn no_more_is_at_risk_than_the_policy_says() {
    let disk = MemoryStorage::default();
    let bound = Policy { loss_records_max: 7, loss_us_max: 500, sync_us: 100, ..policy() };
    let (mut log, _) = open_with(&disk, bound).unwrap();
    disk.set_faults(DiskFaults { sync_looks: 10, ..DiskFaults::default() });
    let (mut number, mut waited) = (0, 0);
    for now in 0..5_000 {
        if log.has_room(now) {
            append(&mut log, number).unwrap();
            number += 1;
        } else {
            waited += 1;
        }
        assert!(log.last() - log.durable() <= 7);
        log.turn(now).unwrap();
    }
    assert!(number > 100 && waited > 1_000, "{number} {waited}");
    // Nothing older than half a millisecond is lost either.
    let stuck = Policy { loss_records_max: 1 << 20, loss_us_max: 500, sync_us: 100, ..policy() };
    let disk = MemoryStorage::default();
    let (mut log, _) = open_with(&disk, stuck).unwrap();
    disk.set_faults(DiskFaults { sync_looks: 1 << 30, ..DiskFaults::default() });
    let accepted = (0..5_000).take_while(|now| {
        log.turn(*now).unwrap();
        log.has_room(*now) && log.append(Op::Lease { end: 1 }, *now).is_ok()
    });
    assert_eq!(accepted.count(), 500);
}

#[test]
fn records_that_come_while_a_sync_is_under_way_share_the_next() {
    let disk = MemoryStorage::default();
    let (mut log, _) = open_with(&disk, Policy { sync: true, ..policy() }).unwrap();
    let syncs = disk.syncs();
    disk.set_faults(DiskFaults { sync_looks: 9, ..DiskFaults::default() });
    for number in 0..100 {
        append(&mut log, number).unwrap();
        log.turn(number).unwrap();
    }
    assert_eq!(disk.syncs() - syncs, 9);
    assert!(log.durable() > 80);
}

/// Ten durable changes and ten that a dead process has only written, in the state that `die`
/// leaves.
fn ten_and_ten_of_the_dead(
    die: impl FnOnce(&MemoryStorage, &mut Log<MemoryStorage>),
) -> MemoryStorage {
    let disk = MemoryStorage::default();
    let (mut log, _) = open(&disk).unwrap();
    for number in 0..20 {
        append(&mut log, number).unwrap();
        if number == 9 {
            log.sync(0).unwrap();
        }
    }
    die(&disk, &mut log);
    disk.kill();
    disk.set_faults(DiskFaults::default());
    disk
}

/// The next process reads records that are not on the disk, goes on from them, and calls later
/// changes durable. Then the host loses its power.
fn goes_on_and_loses_nothing(disk: &MemoryStorage) {
    let (mut log, told) = open(disk).unwrap();
    assert_eq!(told, changes(0..20));
    assert_eq!(log.durable(), log.last());
    for number in 20..25 {
        append(&mut log, number).unwrap();
    }
    log.sync(0).unwrap();
    disk.lose_power(|| 3);
    assert_eq!(open(disk).unwrap().1, changes(0..25));
}

#[test]
fn pages_that_a_failed_sync_left_behind_are_not_taken_for_durable() {
    goes_on_and_loses_nothing(&ten_and_ten_of_the_dead(|disk, log| {
        disk.set_faults(DiskFaults { syncs_left: Some(0), ..DiskFaults::default() });
        assert!(matches!(log.sync(1), Err(LogError::Storage(_))));
    }));
}

#[test]
fn nor_are_those_that_the_disk_refused_when_nobody_was_there() {
    goes_on_and_loses_nothing(&ten_and_ten_of_the_dead(|disk, log| {
        log.turn(1_000).unwrap();
        disk.kill();
        disk.refuse_writes();
    }));
}

/// The next segment is there, durable and empty. The record that names it is not durable.
#[test]
fn nor_is_a_segment_whose_seal_could_not_be_written() {
    goes_on_and_loses_nothing(&ten_and_ten_of_the_dead(|disk, log| {
        log.turn(1_000).unwrap();
        disk.set_faults(DiskFaults { syncs_left: Some(2), ..DiskFaults::default() });
        assert!(matches!(log.begin_snapshot(1), Err(LogError::Storage(_))));
        assert_eq!(disk.clone().segments().unwrap(), [1, 2]);
    }));
}

/// A snapshot ends with a record that says so. If that record cannot be made durable the process
/// dies, but the next process reads the record. Nothing that the snapshot would replace may be
/// removed.
#[test]
fn a_snapshot_whose_end_could_not_be_written_replaces_nothing() {
    let mut disk = MemoryStorage::default();
    let (mut log, _) = open(&disk).unwrap();
    let (mut told, mut next) = (Changes::new(), 0);
    let change_some = |log: &mut Log<MemoryStorage>, told: &mut Changes, next: &mut u64| {
        for _ in 0..10 {
            append(log, *next).unwrap();
            told.push(change(*next));
            *next += 1;
        }
        log.sync(0).unwrap();
    };
    change_some(&mut log, &mut told, &mut next);
    snapshot(&mut log, &mut told, &mut next).unwrap();
    change_some(&mut log, &mut told, &mut next);
    let before = disk.segments().unwrap();
    // Two syncs are for the log's next segment and the seal, one for the part, one for the log.
    // Then comes the switch.
    disk.set_faults(DiskFaults { syncs_left: Some(4), ..DiskFaults::default() });
    let failed = snapshot(&mut log, &mut told, &mut next);
    assert!(matches!(&failed, Err(LogError::Storage(error)) if error.what == "syncing"));
    assert!(before.iter().all(|segment| disk.segments().unwrap().contains(segment)));
    disk.set_faults(DiskFaults::default());
    disk.kill();
    let (mut log, recovered) = open(&disk).unwrap();
    assert_eq!(state(&recovered), state(&told));
    change_some(&mut log, &mut told, &mut next);
    disk.lose_power(|| 3);
    assert_eq!(state(&open(&disk).unwrap().1), state(&told));
    // A recovery goes back to a snapshot that was made durable when its replacing was interrupted.
    let (mut log, _) = open(&disk).unwrap();
    disk.set_faults(DiskFaults { removes_left: Some(1), ..DiskFaults::default() });
    assert!(snapshot(&mut log, &mut told, &mut next).is_err());
    disk.set_faults(DiskFaults::default());
    disk.lose_power(|| 3);
    assert_eq!(state(&open(&disk).unwrap().1), state(&told));
}

/// A model of the whole table: the state after each record.
fn state(changes: &Changes) -> std::collections::BTreeMap<Vec<u8>, Vec<u8>> {
    let mut state = std::collections::BTreeMap::new();
    for (key, value) in changes {
        match value {
            Some(value) => state.insert(key.clone(), value.clone()),
            None => state.remove(key),
        };
    }
    state
}

/// Writes a snapshot, with changes in between. Returns whether it was finished.
fn snapshot(
    log: &mut Log<MemoryStorage>,
    told: &mut Changes,
    next: &mut u64,
) -> Result<(), LogError> {
    let mut snapshot = log.begin_snapshot(0)?;
    for key in 0..5 {
        let name = format!("key {key}").into_bytes();
        if let Some(value) = state(told).get(&name) {
            let change = Change::Put { value, version: Version::from_u64(1), expires_at_ms: None };
            log.add(&mut snapshot, Op::Change { key: &name, change })?;
        }
        // A change of a key that is in the snapshot already, or will be.
        append(log, *next)?;
        told.push(change(*next));
        *next += 1;
    }
    log.finish_snapshot(snapshot, 0)
}

#[test]
fn a_snapshot_takes_the_place_of_what_was_before() {
    let mut disk = MemoryStorage::default();
    let (mut log, _) = open_with(&disk, Policy { segment_bytes: 700, ..policy() }).unwrap();
    let (mut told, mut next) = (Changes::new(), 0);
    for _ in 0..4 {
        for _ in 0..30 {
            append(&mut log, next).unwrap();
            told.push(change(next));
            log.turn(next).unwrap();
            next += 1;
        }
        let before = disk.segments().unwrap().len();
        snapshot(&mut log, &mut told, &mut next).unwrap();
        assert!(disk.segments().unwrap().len() < before);
        assert_eq!(state(&open(&disk.clone()).unwrap().1), state(&told));
        drop(log);
        log = open_with(&disk, Policy { segment_bytes: 700, ..policy() }).unwrap().0;
    }
    // A damaged snapshot is not passed over: the log that it replaced is gone.
    let segments = disk.segments().unwrap();
    disk.flip(segments[0], HEADER_BYTES * 8 + 100);
    assert!(open(&disk).is_err());
}

proptest! {
    /// The power fails after any writes, syncs and compactions: the recovery reports the changes up
    /// to some moment, and at least the durable ones.
    #[test]
    fn what_is_lost_is_a_suffix_and_nothing_that_was_durable(
        lives in prop::collection::vec((1u64..60, any::<bool>(), 0u64..40, any::<u64>()), 1..6),
        segment_bytes in 200u64..2_000,
        sync_looks in 0u32..4,
    ) {
        let disk = MemoryStorage::default();
        let (mut told, mut next) = (Changes::new(), 0);
        for (appends, power, compact_at, seed) in lives {
            let (log, recovered) = open_with(&disk, Policy { segment_bytes, ..policy() })
                .map_err(|error| TestCaseError::fail(error.to_string()))?;
            let mut log = log;
            prop_assert_eq!(state(&recovered), state(&told));
            disk.set_faults(DiskFaults { sync_looks, ..DiskFaults::default() });
            let mut states = vec![(log.last(), state(&told), told.clone())];
            for step in 0..appends {
                append(&mut log, next).unwrap();
                told.push(change(next));
                states.push((log.last(), state(&told), told.clone()));
                next += 1;
                if step % 3 == 0 {
                    log.turn(step).unwrap();
                }
                if step == compact_at {
                    snapshot(&mut log, &mut told, &mut next).unwrap();
                    states.push((log.last(), state(&told), told.clone()));
                }
            }
            let (durable, written) = (log.durable(), log.written());
            drop(log);
            let mut random = seed;
            if power {
                disk.lose_power(|| {
                    random = random.wrapping_mul(0x9e37_79b9_7f4a_7c15).rotate_left(29) ^ 77;
                    random >> 8
                });
            } else {
                disk.kill();
            }
            disk.set_faults(DiskFaults::default());
            let (_, recovered) = open_with(&disk, Policy { segment_bytes, ..policy() })
                .map_err(|error| TestCaseError::fail(error.to_string()))?;
            let least = if power { durable } else { written };
            // A state lasts until the next one: it has to be the state at that moment or later.
            let lasts = |at: usize| states.get(at + 1).is_none_or(|(lsn, ..)| *lsn > least);
            let found =
                (0..states.len()).find(|at| lasts(*at) && states[*at].1 == state(&recovered));
            let Some(at) = found else {
                return Err(TestCaseError::fail("it is no state there was since then"));
            };
            told = states[at].2.clone();
        }
    }

    /// The storage fails at any of its steps: durable changes are there when it works again.
    #[test]
    fn a_disk_that_fails_anywhere_takes_nothing_that_was_durable(
        appends_left in 0u64..40, syncs_left in 0u64..20, which: bool, power: bool,
    ) {
        let disk = MemoryStorage::default();
        let policy = Policy { segment_bytes: 600, ..policy() };
        let (mut log, _) = open_with(&disk, policy).unwrap();
        let none = DiskFaults::default();
        disk.set_faults(if which {
            DiskFaults { appends_left: Some(appends_left), ..none }
        } else {
            DiskFaults { syncs_left: Some(syncs_left), ..none }
        });
        let (mut told, mut next, mut durable) = (Changes::new(), 0, 0);
        loop {
            let step = append(&mut log, next).and_then(|_| {
                told.push(change(next));
                next += 1;
                log.turn(next)?;
                if next.is_multiple_of(20) { snapshot(&mut log, &mut told, &mut next)?; }
                Ok(())
            });
            if step.is_err() {
                break;
            }
            if log.durable() == log.last() {
                durable = told.len();
            }
        }
        drop(log);
        if power { disk.lose_power(|| 3) } else { disk.kill() }
        disk.set_faults(none);
        let recovered = open_with(&disk, policy)
            .map_err(|error| TestCaseError::fail(error.to_string()))?.1;
        let mut prefix = told[..durable].to_vec();
        let mut rest = told[durable..].iter();
        while state(&prefix) != state(&recovered) {
            let Some(one) = rest.next() else {
                return Err(TestCaseError::fail("something that was durable is gone"));
            };
            prefix.push(one.clone());
        }
    }

    /// One process follows another. Each reads the bytes that the last one left in the page cache
    /// or on the disk, goes on, and dies of a failure of the disk, by a kill, or with the host;
    /// some die before they have read everything. Changes that a process has read are durable from
    /// then on.
    #[test]
    fn what_was_read_once_stays(
        lives in prop::collection::vec(
            (0u64..30, 0u64..25, 0u32..5, any::<[bool; 3]>(), any::<u64>()), 1..8,
        ),
        segment_bytes in 200u64..2_000,
    ) {
        let (disk, none) = (MemoryStorage::default(), DiskFaults::default());
        let policy = Policy { segment_bytes, ..policy() };
        let (mut told, mut durable, mut next) = (Changes::new(), 0, 0);
        for (left, steps, which, [early, refuses, power], seed) in lives {
            let faults = match which {
                0 => DiskFaults { appends_left: Some(left), ..none },
                1 => DiskFaults { syncs_left: Some(left), ..none },
                2 => DiskFaults { removes_left: Some(left / 4), ..none },
                _ => none,
            };
            disk.set_faults(if early { faults } else { none });
            match open_with(&disk, policy) {
                Ok((mut log, recovered)) => {
                    let mut prefixes = durable..=told.len();
                    let found =
                        prefixes.find(|len| state(&told[..*len].to_vec()) == state(&recovered));
                    let Some(found) = found else {
                        return Err(TestCaseError::fail("something that was durable is gone"));
                    };
                    told.truncate(found);
                    durable = found;
                    disk.set_faults(faults);
                    for step in 0..steps {
                        let done = append(&mut log, next).and_then(|_| {
                            told.push(change(next));
                            next += 1;
                            if step % 3 == 0 { log.turn(next)?; }
                            if step % 8 == 7 { snapshot(&mut log, &mut told, &mut next)?; }
                            Ok(())
                        });
                        if done.is_err() {
                            break;
                        }
                        if log.durable() == log.last() {
                            durable = told.len();
                        }
                    }
                }
                Err(LogError::Storage(_)) if early => (),
                Err(error) => return Err(TestCaseError::fail(error.to_string())),
            }
            disk.kill();
            if refuses {
                disk.refuse_writes();
            }
            if power {
                let mut random = seed;
                disk.lose_power(|| {
                    random = random.wrapping_mul(0x9e37_79b9_7f4a_7c15).rotate_left(29) ^ 77;
                    random >> 8
                });
            }
        }
    }
}
