//! The node's region file. It is made once, and every later start takes it over.
//!
//! # Invariants
//! 1. A region file of the configured name is complete: the node makes it under another name, and
//!    renames it when its header is written.
//! 2. One live node owns a region file and holds a lock on it. The lock is on a descriptor that no
//!    client gets, since a lock lasts as long as any copy of its descriptor.
//! 3. A file that does not fit is an error. No file is ever wiped.
//! 4. Only the node's user can have made the file, and only that user can open it: see
//!    [`crate::private`].
//! 5. The sessions of a new region have other numbers than the sessions of a region that was in its
//!    place. Workers of other nodes know sessions by number, together with their last answers.
//! 6. The stamps of a new region begin at random, so no version, tag or generation of a region that
//!    was in its place comes again: words of other nodes may still name them.
//!
//! # Faults
//! A node that dies while it makes its region leaves a file `….new`, which the next start removes.
//! A node that dies later leaves the region as it is.

use std::fs::File;
use std::os::fd::OwnedFd;
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::Ordering;

use loch_engines::error::LayoutError;
use loch_engines::region::{
    DIRECTORY_OFFSET, FIRST_STAMPS, Header, INCARNATION_OFFSET, LAYOUT_VERSION, STAMP_OFFSET,
};
use loch_engines::registry::Map;
use loch_fabric::shm::{OnProgress, Region, RegionError, TMPFS_MAGIC};
use loch_fabric::{RegionId, RemoteAddr};
use rustix::fs::{RenameFlags, inotify};
use rustix::io::Errno;
use zerocopy::{FromBytes, IntoBytes};

use super::host_memory::check_host;
use super::lock::lock_within;
use crate::layout::config::prepare_folder;
use crate::layout::memory::{of_region, read_layout};
use crate::layout::plan::Plan;
use crate::limits::REGION_LOCK_TIMEOUT;
use crate::private::{self, reopen};
use crate::{ByteSize, Error, Result};

/// A region that this node owns.
pub(super) struct OwnedRegion {
    pub region: Arc<Region>,
    pub path: PathBuf,
    /// Whether the region's data was there before.
    pub warm: bool,
    /// The descriptors that clients get: not the one with the lock.
    pub writable: File,
    pub readable: File,
    /// Whether the region was made by a start that is not over, and no client has been let in. If
    /// the start fails or is stopped, the file is removed.
    pub in_vain: bool,
    /// The descriptor with the lock: invariant 2.
    lock: File,
}

impl Drop for OwnedRegion {
    fn drop(&mut self) {
        if self.in_vain {
            remove(self);
        }
    }
}

/// The configuration key of the file.
const FIELD: &str = "region";
/// How often the node tries a file that other nodes make and remove at the same time.
const TRIES: usize = 16;
/// The numbers at which the sessions of a region may begin: the lower half of all numbers.
const FIRST_SESSION_MASK: u64 = (1 << 39) - 1;

/// Takes over the region at `path`, or makes it, and then tells how many bytes have their pages.
///
/// # Errors
/// [`Error::RegionInUse`], [`Error::RegionMismatch`], [`Error::RegionDamaged`], [`Error::NoSpace`],
/// [`Error::NotPrivate`].
pub(super) fn acquire(
    path: &Path,
    plan: &Plan,
    on_progress: OnProgress<'_>,
) -> Result<OwnedRegion> {
    for _ in 0..TRIES {
        let owned = match private::open(path, FIELD)? {
            Some(file) => take_over(path, file, plan)?,
            None => create(path, plan, on_progress)?,
        };
        if let Some(owned) = owned {
            return Ok(owned);
        }
    }
    // Other nodes replace the file again and again.
    Err(in_use(path))
}

impl OwnedRegion {
    /// Returns whether the file is at its place. It may have been removed or renamed, and its name
    /// may be that of another node's file.
    pub fn is_in_place(&self) -> std::io::Result<bool> {
        let (there, ours) = (std::fs::symlink_metadata(&self.path)?, self.lock.metadata()?);
        Ok((there.dev(), there.ino()) == (ours.dev(), ours.ino()))
    }

