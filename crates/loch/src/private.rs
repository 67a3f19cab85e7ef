//! Files and folders that only one user can use.
//!
//! A node's memory is a file. It may be in a folder in which all users make files (`/dev/shm`,
//! `/tmp`), where anybody can take a name first. So no file is trusted because of its name.
//!
//! # Invariants
//! 1. A file is checked by its descriptor, before it is read or written: it is a regular file of
//!    this process's user, no other user may use it, and it has no other names.
//! 2. Opening a file follows no link and never waits.
//! 3. A file or folder of another user is left as it is.
//!
//! # Faults
//! Another user may make, link, replace and remove names at any moment, if the folder allows it.
//! Root can do anything.

use std::fs::{DirBuilder, File, Metadata, OpenOptions, Permissions};
use std::io::ErrorKind;
use std::os::fd::{AsFd, AsRawFd};
use std::os::unix::fs::{DirBuilderExt, FileTypeExt, MetadataExt, OpenOptionsExt, PermissionsExt};
use std::path::{Component, Path};
use std::sync::LazyLock;

use rustix::fs::OFlags;

use crate::{Error, Result};

/// The user of this process, who owns the files that it makes.
pub(crate) fn user() -> u32 {
    rustix::process::geteuid().as_raw()
}

/// Returns whether a user's number that the kernel tells may be that of any of several users. In a
/// user namespace the kernel shows all users who have no number there as one, the overflow user
/// (65534), whose number a user of the namespace may have as well.
pub(crate) fn stands_for_others(uid: u32) -> bool {
    /// The overflow user, if there are users without a number.
    static OVERFLOW: LazyLock<Option<u32>> = LazyLock::new(|| {
        let maps = std::fs::read_to_string("/proc/self/uid_map").unwrap_or_default();
        let told = std::fs::read_to_string("/proc/sys/kernel/overflowuid").ok();
        let overflow = told.and_then(|text| text.trim().parse().ok()).unwrap_or(OVERFLOW_UID);
        (!maps_all_users(&maps)).then_some(overflow)
    });
    *OVERFLOW == Some(uid)
}

/// Says so if a user's number may be that of any of several users: then their names help nobody.
pub(crate) fn unnumbered(uid: u32) -> Option<String> {
    stands_for_others(uid).then(|| in_namespace(uid))
}

fn in_namespace(uid: u32) -> String {
    format!(
        "this user namespace shows all users that have no number in it as user {uid}: use a \
         namespace that gives a number to the user of the node and of its clients \
         (docs/containers.md)"
    )
}

/// The overflow user, if the system does not tell.
const OVERFLOW_UID: u32 = 65534;

/// Returns whether the lines of a `uid_map` give each user a number.
fn maps_all_users(lines: &str) -> bool {
    let count = |line: &str| line.split_ascii_whitespace().nth(2)?.parse::<u64>().ok();
    // The last number of 32 bits is no user's.
    lines.lines().filter_map(count).sum::<u64>() >= u64::from(u32::MAX)
}

fn is_own(uid: u32) -> bool {
    uid == user() && !stands_for_others(uid)
}

/// The mode of a file that only its owner may use.
pub(crate) const FILE_MODE: u32 = 0o600;
/// The mode of a folder that only its owner may use.
pub(crate) const FOLDER_MODE: u32 = 0o700;
/// The bits of a mode by which other users than the owner may do something.
const OTHERS: u32 = 0o077;
/// The bits of a mode by which other users may change something.
const OTHERS_WRITE: u32 = 0o022;
/// The bit of a folder in which all users make files, such as `/tmp`.
const STICKY: u32 = 0o1000;
/// The remedy for a folder that others use by right: to close or to remove it would break the host.
const LEAVE_IT: &str = "leave it as it is, and give another socket (`--socket` or LOCH_SOCKET), or \
                        set XDG_RUNTIME_DIR to a folder of this user alone";
