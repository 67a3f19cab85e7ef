//! A model of a disk and an operating system that are as bad as they are allowed to be.
//!
//! * After a loss of power a name that was made is gone, with everything in it, unless its folder
//!   was synced since. A name that was removed is back.
//! * Appended bytes are gone, unless the file was synced since.
//! * The disk may refuse to write appended bytes. They can be read as before and count as written,
//!   so no sync tries again. Each handle that has the file open reports the refusal once. If there
//!   is none, the refusal is forgotten with the file ([`Model::refuse`]).

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, Weak};

use super::files::{Files, Handle};

/// The disk. All clones are the same disk.
#[derive(Clone, Debug)]
pub(super) struct Model(Arc<Mutex<Disk>>);

#[derive(Debug)]
struct Disk {
    folders: BTreeSet<PathBuf>,
    files: BTreeMap<PathBuf, Inode>,
    /// Names that were made or removed since their folder was synced, with the removed file.
    unsynced: BTreeMap<PathBuf, Option<Inode>>,
    /// Folders that users may pass through but not open.
    closed: BTreeSet<PathBuf>,
}

#[derive(Debug, Default)]
struct Inode {
    bytes: Vec<u8>,
    /// A sync would write the bytes from here on.
    clean: usize,
    /// Earlier bytes that are not on the disk.
    holes: Vec<Range<usize>>,
    openers: Vec<Weak<Open>>,
}

/// An open file, which its duplicates share.
#[derive(Debug)]
struct Open {
    path: PathBuf,
    /// Whether a refusal has still to be reported.
    refused: AtomicBool,
}

#[derive(Debug)]
pub(super) struct ModelHandle {
    disk: Model,
    open: Arc<Open>,
}

impl Model {
    /// Makes a disk with the root and `folders`, which are durable.
    pub fn new(folders: &[&str]) -> Self {
        let folders = ["/"].iter().chain(folders).map(PathBuf::from).collect();
        let (files, unsynced) = (BTreeMap::new(), BTreeMap::new());
        Self(Arc::new(Mutex::new(Disk { folders, files, unsynced, closed: BTreeSet::new() })))
    }

    /// From now on the folder cannot be opened.
    pub fn close(&self, folder: &str) {
        self.disk().closed.insert(folder.into());
    }

    /// The names of all open files.
    pub fn open_files(&self) -> Vec<PathBuf> {
        let disk = self.disk();
        let files = disk.files.iter();
        files.filter(|(_, file)| file.is_open()).map(|(path, _)| path.clone()).collect()
    }

    /// The disk refuses all bytes that it has not written yet.
    pub fn refuse(&self) {
        for file in self.disk().files.values_mut() {
            if file.clean == file.bytes.len() {
                continue;
            }
            file.holes.push(file.clean..file.bytes.len());
            file.clean = file.bytes.len();
            for open in file.openers.iter().filter_map(Weak::upgrade) {
                open.refused.store(true, Ordering::Relaxed);
            }
        }
    }

    pub fn lose_power(&self) {
        let disk = &mut *self.disk();
        for (path, removed) in std::mem::take(&mut disk.unsynced) {
            disk.folders.retain(|folder| !folder.starts_with(&path));
            disk.files.retain(|file, _| !file.starts_with(&path));
            disk.files.extend(removed.map(|inode| (path, inode)));
        }
        for file in disk.files.values_mut() {
            file.bytes.truncate(file.clean);
            while let Some(hole) = file.holes.pop_if(|hole| hole.end == file.bytes.len()) {
                file.bytes.truncate(hole.start);
            }
            for hole in std::mem::take(&mut file.holes) {
                file.bytes[hole].fill(0);
            }
            file.clean = file.bytes.len();
        }
    }

    fn disk(&self) -> MutexGuard<'_, Disk> {
        self.0.lock().expect("nothing panics while it has this")
    }

    fn handle(&self, path: &Path) -> ModelHandle {
        let open = Arc::new(Open { path: path.into(), refused: AtomicBool::new(false) });
        ModelHandle { disk: self.clone(), open }
    }
}

