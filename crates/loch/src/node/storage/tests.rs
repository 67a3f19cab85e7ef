//! The engines' log on files: the files of a real folder, and the files of a disk that forgets.

use std::fs::OpenOptions;

use super::model::Model;
use super::*;
use loch_engines::log::{Change, Log, LogError, Op, Policy, recover};
use loch_engines::operation::Version;

type Opened<F> = Result<(Log<FileStorage<F>>, Vec<u8>), LogError>;

fn open(folder: &Path, policy: Policy) -> Opened<System> {
    open_over(System, folder, policy)
}

fn open_over<F: Files>(files: F, folder: &Path, policy: Policy) -> Opened<F> {
    let mut told = Vec::new();
    let storage = FileStorage::over(files, folder).expect("the folder is there");
    let (log, _) = recover(storage, 5, policy, |one| {
        told.push(one.key[0]);
        Ok::<(), LogError>(())
    })?;
    Ok((log, told))
}

/// Turns until all records are durable.
fn settle<F: Files>(log: &mut Log<FileStorage<F>>) {
    let mut now_us = 1 << 40;
    while log.durable() < log.last() {
        log.turn(now_us).unwrap();
        now_us += 1_000_000;
        std::thread::yield_now();
    }
}

fn append<F: Files>(log: &mut Log<FileStorage<F>>, key: u8) -> u64 {
    let change =
        Change::Put { value: &[key; 100], version: Version::from_u64(1), expires_at_ms: None };
    log.append(Op::Change { key: &[key], change }, 0).unwrap()
}

#[test]
fn logged_records_are_told_after_a_restart() {
    let folder = tempfile::tempdir().unwrap();
    let policy = Policy { segment_bytes: 1_000, ..Policy::default() };
    for round in 0..4u8 {
        let (mut log, told) = open(folder.path(), policy).unwrap();
        assert_eq!(told, (0..round * 20).collect::<Vec<_>>());
        for key in round * 20..round * 20 + 20 {
            append(&mut log, key);
            if key % 4 == 0 {
                settle(&mut log);
            }
        }
        log.sync(0).unwrap();
    }
    let mut files = FileStorage::open(folder.path()).unwrap();
    assert!(files.segments().unwrap().len() > 8);
}

#[test]
fn a_sync_in_the_background_ends() {
    let folder = tempfile::tempdir().unwrap();
    let policy = Policy { sync: true, ..Policy::default() };
    let (mut log, _) = open(folder.path(), policy).unwrap();
    append(&mut log, 1);
    settle(&mut log);
    drop(log);
    assert_eq!(open(folder.path(), policy).unwrap().1, [1]);
}

#[test]
fn a_snapshot_replaces_files() {
    let folder = tempfile::tempdir().unwrap();
    let policy = Policy { segment_bytes: 1_000, ..Policy::default() };
    let (mut log, _) = open(folder.path(), policy).unwrap();
    (0..100).for_each(|key| {
        append(&mut log, key);
        if key % 4 == 0 {
            settle(&mut log);
        }
    });
    let mut snapshot = log.begin_snapshot(0).unwrap();
    let change = Change::Put { value: b"v", version: Version::from_u64(1), expires_at_ms: None };
    log.add(&mut snapshot, Op::Change { key: &[7], change }).unwrap();
    let files = || std::fs::read_dir(folder.path()).unwrap().count();
    let before = files();
    log.finish_snapshot(snapshot, 0).unwrap();
    assert!(before > 2 + 5, "{before} files");
    drop(log);
    assert_eq!(files(), 2);
    assert_eq!(open(folder.path(), policy).unwrap().1, [7]);
}

#[test]
fn a_torn_file_is_cut_and_other_files_are_left_alone() {
    let folder = tempfile::tempdir().unwrap();
    let (mut log, _) = open(folder.path(), Policy::default()).unwrap();
    (0..3).for_each(|key| {
        append(&mut log, key);
    });
    log.sync(0).unwrap();
    drop(log);
    std::fs::write(folder.path().join("notes.txt"), b"not a segment").unwrap();
    let file = folder.path().join(format!("{:0DIGITS$}{SUFFIX}", 1));
    let len = std::fs::metadata(&file).unwrap().len();
    OpenOptions::new().write(true).open(&file).unwrap().set_len(len - 3).unwrap();
    assert_eq!(open(folder.path(), Policy::default()).unwrap().1, [0, 1]);
    assert!(folder.path().join("notes.txt").exists());
    assert_eq!(open(folder.path(), Policy::default()).unwrap().1, [0, 1]);
}

#[test]
fn a_folder_that_cannot_be_written_poisons_the_log() {
    let folder = tempfile::tempdir().unwrap();
    let (mut log, _) = open(folder.path(), Policy::default()).unwrap();
    append(&mut log, 1);
    // The next segment cannot be made, because another file has its name.
    log.sync(0).unwrap();
    std::fs::write(folder.path().join(format!("{:0DIGITS$}{SUFFIX}", 2)), b"x").unwrap();
    assert!(matches!(log.begin_snapshot(0), Err(LogError::Storage(_))));
    assert!(matches!(log.sync(0), Err(LogError::Poisoned(_))));
}

const FOLDER: &str = "/var/lib/loch/node-0";

