//! Log segments as files of a directory: the engines' [`Storage`] on a disk.
//!
//! A sync that is begun runs in a thread of its own, so that the server goes on while the disk works.
//! Whatever goes wrong in it is told when it is asked for, and never tried again: after a failed
//! fsync the pages it could not write count as clean, and the next one would succeed for nothing.

use std::fs::{DirBuilder, File, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::mpsc::{Receiver, Sender, TryRecvError, channel};
use std::thread::JoinHandle;

use loch_engines::log::{Storage, StorageError};

use crate::private::{FILE_MODE, FOLDER_MODE};

/// What the names of segments end with.
const SUFFIX: &str = ".log";
/// Digits of a segment's number in its name, so that names sort as numbers do.
const DIGITS: usize = 20;

/// A directory of segments. Its owner makes sure that no other process has it.
#[derive(Debug)]
pub struct FileStorage {
    folder: PathBuf,
    /// The directory itself: what was made and removed in it is durable when it is synced.
    listing: File,
    /// The segment that was appended to last.
    open: Option<(u64, File)>,
    syncer: Syncer,
}

/// The thread that syncs.
#[derive(Debug)]
struct Syncer {
    jobs: Option<Sender<File>>,
    results: Receiver<io::Result<()>>,
    thread: Option<JoinHandle<()>>,
    /// The segment whose sync is under way.
    under_way: Option<u64>,
}

impl FileStorage {
    /// The segments in `folder`, which is made if there is none.
    ///
    /// # Errors
    /// The operating system's.
    pub fn open(folder: &Path) -> io::Result<Self> {
        DirBuilder::new().recursive(true).mode(FOLDER_MODE).create(folder)?;
        let listing = File::open(folder)?;
        Ok(Self { folder: folder.into(), listing, open: None, syncer: Syncer::start()? })
    }

    fn path(&self, segment: u64) -> PathBuf {
        self.folder.join(format!("{segment:0DIGITS$}{SUFFIX}"))
    }

    fn file(&mut self, segment: u64) -> io::Result<&mut File> {
        if self.open.as_ref().is_none_or(|(open, _)| *open != segment) {
            let file = OpenOptions::new().append(true).open(self.path(segment))?;
            self.open = Some((segment, file));
        }
        Ok(&mut self.open.as_mut().expect("it was opened above").1)
    }

    fn list(&self) -> io::Result<Vec<u64>> {
        let mut segments = Vec::new();
        for entry in std::fs::read_dir(&self.folder)? {
            let name = entry?.file_name();
            let digits = name.to_str().and_then(|name| name.strip_suffix(SUFFIX));
            segments
                .extend(digits.filter(|d| d.len() == DIGITS).and_then(|d| d.parse::<u64>().ok()));
        }
        segments.sort_unstable();
        Ok(segments)
    }

    fn make(&mut self, segment: u64) -> io::Result<()> {
        let mut options = OpenOptions::new();
        let file =
            options.append(true).create_new(true).mode(FILE_MODE).open(self.path(segment))?;
        self.open = Some((segment, file));
        self.listing.sync_all()
    }

    fn cut(&mut self, segment: u64, len: u64) -> io::Result<()> {
        let file = self.file(segment)?;
        file.set_len(len)?;
        file.sync_all()
    }

    fn unlink(&mut self, segment: u64) -> io::Result<()> {
        self.open.take_if(|(open, _)| *open == segment);
        std::fs::remove_file(self.path(segment))?;
        self.listing.sync_all()
    }
}

impl Syncer {
    fn start() -> io::Result<Self> {
        let (jobs, work) = channel::<File>();
        let (done, results) = channel();
        let syncs = move || {
            for file in work {
                if done.send(file.sync_data()).is_err() {
                    return;
                }
            }
        };
        let thread = std::thread::Builder::new().name("loch-log-sync".into()).spawn(syncs)?;
        Ok(Self { jobs: Some(jobs), results, thread: Some(thread), under_way: None })
    }
}

impl Drop for Syncer {
    fn drop(&mut self) {
        self.jobs.take();
        if let Some(thread) = self.thread.take() {
            // It ends with its last job, whose result nobody waits for.
            let _ = thread.join();
        }
    }
}

fn failed(what: &'static str, segment: u64) -> impl Fn(io::Error) -> StorageError {
    move |error| StorageError { what, segment, reason: error.to_string() }
}

impl Storage for FileStorage {
    fn segments(&mut self) -> Result<Vec<u64>, StorageError> {
        self.list().map_err(failed("listing the folder of", 0))
    }

    fn read(&mut self, segment: u64) -> Result<Vec<u8>, StorageError> {
        std::fs::read(self.path(segment)).map_err(failed("reading", segment))
    }

    fn create(&mut self, segment: u64) -> Result<(), StorageError> {
        self.make(segment).map_err(failed("creating", segment))
    }

    fn append(&mut self, segment: u64, bytes: &[u8]) -> Result<(), StorageError> {
        let written = self.file(segment).and_then(|file| file.write_all(bytes));
        written.map_err(failed("appending to", segment))
    }

    fn begin_sync(&mut self, segment: u64) -> Result<(), StorageError> {
        assert!(self.syncer.under_way.is_none(), "one sync at a time");
        let file = self.file(segment).and_then(|file| file.try_clone());
        let file = file.map_err(failed("syncing", segment))?;
        let jobs = self.syncer.jobs.as_ref().expect("it is taken when this is dropped");
        let gone =
            |_| failed("syncing", segment)(io::Error::other("the thread that syncs is gone"));
        jobs.send(file).map_err(gone)?;
        self.syncer.under_way = Some(segment);
        Ok(())
    }

    fn is_synced(&mut self) -> Result<bool, StorageError> {
        let Some(segment) = self.syncer.under_way else { return Ok(true) };
        let result = match self.syncer.results.try_recv() {
            Err(TryRecvError::Empty) => return Ok(false),
            Err(TryRecvError::Disconnected) => {
                Err(io::Error::other("the thread that syncs is gone"))
            }
            Ok(result) => result,
        };
        self.syncer.under_way = None;
        result.map(|()| true).map_err(failed("syncing", segment))
    }

    fn sync(&mut self, segment: u64) -> Result<(), StorageError> {
        let synced = self.file(segment).and_then(|file| file.sync_data());
        synced.map_err(failed("syncing", segment))
    }

    fn truncate(&mut self, segment: u64, len: u64) -> Result<(), StorageError> {
        self.cut(segment, len).map_err(failed("truncating", segment))
    }

    fn remove(&mut self, segment: u64) -> Result<(), StorageError> {
        self.unlink(segment).map_err(failed("removing", segment))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use loch_engines::log::{Change, Log, LogError, Op, Policy, recover};

    fn open(folder: &Path, policy: Policy) -> Result<(Log<FileStorage>, Vec<u8>), LogError> {
        let mut told = Vec::new();
        let storage = FileStorage::open(folder).expect("the folder is there");
        let (log, _) = recover(storage, 5, policy, |one| {
            told.push(one.key[0]);
            Ok::<(), LogError>(())
        })?;
        Ok((log, told))
    }

    /// Turns until everything is durable.
    fn settle(log: &mut Log<FileStorage>) {
        let mut now_us = 1 << 40;
        while log.durable() < log.last() {
            log.turn(now_us).unwrap();
            now_us += 1_000_000;
            std::thread::yield_now();
        }
    }

    fn append(log: &mut Log<FileStorage>, key: u8) -> u64 {
        let change = Change::Put { value: &[key; 100], version: 1, expires_at_ms: None };
        log.append(Op::Change { key: &[key], change }, 0).unwrap()
    }

    #[test]
    fn what_was_logged_is_told_after_a_restart() {
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
        let change = Change::Put { value: b"v", version: 1, expires_at_ms: None };
        log.add(&mut snapshot, Op::Change { key: &[7], change }).unwrap();
        assert!(log.finish_snapshot(snapshot, 0).unwrap() > 5);
        drop(log);
        assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 2);
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
        // The next segment cannot be made: something is in its place.
        log.sync(0).unwrap();
        std::fs::write(folder.path().join(format!("{:0DIGITS$}{SUFFIX}", 2)), b"x").unwrap();
        assert!(matches!(log.begin_snapshot(0), Err(LogError::Storage(_))));
        assert!(matches!(log.sync(0), Err(LogError::Poisoned(_))));
    }
}