impl Disk {
    /// Returns whether a new name may be made.
    fn make(&mut self, path: &Path) -> io::Result<()> {
        if self.folders.contains(path) || self.files.contains_key(path) {
            return Err(io::ErrorKind::AlreadyExists.into());
        }
        let parent = path.parent().expect("the root is there");
        if !self.folders.contains(parent) {
            return Err(io::ErrorKind::NotFound.into());
        }
        self.unsynced.entry(path.into()).or_insert(None);
        Ok(())
    }
}

impl Inode {
    fn is_open(&self) -> bool {
        self.openers.iter().any(|open| open.strong_count() > 0)
    }
}

impl Files for Model {
    type Handle = ModelHandle;

    fn make_folder(&self, path: &Path) -> io::Result<()> {
        let mut disk = self.disk();
        disk.make(path)?;
        disk.folders.insert(path.into());
        Ok(())
    }

    fn real_path(&self, path: &Path) -> io::Result<PathBuf> {
        Ok(path.into())
    }

    fn file_system(&self, path: &Path) -> io::Result<u64> {
        // The root is in another file system.
        Ok(u64::from(path != Path::new("/")))
    }

    fn open_folder(&self, path: &Path) -> io::Result<ModelHandle> {
        let disk = self.disk();
        if disk.closed.contains(path) {
            return Err(io::ErrorKind::PermissionDenied.into());
        }
        let there = disk.folders.contains(path);
        there.then(|| self.handle(path)).ok_or(io::ErrorKind::NotFound.into())
    }

    fn create(&self, path: &Path) -> io::Result<ModelHandle> {
        let (mut disk, handle) = (self.disk(), self.handle(path));
        disk.make(path)?;
        let openers = vec![Arc::downgrade(&handle.open)];
        disk.files.insert(path.into(), Inode { openers, ..Inode::default() });
        Ok(handle)
    }

    fn read(&self, path: &Path) -> io::Result<Vec<u8>> {
        let bytes = self.disk().files.get(path).map(|file| file.bytes.clone());
        bytes.ok_or(io::ErrorKind::NotFound.into())
    }

    fn names(&self, folder: &Path) -> io::Result<Vec<String>> {
        let disk = self.disk();
        let within = disk.files.keys().filter(|path| path.parent() == Some(folder));
        let names = within.filter_map(|path| path.file_name()?.to_str().map(String::from));
        Ok(names.collect())
    }

    fn remove(&self, path: &Path) -> io::Result<()> {
        let mut disk = self.disk();
        let file = disk.files.remove(path).ok_or(io::ErrorKind::NotFound)?;
        match disk.unsynced.get(path) {
            None => drop(disk.unsynced.insert(path.into(), Some(file))),
            Some(None) => drop(disk.unsynced.remove(path)),
            // A loss of power brings back the file that was there before.
            Some(Some(_)) => (),
        }
        Ok(())
    }
}

impl Handle for ModelHandle {
    fn append(&self, bytes: &[u8]) -> io::Result<()> {
        let mut disk = self.disk.disk();
        let file = disk.files.get_mut(&self.open.path).ok_or(io::ErrorKind::NotFound)?;
        file.bytes.extend_from_slice(bytes);
        Ok(())
    }

    fn sync_data(&self) -> io::Result<()> {
        let mut disk = self.disk.disk();
        if self.open.refused.swap(false, Ordering::Relaxed) {
            return Err(io::Error::other("the disk refused it"));
        }
        let file = disk.files.get_mut(&self.open.path).ok_or(io::ErrorKind::NotFound)?;
        file.clean = file.bytes.len();
        Ok(())
    }

    fn sync_names(&self) -> io::Result<()> {
        let folder = Some(&*self.open.path);
        self.disk.disk().unsynced.retain(|path, _| path.parent() != folder);
        Ok(())
    }

    fn sync_file_system(&self) -> io::Result<()> {
        self.disk.disk().unsynced.clear();
        Ok(())
    }

    fn share(&self) -> io::Result<Self> {
        Ok(Self { disk: self.disk.clone(), open: self.open.clone() })
    }
}