/// The records of a log in [`FOLDER`] after one process has logged something and the host has lost
/// its power.
fn told_after_a_loss_of_power(disk: &Model) -> Vec<u8> {
    let folder = Path::new(FOLDER);
    let (mut log, _) = open_over(disk.clone(), folder, Policy::default()).unwrap();
    append(&mut log, 1);
    log.sync(0).unwrap();
    drop(log);
    disk.lose_power();
    open_over(disk.clone(), folder, Policy::default()).unwrap().1
}

#[test]
fn a_folder_that_was_made_is_there_after_a_loss_of_power() {
    assert_eq!(told_after_a_loss_of_power(&Model::new(&["/var"])), [1]);
}

#[test]
fn a_folder_that_an_earlier_process_did_not_sync_is_there_after_a_loss_of_power() {
    for made in [1, 2, 3] {
        let disk = Model::new(&["/var"]);
        for folder in ["/var/lib", "/var/lib/loch", FOLDER].iter().take(made) {
            disk.make_folder(Path::new(folder)).unwrap();
        }
        assert_eq!(told_after_a_loss_of_power(&disk), [1], "{made}");
    }
}

#[test]
fn a_folder_in_one_that_cannot_be_opened_is_there_after_a_loss_of_power() {
    let disk = Model::new(&["/var"]);
    disk.close("/var");
    assert_eq!(told_after_a_loss_of_power(&disk), [1]);
}

/// Syncs and writes only when it is told to.
const LAZY: Policy = Policy {
    sync: false,
    write_bytes: 0,
    write_us: 0,
    sync_us: u64::MAX,
    loss_records_max: u64::MAX,
    loss_us_max: u64::MAX,
    segment_bytes: 10_000,
};

/// The log and a part of a snapshot are written by turns. If the log's file were closed meanwhile,
/// no sync would report the disk's refusal, and the next sync would succeed.
#[test]
fn a_refusal_to_write_the_log_while_a_snapshot_is_made_is_told() {
    let (disk, folder) = (Model::new(&["/var"]), Path::new(FOLDER));
    let (mut log, _) = open_over(disk.clone(), folder, LAZY).unwrap();
    let mut snapshot = log.begin_snapshot(0).unwrap();
    append(&mut log, 1);
    log.turn(0).unwrap();
    let change =
        Change::Put { value: &[7; 70_000], version: Version::from_u64(1), expires_at_ms: None };
    log.add(&mut snapshot, Op::Change { key: &[7], change }).unwrap();
    disk.refuse();
    assert!(matches!(log.sync(0), Err(LogError::Storage(_))));
    assert_eq!(log.durable() + 1, log.last());
    drop(log);
    // Bytes that can still be read are written again before a record counts as durable.
    let (log, told) = open_over(disk.clone(), folder, LAZY).unwrap();
    assert_eq!((told, log.durable()), (vec![1], log.last()));
    drop(log);
    disk.lose_power();
    assert_eq!(open_over(disk, folder, LAZY).unwrap().1, [1]);
}

#[test]
fn a_refusal_that_comes_before_a_sync_in_the_background_is_told() {
    let (disk, folder) = (Model::new(&["/var"]), Path::new(FOLDER));
    let policy = Policy { sync_us: 1_000, ..LAZY };
    let (mut log, _) = open_over(disk.clone(), folder, policy).unwrap();
    append(&mut log, 1);
    log.turn(0).unwrap();
    disk.refuse();
    let told = (1..).find_map(|now_ms| log.turn(now_ms * 1_000).err());
    assert!(matches!(told, Some(LogError::Storage(_))), "{told:?}");
    assert!(log.durable() < log.last());
}

#[test]
fn bytes_whose_refusal_no_process_heard_of_are_written_again() {
    let (disk, folder) = (Model::new(&["/var"]), Path::new(FOLDER));
    let (mut log, _) = open_over(disk.clone(), folder, LAZY).unwrap();
    append(&mut log, 1);
    log.turn(0).unwrap();
    drop(log);
    disk.refuse();
    let (mut log, told) = open_over(disk.clone(), folder, LAZY).unwrap();
    assert_eq!(told, [1]);
    append(&mut log, 2);
    log.sync(0).unwrap();
    drop(log);
    disk.lose_power();
    assert_eq!(open_over(disk, folder, LAZY).unwrap().1, [1, 2]);
}

/// A snapshot of many parts, and a log of many segments, need only a few descriptors.
#[test]
fn a_sealed_file_is_closed() {
    let (disk, folder) = (Model::new(&["/var"]), Path::new(FOLDER));
    let policy = Policy { segment_bytes: 1_000, ..LAZY };
    let (mut log, _) = open_over(disk.clone(), folder, policy).unwrap();
    let mut snapshot = log.begin_snapshot(0).unwrap();
    for key in 0..100 {
        append(&mut log, key);
        log.turn(0).unwrap();
        let change =
            Change::Put { value: &[key; 100], version: Version::from_u64(1), expires_at_ms: None };
        log.add(&mut snapshot, Op::Change { key: &[key], change }).unwrap();
        assert_eq!(disk.open_files().len(), 2, "{key}");
    }
    assert!(disk.names(folder).unwrap().len() > 20);
    log.finish_snapshot(snapshot, 0).unwrap();
    assert_eq!(disk.open_files().len(), 1);
    drop(log);
    disk.lose_power();
    let mut told = open_over(disk, folder, policy).unwrap().1;
    told.sort_unstable();
    told.dedup();
    assert_eq!(told, (0..100).collect::<Vec<_>>());
}