/// The user who can do anything.
pub(crate) const ROOT: u32 = 0;

/// The kind that a file is expected to have.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    File,
    Folder,
}

/// Opens the file at `path` for reading and writing. Returns `None` if there is no file. `field` is
/// the configuration key of the file.
///
/// # Errors
/// [`Error::NotPrivate`], [`Error::Os`].
pub(crate) fn open(path: &Path, field: &'static str) -> Result<Option<File>> {
    match File::options().read(true).write(true).custom_flags(careful(OFlags::empty())).open(path) {
        Ok(file) => {
            let there = file.metadata().map_err(Error::os("stat", path))?;
            check(&there, Kind::File, path, field, OTHERS)?;
            Ok(Some(file))
        }
        Err(error) if error.kind() == ErrorKind::NotFound => Ok(None),
        Err(error) => Err(explained(error, "open", Kind::File, path, field)),
    }
}

/// Opens the file at `path`, and makes it if there is none. Other users may have been able to read
/// it, since it holds no secret.
///
/// # Errors
/// As [`open`].
pub(crate) fn open_lock(path: &Path, field: &'static str) -> Result<File> {
    let mut options = OpenOptions::new();
    options.read(true).write(true).create(true).truncate(false).mode(FILE_MODE);
    let opened = options.custom_flags(careful(OFlags::empty())).open(path);
    let file = opened.map_err(|error| explained(error, "open", Kind::File, path, field))?;
    own_alone(&file, Kind::File, path, field)?;
    Ok(file)
}

/// Makes the folder at `path` if there is none, and removes the permissions of other users.
///
/// # Errors
/// [`Error::NotPrivate`] if it is another user's, or others could have put a file into it;
/// [`Error::Os`].
pub(crate) fn make_folder(path: &Path, field: &'static str) -> Result<()> {
    match DirBuilder::new().mode(FOLDER_MODE).create(path) {
        Err(error) if error.kind() != ErrorKind::AlreadyExists => {
            let cause = format!("{error}; choose another place with {field}");
            return Err(Error::Os { action: "make", path: path.into(), cause });
        }
        _ => (),
    }
    let flags = careful(OFlags::DIRECTORY);
    let opened = File::options().read(true).custom_flags(flags).open(path);
    let folder = opened.map_err(|error| explained(error, "open", Kind::Folder, path, field))?;
    own_alone(&folder, Kind::Folder, path, field)
}

/// Opens a file for reading that the configuration names; links are allowed. Any other kind of
/// file, such as a FIFO, is an error and does not make the call wait.
///
/// # Errors
/// The operating system's errors.
pub(crate) fn open_named(path: &Path) -> std::io::Result<File> {
    let flags = OFlags::NONBLOCK.bits() as i32;
    let file = File::options().read(true).custom_flags(flags).open(path)?;
    let there = file.metadata()?;
    if there.is_file() {
        return Ok(file);
    }
    Err(std::io::Error::other(format!("it is {}, not a regular file", name_of(&there))))
}

/// Makes the folder at `path` and all missing folders on the way to it, for this process's user
/// only. Existing folders are left as they are.
///
/// # Errors
/// [`Error::Os`].
pub(crate) fn make_folders(path: &Path) -> Result<()> {
    let made = DirBuilder::new().mode(FOLDER_MODE).recursive(true).create(path);
    made.map_err(Error::os("make", path))
}

/// Checks the folder for sockets that the variable XDG_RUNTIME_DIR names; links are allowed.
///
/// # Errors
/// [`Error::NotPrivate`] if another user may put a file into it;
/// [`Error::Os`].
pub(crate) fn check_runtime_folder(path: &Path) -> Result<()> {
    let there = std::fs::metadata(path).map_err(Error::os("stat", path))?;
    let checked = check(&there, Kind::Folder, path, "XDG_RUNTIME_DIR", OTHERS_WRITE);
    let is_for_others = !is_own(there.uid()) || there.mode() & STICKY != 0;
    checked.map_err(|error| match error {
        Error::NotPrivate { path, owner, mode, problem, remedy } => {
            let remedy = if is_for_others { LEAVE_IT.into() } else { remedy };
            let problem = format!("XDG_RUNTIME_DIR names it for sockets, and {problem}");
            Error::NotPrivate { path, owner, mode, problem, remedy }
        }
        other => other,
    })
}

