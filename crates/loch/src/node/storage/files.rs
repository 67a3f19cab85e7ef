//! What segments on a disk need of an operating system, and no more.
//!
//! Behind a trait, because what an operating system does not promise cannot be tested on one: the
//! tests have a [`Files`] that forgets, after a loss of power, what was not synced.

use crate::private::{FILE_MODE, FOLDER_MODE};
use std::fmt::Debug;
use std::fs::{DirBuilder, File, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use rustix::fs::OFlags;

/// Files and folders by their paths.
pub trait Files: Debug {
    /// A file or a folder that is open.
    type Handle: Handle;

    /// Makes a folder in one that exists, for its owner only.
    ///
    /// # Errors
    /// The operating system's; one that exists is an error.
    fn make_folder(&self, path: &Path) -> io::Result<()>;

    /// A path without links, from the root on.
    ///
    /// # Errors
    /// The operating system's.
    fn real_path(&self, path: &Path) -> io::Result<PathBuf>;

    /// The file system that a path is in.
    ///
    /// # Errors
    /// The operating system's.
    fn file_system(&self, path: &Path) -> io::Result<u64>;

    /// Opens a folder to be synced: what was made and removed in it is durable then.
    ///
    /// # Errors
    /// The operating system's.
    fn open_folder(&self, path: &Path) -> io::Result<Self::Handle>;

    /// Makes a file to be appended to, for its owner only.
    ///
    /// # Errors
    /// The operating system's; one that exists is an error.
    fn create(&self, path: &Path) -> io::Result<Self::Handle>;

    /// All bytes of a file.
    ///
    /// # Errors
    /// The operating system's.
    fn read(&self, path: &Path) -> io::Result<Vec<u8>>;

    /// The names of what is in a folder.
    ///
    /// # Errors
    /// The operating system's.
    fn names(&self, folder: &Path) -> io::Result<Vec<String>>;

    /// Removes a file.
    ///
    /// # Errors
    /// The operating system's.
    fn remove(&self, path: &Path) -> io::Result<()>;
}

/// What is open. A failure to write what was appended through it, or through another to the same
/// file, is told to the next sync by each that was open then, and to no other for sure.
pub trait Handle: Debug + Send + Sized + 'static {
    /// Appends all of it.
    ///
    /// # Errors
    /// The operating system's.
    fn append(&self, bytes: &[u8]) -> io::Result<()>;

    /// Makes durable what was appended to a file.
    ///
    /// # Errors
    /// The operating system's.
    fn sync_data(&self) -> io::Result<()>;

    /// Makes durable what was made and removed in a folder.
    ///
    /// # Errors
    /// The operating system's.
    fn sync_names(&self) -> io::Result<()>;

    /// Makes durable everything in its file system.
    ///
    /// # Errors
    /// The operating system's.
    fn sync_file_system(&self) -> io::Result<()>;

    /// The same once more: an error is told to one of the two.
    ///
    /// # Errors
    /// The operating system's.
    fn share(&self) -> io::Result<Self>;
}

/// The operating system's.
#[derive(Clone, Copy, Debug, Default)]
pub struct System;

impl Files for System {
    type Handle = File;

    fn make_folder(&self, path: &Path) -> io::Result<()> {
        DirBuilder::new().mode(FOLDER_MODE).create(path)
    }

    fn real_path(&self, path: &Path) -> io::Result<PathBuf> {
        path.canonicalize()
    }

    fn file_system(&self, path: &Path) -> io::Result<u64> {
        Ok(path.metadata()?.dev())
    }

    fn open_folder(&self, path: &Path) -> io::Result<File> {
        // Whatever else is there is an error, and nobody is waited for, as the writer of a FIFO is.
        File::options().read(true).custom_flags(OFlags::DIRECTORY.bits() as i32).open(path)
    }

    fn create(&self, path: &Path) -> io::Result<File> {
        OpenOptions::new().append(true).create_new(true).mode(FILE_MODE).open(path)
    }

    fn read(&self, path: &Path) -> io::Result<Vec<u8>> {
        std::fs::read(path)
    }

    fn names(&self, folder: &Path) -> io::Result<Vec<String>> {
        let mut names = Vec::new();
        for entry in std::fs::read_dir(folder)? {
            // Names that are no text are nobody's here.
            names.extend(entry?.file_name().into_string());
        }
        Ok(names)
    }

    fn remove(&self, path: &Path) -> io::Result<()> {
        std::fs::remove_file(path)
    }
}

impl Handle for File {
    fn append(&self, bytes: &[u8]) -> io::Result<()> {
        let mut file = self;
        file.write_all(bytes)
    }

    fn sync_data(&self) -> io::Result<()> {
        File::sync_data(self)
    }

    fn sync_names(&self) -> io::Result<()> {
        self.sync_all()
    }

    fn sync_file_system(&self) -> io::Result<()> {
        Ok(rustix::fs::syncfs(self)?)
    }

    fn share(&self) -> io::Result<File> {
        self.try_clone()
    }
}
