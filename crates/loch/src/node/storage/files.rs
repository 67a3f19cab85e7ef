//! The operations of the operating system that segments on a disk need.
//!
//! They are behind a trait because a test cannot make an operating system do the worst that it is
//! allowed to do. The tests have a [`Files`] that forgets, after a loss of power, everything that
//! was not synced.

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

    /// Makes a folder in an existing folder, for its owner only.
    ///
    /// # Errors
    /// The operating system's errors; also if the folder exists.
    fn make_folder(&self, path: &Path) -> io::Result<()>;

    /// Resolves a path to one without links, from the root on.
    ///
    /// # Errors
    /// The operating system's errors.
    fn real_path(&self, path: &Path) -> io::Result<PathBuf>;

    /// The number of the file system that a path is in.
    ///
    /// # Errors
    /// The operating system's errors.
    fn file_system(&self, path: &Path) -> io::Result<u64>;

    /// Opens a folder, to sync which files were made and removed in it.
    ///
    /// # Errors
    /// The operating system's errors.
    fn open_folder(&self, path: &Path) -> io::Result<Self::Handle>;

    /// Makes a file to append to, for its owner only.
    ///
    /// # Errors
    /// The operating system's errors; also if the file exists.
    fn create(&self, path: &Path) -> io::Result<Self::Handle>;

    /// Reads all bytes of a file.
    ///
    /// # Errors
    /// The operating system's errors.
    fn read(&self, path: &Path) -> io::Result<Vec<u8>>;

    /// The names in a folder.
    ///
    /// # Errors
    /// The operating system's errors.
    fn names(&self, folder: &Path) -> io::Result<Vec<String>>;

    /// Removes a file.
    ///
    /// # Errors
    /// The operating system's errors.
    fn remove(&self, path: &Path) -> io::Result<()>;
}

/// An open file or folder. If appended bytes could not be written, the next sync through each
/// handle that was open at that time reports it. A handle that was opened later may not report it.
pub trait Handle: Debug + Send + Sized + 'static {
    /// Appends all bytes.
    ///
    /// # Errors
    /// The operating system's errors.
    fn append(&self, bytes: &[u8]) -> io::Result<()>;

    /// Makes the appended bytes of a file durable.
    ///
    /// # Errors
    /// The operating system's errors.
    fn sync_data(&self) -> io::Result<()>;

    /// Makes durable which files were made and removed in a folder.
    ///
    /// # Errors
    /// The operating system's errors.
    fn sync_names(&self) -> io::Result<()>;

    /// Makes everything in its file system durable.
    ///
    /// # Errors
    /// The operating system's errors.
    fn sync_file_system(&self) -> io::Result<()>;

    /// Duplicates the handle. Only one of the two reports an error.
    ///
    /// # Errors
    /// The operating system's errors.
    fn share(&self) -> io::Result<Self>;
}

/// The operating system's files.
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
        // Another kind of file is an error. The flag keeps the call from waiting, as for a writer
        // of a FIFO.
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
            // A name that is not text is not a segment's.
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
