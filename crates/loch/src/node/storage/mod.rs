//! Log segments as files of a directory: the engines' [`Storage`] on a disk.
//!
//! A sync runs in a thread of its own, so the server goes on while the disk works. A failure is
//! reported when the result is asked for, and the sync is never tried again: after a failed fsync
//! the pages that it could not write count as clean, and the next fsync would succeed without
//! writing them.
//!
//! # Invariants
//! 1. A segment's file is open from its creation until it is sealed, through one descriptor and its
//!    duplicates. The system may forget a file that no process has open, together with the fact
//!    that it could not be written. While a snapshot is made, two files are open: the log's and the
//!    snapshot part's.
//! 2. A file of an earlier process is read and removed, but never written.
//! 3. The folder and all folders on the way to it are durable before a file is made in the folder.
//!    The creation or removal of a file is durable before anything depends on it.

mod files;
#[cfg(test)]
mod model;
mod syncer;
#[cfg(test)]
mod tests;

use std::collections::BTreeMap;
use std::io;
use std::path::{Path, PathBuf};

use loch_engines::log::{Storage, StorageError};

use files::{Files, Handle, System};
use syncer::Syncer;

/// The end of the names of segments.
const SUFFIX: &str = ".log";
/// The digits of a segment's number in its name. They make names sort as numbers do.
const DIGITS: usize = 20;

/// A directory of segments. Its owner makes sure that no other process has it.
#[derive(Debug)]
pub struct FileStorage<F: Files = System> {
    files: F,
    folder: PathBuf,
    /// The directory itself. A sync of it makes durable which files were made and removed.
    listing: F::Handle,
    /// The segments that were made and not sealed yet.
    open: BTreeMap<u64, F::Handle>,
    syncer: Syncer<F::Handle>,
}

impl FileStorage {
    /// Opens the segments in `folder`. The folder, and all missing folders on the way to it, are
    /// made.
    ///
    /// # Errors
    /// The operating system's errors.
    pub fn open(folder: &Path) -> io::Result<Self> {
        Self::over(System, folder)
    }
}

impl<F: Files> FileStorage<F> {
    fn over(files: F, folder: &Path) -> io::Result<Self> {
        let listing = durable_folder(&files, folder)?;
        let syncer = Syncer::start()?;
        Ok(Self { files, folder: folder.into(), listing, open: BTreeMap::new(), syncer })
    }

    fn path(&self, segment: u64) -> PathBuf {
        self.folder.join(format!("{segment:0DIGITS$}{SUFFIX}"))
    }

    fn handle(&self, segment: u64) -> io::Result<&F::Handle> {
        let sealed = || io::Error::other("it was sealed, or an earlier process has made it");
        self.open.get(&segment).ok_or_else(sealed)
    }

    fn list(&self) -> io::Result<Vec<u64>> {
        let number = |name: String| {
            let digits = name.strip_suffix(SUFFIX).filter(|digits| digits.len() == DIGITS)?;
            digits.parse::<u64>().ok()
        };
        let names = self.files.names(&self.folder)?;
        let mut segments: Vec<u64> = names.into_iter().filter_map(number).collect();
        segments.sort_unstable();
        Ok(segments)
    }

    fn make(&mut self, segment: u64) -> io::Result<()> {
        let file = self.files.create(&self.path(segment))?;
        self.open.insert(segment, file);
        self.listing.sync_names()
    }

    fn unlink(&mut self, segment: u64) -> io::Result<()> {
        self.files.remove(&self.path(segment))?;
        self.open.remove(&segment);
        self.listing.sync_names()
    }
}

/// Opens a folder, and makes it if there is none. When this returns, the folder survives a loss of
/// power.
///
/// For that all parents are synced, not only those in which a folder was made now: an earlier
/// process may have died between making a folder and syncing its parent.
fn durable_folder<F: Files>(files: &F, folder: &Path) -> io::Result<F::Handle> {
    make_all(files, folder)?;
    let listing = files.open_folder(folder)?;
    let path = files.real_path(folder)?;
    let file_system = files.file_system(&path)?;
    for parent in path.ancestors().skip(1) {
        if files.file_system(parent)? != file_system {
            // The parent is in another file system and has no entry of this one.
            break;
        }
        match files.open_folder(parent) {
            Ok(parent) => parent.sync_names()?,
            // A user may pass through a folder without being able to open it, for example a home of
            // mode 711.
            Err(error) if error.kind() == io::ErrorKind::PermissionDenied => {
                listing.sync_file_system()?;
                break;
            }
            Err(error) => return Err(error),
        }
    }
    Ok(listing)
}

/// Makes a folder and all missing folders on the way to it.
fn make_all(files: &impl Files, folder: &Path) -> io::Result<()> {
    match files.make_folder(folder) {
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => Ok(()),
        Err(error) if error.kind() == io::ErrorKind::NotFound => {
            let parent = folder.parent().filter(|parent| !parent.as_os_str().is_empty());
            make_all(files, parent.ok_or(error)?)?;
            match files.make_folder(folder) {
                Err(error) if error.kind() == io::ErrorKind::AlreadyExists => Ok(()),
                made => made,
            }
        }
        made => made,
    }
}

fn failed(what: &'static str, segment: u64) -> impl Fn(io::Error) -> StorageError {
    move |error| StorageError { what, segment, reason: error.to_string() }
}

impl<F: Files> Storage for FileStorage<F> {
    fn segments(&mut self) -> Result<Vec<u64>, StorageError> {
        self.list().map_err(failed("listing the folder of", 0))
    }

    fn read(&mut self, segment: u64) -> Result<Vec<u8>, StorageError> {
        self.files.read(&self.path(segment)).map_err(failed("reading", segment))
    }

    fn create(&mut self, segment: u64) -> Result<(), StorageError> {
        self.make(segment).map_err(failed("creating", segment))
    }

    fn append(&mut self, segment: u64, bytes: &[u8]) -> Result<(), StorageError> {
        let written = self.handle(segment).and_then(|file| file.append(bytes));
        written.map_err(failed("appending to", segment))
    }

    fn begin_sync(&mut self, segment: u64) -> Result<(), StorageError> {
        let file = self.handle(segment).and_then(Handle::share);
        let begun = file.and_then(|file| self.syncer.begin(segment, file));
        begun.map_err(failed("syncing", segment))
    }

    fn is_synced(&mut self) -> Result<bool, StorageError> {
        let Some(segment) = self.syncer.under_way() else { return Ok(true) };
        let Some(result) = self.syncer.ended() else { return Ok(false) };
        result.map(|()| true).map_err(failed("syncing", segment))
    }

    fn sync(&mut self, segment: u64) -> Result<(), StorageError> {
        let synced = self.handle(segment).and_then(Handle::sync_data);
        synced.map_err(failed("syncing", segment))
    }

    fn seal(&mut self, segment: u64) -> Result<(), StorageError> {
        self.sync(segment)?;
        self.open.remove(&segment);
        Ok(())
    }

    fn remove(&mut self, segment: u64) -> Result<(), StorageError> {
        self.unlink(segment).map_err(failed("removing", segment))
    }
}