    /// Returns a descriptor that can be read when something has happened to the file's name.
    pub fn watch(&self) -> Result<OwnedFd, Errno> {
        let watch = inotify::init(inotify::CreateFlags::CLOEXEC | inotify::CreateFlags::NONBLOCK)?;
        // The number of names is an attribute. The file itself stays while it is mapped.
        inotify::add_watch(
            &watch,
            &self.path,
            inotify::WatchFlags::ATTRIB | inotify::WatchFlags::MOVE_SELF,
        )?;
        Ok(watch)
    }
}

/// Removes the file. While the file has its name no other node takes it, since the lock is held.
pub(super) fn remove(owned: &OwnedRegion) {
    let removed = match owned.is_in_place() {
        Ok(true) => std::fs::remove_file(&owned.path),
        Ok(false) => Err(std::io::Error::other("it is another file by now")),
        Err(error) => Err(error),
    };
    if let Err(error) = removed {
        tracing::warn!(path = %owned.path.display(), %error, "the region file stays");
    }
}

/// Locks a file that is there and checks it. Returns `None` if the file was replaced meanwhile.
fn take_over(path: &Path, file: File, plan: &Plan) -> Result<Option<OwnedRegion>> {
    if !lock(&file, path)? {
        return Ok(None);
    }
    let bytes = file.metadata().map_err(Error::os("stat", path))?.len();
    check_length(&file, bytes, path)?;
    let region =
        Region::from_fd(reopen(&file, path, true)?.into(), bytes, true).map_err(of_region(path))?;
    let (header, tables) = read_layout(&region).map_err(|error| match error {
        LayoutError::Version { found, .. } => Error::RegionVersion {
            path: path.into(),
            have: found.into(),
            want: LAYOUT_VERSION.into(),
        },
        other => Error::RegionDamaged { path: path.into(), what: other.to_string() },
    })?;
    if let Some(difference) = plan.difference(&header, &tables) {
        return Err(Error::RegionMismatch {
            path: path.into(),
            field: difference.field,
            have: difference.have,
            want: difference.want,
        });
    }
    own(path, file, region, true).map(Some)
}

/// Checks the length. A file that is shorter than its header says was truncated, and access to the
/// missing part would kill the process.
fn check_length(file: &File, bytes: u64, path: &Path) -> Result<()> {
    let damaged = |what: String| Error::RegionDamaged { path: path.into(), what };
    let mut head = [0; size_of::<Header>()];
    if bytes < head.len() as u64 {
        return Err(damaged(format!("it has only {bytes} bytes")));
    }
    file.read_exact_at(&mut head, 0).map_err(Error::os("read", path))?;
    let header = Header::read_from_bytes(&head).expect("as many bytes as a header has");
    let valid = Header::parse(&head, header.region_bytes).is_ok();
    if valid && header.region_bytes != bytes {
        return Err(damaged(format!(
            "it has {bytes} bytes, its header says {}: it was truncated or extended",
            header.region_bytes
        )));
    }
    Ok(())
}

/// Makes the file under another name and renames it. Returns `None` if another file has appeared
/// meanwhile.
fn create(path: &Path, plan: &Plan, on_progress: OnProgress<'_>) -> Result<Option<OwnedRegion>> {
    let new = unfinished(path);
    let region = match Region::create_watched(&new, plan.header.region_bytes, on_progress) {
        Err(RegionError::Exists { .. }) => {
            remove_stale(&new)?;
            return Ok(None);
        }
        made => made.map_err(of_region(path))?,
    };
    // The name may be that of another file by now, so the descriptor is opened again.
    let file = reopen(region.fd(), &new, true).inspect_err(|_| remove_unfinished(&region, &new))?;
    // Before the lock is held another node may take the file for a dead node's and remove it.
    if !lock(&file, &new)? {
        return Ok(None);
    }
    format(&region, plan).inspect_err(|_| remove_unfinished(&region, &new))?;
    let here = rustix::fs::CWD;
    match rustix::fs::renameat_with(here, &new, here, path, RenameFlags::NOREPLACE) {
        Ok(()) => own(path, file, region, false).map(Some),
        Err(Errno::EXIST) => {
            std::fs::remove_file(&new).map_err(Error::os("remove", &new))?;
            Ok(None)
        }
        Err(error) => {
            remove_unfinished(&region, &new);
            Err(Error::os("rename", &new)(error))
        }
    }
}