/// Checks the file in the place of a new socket. Only a socket of this user may be replaced.
///
/// # Errors
/// [`Error::NotPrivate`].
pub(crate) fn check_socket(there: &Metadata, path: &Path) -> Result<()> {
    if is_own(there.uid()) {
        return Ok(());
    }
    Err(of_another(there, path, "socket"))
}

/// Checks a region's descriptor that the node of user `server` has passed at `socket`.
///
/// # Errors
/// [`Error::NotPrivate`], [`Error::Os`].
pub(crate) fn check_passed(region: impl AsFd, server: u32, socket: &Path) -> Result<()> {
    let found = rustix::fs::fstat(region).map_err(Error::os("stat the region of", socket))?;
    let is_file = rustix::fs::FileType::from_raw_mode(found.st_mode).is_file();
    let is_theirs = found.st_uid == server || found.st_uid == ROOT;
    let problem = if !is_file {
        "the region that its node passes is no regular file"
    } else if !is_theirs {
        "the region that its node passes belongs to another user"
    } else if found.st_mode & OTHERS != 0 {
        "the region that its node passes can be used by other users"
    } else {
        return Ok(());
    };
    Err(Error::NotPrivate {
        path: socket.into(),
        owner: found.st_uid,
        mode: found.st_mode & 0o7777,
        problem: problem.into(),
        remedy: "stop the node, and start it with a region of its own".into(),
    })
}

/// Returns whether only `user` and root can have put the socket at `path`, which is `user`'s.
pub(crate) fn only_they_made(path: &Path, user: u32) -> bool {
    std::path::absolute(path).is_ok_and(|path| only_they_made_what(&path, user, Found::at))
}

/// The metadata of a path; for a link, that of the link.
#[derive(Clone, Copy)]
struct Found {
    is_folder: bool,
    is_socket: bool,
    owner: u32,
    mode: u32,
}

impl Found {
    fn at(path: &Path) -> Option<Self> {
        let there = std::fs::symlink_metadata(path).ok()?;
        let (is_folder, is_socket) = (there.is_dir(), there.file_type().is_socket());
        Some(Self { is_folder, is_socket, owner: there.uid(), mode: there.mode() })
    }
}

fn only_they_made_what(path: &Path, user: u32, find: impl Fn(&Path) -> Option<Found>) -> bool {
    let is_closed = |it: Found| {
        it.is_folder && (it.owner == user || it.owner == ROOT) && it.mode & OTHERS_WRITE == 0
    };
    find(path).is_some_and(|it| it.is_socket && it.owner == user)
        && !path.components().any(|part| part == Component::ParentDir)
        && path.ancestors().skip(1).all(|folder| find(folder).is_some_and(is_closed))
}

/// Checks an opened file, and removes the permissions of other users.
fn own_alone(file: &File, kind: Kind, path: &Path, field: &'static str) -> Result<()> {
    let there = file.metadata().map_err(Error::os("stat", path))?;
    check(&there, kind, path, field, OTHERS_WRITE)?;
    if there.mode() & OTHERS != 0 {
        let mode = if kind == Kind::Folder { FOLDER_MODE } else { FILE_MODE };
        file.set_permissions(Permissions::from_mode(mode))
            .map_err(Error::os("set the mode of", path))?;
        tracing::info!(path = %path.display(), mode = format!("{mode:o}"), "it was open to others");
    }
    Ok(())
}