/// Removes the file of a region that cannot be finished. The caller has the error that matters, and
/// the next start removes a file that stays.
fn remove_unfinished(region: &Region, new: &Path) {
    let there = std::fs::symlink_metadata(new).ok().map(|there| (there.dev(), there.ino()));
    let ours = rustix::fs::fstat(region.fd()).ok().map(|ours| (ours.st_dev, ours.st_ino));
    if there.is_some() && there == ours {
        let _ = std::fs::remove_file(new);
    }
}

/// Writes header and directory into a region of zeros.
pub(crate) fn format(region: &Region, plan: &Plan) -> Result<()> {
    let mut random = [[0; 8]; 3];
    rustix::rand::getrandom(random.as_flattened_mut(), rustix::rand::GetRandomFlags::empty())
        .map_err(Error::os("draw random bytes for", Path::new("the region")))?;
    let [identity, session, stamp] = random.map(u64::from_le_bytes);
    let header = Header { identity: identity | 1, ..plan.header }.sealed();
    // Invariant 5.
    let counter = region.word(INCARNATION_OFFSET);
    counter.store(session & FIRST_SESSION_MASK, Ordering::Relaxed);
    // Invariant 6.
    region.word(STAMP_OFFSET).store(stamp % FIRST_STAMPS, Ordering::Relaxed);
    for table in &plan.tables {
        let at = RemoteAddr::new(RegionId(0), table.offset);
        let places = vec![(at, header.sessions); header.nodes.into()];
        let map = Map::of(table, &places).expect("it was planned");
        for (offset, mailbox) in map.mailboxes() {
            mailbox.format(region, table.offset + offset);
        }
    }
    region.copy_in(DIRECTORY_OFFSET, plan.tables.as_bytes());
    region.copy_in(0, header.as_bytes());
    Ok(())
}

/// Makes a value of a region whose file is locked.
fn own(path: &Path, lock: File, region: Region, warm: bool) -> Result<OwnedRegion> {
    Ok(OwnedRegion {
        region: Arc::new(region),
        path: path.into(),
        warm,
        writable: reopen(&lock, path, true)?,
        readable: reopen(&lock, path, false)?,
        in_vain: false,
        lock,
    })
}

/// The name that a region has while it is made.
fn unfinished(path: &Path) -> PathBuf {
    let mut name = path.as_os_str().to_owned();
    name.push(".new");
    name.into()
}

/// Removes the file of a node that died while it made its region.
fn remove_stale(new: &Path) -> Result<()> {
    let Some(file) = private::open(new, FIELD)? else {
        return Ok(());
    };
    if lock(&file, new)? {
        tracing::warn!(path = %new.display(), "removing the region of a node that died while starting");
        std::fs::remove_file(new).map_err(Error::os("remove", new))?;
    }
    Ok(())
}

/// Locks a file. Returns whether the file still has that name.
fn lock(file: &File, path: &Path) -> Result<bool> {
    if !lock_within(file, REGION_LOCK_TIMEOUT).map_err(Error::os("lock", path))? {
        return Err(in_use(path));
    }
    let ours = file.metadata().map_err(Error::os("stat", path))?;
    let there = std::fs::symlink_metadata(path);
    Ok(there.is_ok_and(|there| (there.dev(), there.ino()) == (ours.dev(), ours.ino())))
}

/// Checks that there is a region, or room for it, before tens of gigabytes are filled in vain.
///
/// # Errors
/// [`Error::NoSpace`], [`Error::HostMemory`], [`Error::NotPrivate`].
pub(super) fn check_space(path: &Path, bytes: u64) -> Result<()> {
    prepare_folder(path, FIELD)?;
    if private::open(path, FIELD)?.is_some() {
        return Ok(());
    }
    remove_stale(&unfinished(path))?;
    let dir = path.parent().unwrap_or(Path::new("/"));
    let system = rustix::fs::statfs(dir).map_err(Error::os("stat", dir))?;
    // A file system in memory may have no bound of its own: then it has 0 blocks.
    let room = system.f_bavail.saturating_mul(system.f_bsize as u64);
    if system.f_blocks > 0 && room < bytes {
        let (size, free) = (ByteSize::new(bytes), Some(ByteSize::new(room)));
        return Err(Error::NoSpace { path: path.into(), size, free });
    }
    if system.f_type as u64 == TMPFS_MAGIC { check_host(bytes) } else { Ok(()) }
}

fn in_use(path: &Path) -> Error {
    Error::RegionInUse { path: path.into() }
}