/// Checks that a file is this user's, and that its mode has none of the bits `forbidden`.
fn check(
    there: &Metadata,
    kind: Kind,
    path: &Path,
    field: &'static str,
    forbidden: u32,
) -> Result<()> {
    let refused = |problem: String, remedy: String| {
        Err(Error::NotPrivate {
            path: path.into(),
            owner: there.uid(),
            mode: there.mode() & 0o7777,
            problem,
            remedy,
        })
    };
    let (wanted, mode) = match kind {
        Kind::File => ("regular file", FILE_MODE),
        Kind::Folder => ("folder", FOLDER_MODE),
    };
    // This check comes first: a user who is told to remove a file must be able to do it.
    if !is_own(there.uid()) {
        return Err(of_another(there, path, field));
    }
    let fits = if kind == Kind::File { there.is_file() } else { there.is_dir() };
    if !fits {
        let problem = format!("it is {}, not a {wanted}", name_of(there));
        return refused(problem, format!("remove it, or choose another {field}"));
    }
    if there.mode() & forbidden != 0 {
        let remedy = format!(
            "if no other user has changed it, close it to others with `chmod {mode:o} {}`, else remove it",
            path.display()
        );
        return refused("other users may use it".into(), remedy);
    }
    if kind == Kind::File && there.nlink() > 1 {
        let problem = format!("it has {} names (hard links)", there.nlink());
        return refused(problem, format!("remove the others, or choose another {field}"));
    }
    Ok(())
}

fn of_another(there: &Metadata, path: &Path, field: &'static str) -> Error {
    Error::NotPrivate {
        path: path.into(),
        owner: there.uid(),
        mode: there.mode() & 0o7777,
        problem: format!("it belongs to another user than this process's ({})", user()),
        remedy: unnumbered(there.uid()).unwrap_or_else(|| {
            format!("have its owner or root remove it, or choose another {field}")
        }),
    }
}

/// The error of a file that could not be opened. The kind of the file says more than the system's
/// error.
fn explained(
    error: std::io::Error,
    action: &'static str,
    kind: Kind,
    path: &Path,
    field: &'static str,
) -> Error {
    let there = std::fs::symlink_metadata(path).ok();
    let found = there.and_then(|there| check(&there, kind, path, field, OTHERS).err());
    found.unwrap_or_else(|| Error::os(action, path)(error))
}

/// The name of a kind of file, for messages.
fn name_of(there: &Metadata) -> &'static str {
    let kind = there.file_type();
    match () {
        () if kind.is_symlink() => "a symbolic link",
        () if kind.is_dir() => "a folder",
        () if kind.is_fifo() => "a FIFO",
        () if kind.is_socket() => "a socket",
        () if kind.is_file() => "a file",
        () => "a device",
    }
}

/// The flags of every open call: invariant 2.
fn careful(more: OFlags) -> i32 {
    (OFlags::NOFOLLOW | OFlags::NONBLOCK | more).bits() as i32
}

/// Opens the same file again, with a descriptor that shares nothing else with `file`.
///
/// # Errors
/// The operating system's errors.
pub(crate) fn reopen(file: impl AsFd, path: &Path, write: bool) -> Result<File> {
    let itself = format!("{OPEN_FILES}/{}", file.as_fd().as_raw_fd());
    let opened = File::options().read(true).write(write).open(itself);
    opened.map_err(|error| not_reopened(&error, path, Path::new(OPEN_FILES)))
}

/// The folder of this process's descriptors, by which a file is opened again.
const OPEN_FILES: &str = "/proc/self/fd";

/// The error of a file that could not be opened again. The file is open already, so the folder of
/// the descriptors may be missing.
fn not_reopened(error: &std::io::Error, path: &Path, open_files: &Path) -> Error {
    let cause = match open_files.exists() {
        true => error.to_string(),
        false => format!(
            "{} is missing: mount /proc of this process's PID namespace (docs/containers.md)",
            open_files.display()
        ),
    };
    Error::Os { action: "reopen", path: path.into(), cause }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::symlink;
    use std::os::unix::net::UnixListener;

    use rustix::fs::Mode;

    fn refusal(path: &Path) -> String {
        let error = open(path, "region").expect_err("it is not private");
        assert!(matches!(error, Error::NotPrivate { .. }), "{error}");
        let text = error.to_string();
        assert!(text.contains(&path.display().to_string()) && text.contains("owner"), "{text}");
        text
    }

    #[test]
    fn a_user_namespace_without_some_users_has_an_overflow_user() {
        for (maps, all) in [
            ("         0          0 4294967295\n", true),
            ("0 0 1000\n1000 5000 4294966295\n", true),
            ("         0          0          1\n", false),
            ("0 100000 65536\n", false),
            ("", false),
        ] {
            assert_eq!(maps_all_users(maps), all, "{maps}");
        }
    }

    #[test]
    fn users_without_a_number_and_a_proc_that_is_not_there_are_named() {
        let dir = tempfile::tempdir().unwrap();
        let (path, gone) = (Path::new("/tmp/a.sock"), std::io::Error::from(ErrorKind::NotFound));
        let missing = dir.path().join("fd");
        let text = not_reopened(&gone, path, &missing).to_string();
        let words = ["/tmp/a.sock", &missing.display().to_string(), "is missing", "mount /proc"];
        assert!(words.iter().all(|word| text.contains(word)), "{text}");
        let text = not_reopened(&gone, path, dir.path()).to_string();
        assert!(!text.contains("missing"), "{text}");
        let text = in_namespace(65534);
        assert!(text.contains("65534") && text.contains("namespace"), "{text}");
    }

    /// A FIFO in the place of a secret once blocked its node for ever.
    #[test]
    fn a_path_in_a_configuration_is_a_file_or_a_link_to_one() {
        let dir = tempfile::tempdir().unwrap();
        let [file, link, fifo] = ["file", "link", "fifo"].map(|name| dir.path().join(name));
        std::fs::write(&file, "data").unwrap();
        symlink(&file, &link).unwrap();
        rustix::fs::mkfifoat(rustix::fs::CWD, &fifo, Mode::RUSR | Mode::WUSR).unwrap();
        for path in [&file, &link] {
            assert_eq!(std::io::read_to_string(open_named(path).unwrap()).unwrap(), "data");
        }
        let refused = |path: &Path| open_named(path).unwrap_err().to_string();
        assert_eq!(refused(&fifo), "it is a FIFO, not a regular file");
        assert_eq!(refused(dir.path()), "it is a folder, not a regular file");
    }

    fn private_file(path: &Path) {
        std::fs::write(path, "data").unwrap();
        std::fs::set_permissions(path, Permissions::from_mode(FILE_MODE)).unwrap();
    }

    #[test]
    fn a_file_for_its_user_alone_is_opened() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("f");
        assert!(open(&path, "region").unwrap().is_none());
        private_file(&path);
        assert!(open(&path, "region").unwrap().is_some());
    }

    #[test]
    fn a_file_that_others_may_use_is_refused_by_name() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("f");
        private_file(&path);
        for mode in [0o640, 0o604, 0o602, 0o610, 0o666] {
            std::fs::set_permissions(&path, Permissions::from_mode(mode)).unwrap();
            let text = refusal(&path);
            assert!(text.contains(&format!("mode {mode:04o}")) && text.contains("chmod"), "{text}");
        }
        std::fs::set_permissions(&path, Permissions::from_mode(FILE_MODE)).unwrap();
        let second = dir.path().join("second");
        std::fs::hard_link(&path, &second).unwrap();
        assert!(refusal(&path).contains("2 names"));
        std::fs::remove_file(&second).unwrap();
        assert!(open(&path, "region").unwrap().is_some());
    }

    #[test]
    fn a_path_that_is_no_file_is_refused_at_once() {
        let dir = tempfile::tempdir().unwrap();
        let [link, fifo, folder, socket] = ["l", "p", "d", "s"].map(|name| dir.path().join(name));
        private_file(&dir.path().join("f"));
        symlink(dir.path().join("f"), &link).unwrap();
        assert!(refusal(&link).contains("a symbolic link"));
        // A plain open of a FIFO without a writer would wait for ever.
        let mode = rustix::fs::Mode::RUSR | rustix::fs::Mode::WUSR;
        rustix::fs::mkfifoat(rustix::fs::CWD, &fifo, mode).unwrap();
        assert!(refusal(&fifo).contains("a FIFO"));
        std::fs::create_dir(&folder).unwrap();
        assert!(refusal(&folder).contains("a folder"));
        let _listener = UnixListener::bind(&socket).unwrap();
        assert!(refusal(&socket).contains("a socket"));
    }

    /// A user was once told to remove a file that only its owner, or root, can remove.
    #[test]
    fn a_link_or_fifo_of_another_user_is_its_owners_to_remove() {
        if user() != ROOT {
            println!("skipped: only root makes what is another user's");
            return;
        }
        let dir = tempfile::tempdir().unwrap();
        let [link, fifo] = ["l", "p"].map(|name| dir.path().join(name));
        symlink("anywhere", &link).unwrap();
        rustix::fs::mkfifoat(rustix::fs::CWD, &fifo, Mode::RUSR | Mode::WUSR).unwrap();
        for path in [&link, &fifo] {
            std::os::unix::fs::lchown(path, Some(4711), None).unwrap();
            let text = refusal(path);
            let words = ["another user", "owner 4711", "have its owner or root remove it"];
            assert!(words.iter().all(|word| text.contains(word)), "{text}");
        }
    }

    /// As root the advice to close or to remove `/tmp` would break the host.
    #[test]
    fn a_folder_of_all_users_is_named_as_the_runtime_folder_and_left_alone() {
        let dir = tempfile::tempdir().unwrap();
        let with_mode = |mode| {
            std::fs::set_permissions(dir.path(), Permissions::from_mode(mode)).unwrap();
            check_runtime_folder(dir.path()).unwrap_err().to_string()
        };
        let shared = with_mode(0o1777);
        for word in ["XDG_RUNTIME_DIR", "--socket", "LOCH_SOCKET"] {
            assert!(shared.contains(word), "{shared}");
        }
        assert!(!shared.contains("chmod") && !shared.contains("remove"), "{shared}");
        let own = with_mode(0o777);
        assert!(own.contains("XDG_RUNTIME_DIR") && own.contains("chmod 700"), "{own}");
    }

    #[test]
    fn a_folder_is_made_for_its_user_alone_and_closed_if_others_could_look() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("d");
        let mode = || std::fs::metadata(&path).unwrap().mode() & 0o777;
        make_folder(&path, "region").unwrap();
        assert_eq!(mode(), FOLDER_MODE);
        std::fs::set_permissions(&path, Permissions::from_mode(0o755)).unwrap();
        make_folder(&path, "region").unwrap();
        assert_eq!(mode(), FOLDER_MODE);
        // Another user may have put a file into it.
        std::fs::set_permissions(&path, Permissions::from_mode(0o777)).unwrap();
        let error = make_folder(&path, "region").unwrap_err();
        assert!(error.to_string().contains("mode 0777"), "{error}");
        assert_eq!(mode(), 0o777);
        let link = dir.path().join("l");
        symlink(&path, &link).unwrap();
        let error = make_folder(&link, "region").unwrap_err();
        assert!(error.to_string().contains("a symbolic link"), "{error}");
    }

    #[test]
    fn a_lock_file_is_closed_to_others() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("lock");
        std::fs::write(&path, "").unwrap();
        std::fs::set_permissions(&path, Permissions::from_mode(0o644)).unwrap();
        let file = open_lock(&path, "log").unwrap();
        assert_eq!(file.metadata().unwrap().mode() & 0o777, FILE_MODE);
    }

    #[test]
    fn a_region_that_a_node_passes_is_its_own_alone() {
        let dir = tempfile::tempdir().unwrap();
        let (path, socket) = (dir.path().join("r"), Path::new("/run/s"));
        private_file(&path);
        let file = File::open(&path).unwrap();
        check_passed(&file, user(), socket).unwrap();
        std::fs::set_permissions(&path, Permissions::from_mode(0o620)).unwrap();
        let error = check_passed(&file, user(), socket).unwrap_err().to_string();
        assert!(error.contains("/run/s") && error.contains("mode 0620"), "{error}");
        let error = check_passed(File::open("/dev/null").unwrap(), user(), socket).unwrap_err();
        assert!(error.to_string().contains("no regular file"), "{error}");
        // Root may use the files of any user, so this test needs root to make another user's file.
        private_file(&path);
        let owner = if user() == ROOT { 4711 } else { user() };
        std::os::unix::fs::chown(&path, Some(owner), None).unwrap();
        check_passed(&file, owner, socket).unwrap();
        let error = check_passed(&file, owner + 1, socket).unwrap_err().to_string();
        assert!(error.contains("belongs to another user"), "{error}");
    }

    /// Each rule alone, for the socket `/run/theirs/s`.
    #[test]
    fn every_step_of_the_path_to_a_socket_tells_its_maker() {
        const THEIRS: u32 = 7;
        let folder = |owner| Found { is_folder: true, is_socket: false, owner, mode: 0o40755 };
        let socket = Found { is_socket: true, is_folder: false, ..folder(THEIRS) };
        let usual = move |path: &Path| {
            let name = path.file_name().and_then(|name| name.to_str());
            Some(match name {
                Some("s") => socket,
                Some("theirs") => folder(THEIRS),
                _ => folder(ROOT),
            })
        };
        let path = Path::new("/run/theirs/s");
        assert!(only_they_made_what(path, THEIRS, usual));
        assert!(!only_they_made_what(Path::new("/run/theirs/x/../s"), THEIRS, usual));
        let closed = folder(THEIRS);
        for (at, found) in [
            ("/run/theirs/s", None),
            ("/run/theirs/s", Some(Found { owner: ROOT, ..socket })),
            ("/run/theirs/s", Some(Found { is_socket: false, ..socket })),
            ("/run/theirs", None),
            ("/run/theirs", Some(Found { owner: 8, ..closed })),
            ("/run/theirs", Some(Found { mode: 0o40775, ..closed })),
            ("/run/theirs", Some(Found { mode: 0o41777, ..closed })),
            ("/run/theirs", Some(Found { is_folder: false, ..closed })),
            ("/run", Some(Found { mode: 0o41777, ..folder(ROOT) })),
            ("/", Some(folder(8))),
        ] {
            let with = |path: &Path| if path == Path::new(at) { found } else { usual(path) };
            assert!(!only_they_made_what(path, THEIRS, with), "{at}");
        }
    }

    #[test]
    fn a_socket_in_a_folder_for_all_can_be_anybodys() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("s");
        assert!(!only_they_made(&path, user()), "there is nothing");
        let _listener = UnixListener::bind(&path).unwrap();
        // The folder is in one where all users make files, or all folders above it are closed.
        let is_closed =
            |folder: &Path| std::fs::metadata(folder).is_ok_and(|it| it.mode() & OTHERS_WRITE == 0);
        let all_closed = path.ancestors().skip(1).all(is_closed);
        assert_eq!(only_they_made(&path, user()), all_closed);
        std::fs::set_permissions(dir.path(), Permissions::from_mode(0o777)).unwrap();
        assert!(!only_they_made(&path, user()));
    }
}
