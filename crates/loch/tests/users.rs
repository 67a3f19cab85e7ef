//! Two users of one host, one of whom means ill: real processes as two unprivileged users.
//!
//! Only root can start them: in a user namespace, where this is run by somebody else. Where neither
//! is possible, the tests say that they were skipped.

mod host;

use std::fs::Permissions;
use std::io::{BufRead, BufReader, Read, Write};
use std::os::unix::fs::{FileTypeExt, MetadataExt, PermissionsExt, chown};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use host::impatient;
use loch::engines::pilaf;
use loch::{ByteSize, Cluster, Error, Node, NodeConfig, TableConfig};
use tempfile::TempDir;

const ROLE: &str = "LOCH_TEST_ROLE";
const PLACE: &str = "LOCH_TEST_PLACE";
const SOCKET: &str = "LOCH_TEST_SOCKET";
/// Begins the lines of a helper: the test harness prints to the same stream.
const TOLD: &str = "told: ";

/// Not a test: what the two users run.
#[test]
#[ignore = "a helper: the other tests of this file run it as a process"]
fn user_process() {
    let socket = PathBuf::from(std::env::var_os(SOCKET).expect("only as a helper"));
    let place = std::env::var_os(PLACE).map(PathBuf::from);
    let config = |log: Option<PathBuf>, region: Option<PathBuf>| NodeConfig {
        name: "node".into(),
        memory: ByteSize::new(64 << 20),
        sessions: 8,
        socket: socket.clone(),
        tables: vec![match log {
            Some(_) => TableConfig::new("default", pilaf::Options { log, ..Default::default() }),
            None => TableConfig::default(),
        }],
        region,
        ..NodeConfig::default()
    };
    let serve = |config: NodeConfig| match Node::start(config) {
        Ok(node) => {
            println!("{TOLD}ready");
            // Until the test lets go of the other end.
            std::io::stdin().read_to_end(&mut Vec::new()).unwrap();
            node.stop();
        }
        Err(error) => println!("{TOLD}{error}"),
    };
    match std::env::var(ROLE).unwrap().as_str() {
        "node" => serve(config(None, place)),
        "logging node" => {
            let region = socket.with_extension("region");
            serve(config(place, Some(region)));
        }
        "client" => {
            let attached = Cluster::connect_with(&socket, impatient());
            let done = attached.and_then(|cluster| cluster.table("default")?.put(b"k", b"v"));
            println!("{TOLD}{}", done.map_or_else(|error| error.to_string(), |_| "put".into()));
        }
        other => panic!("there is no role {other:?}"),
    }
}

/// Two users, and a folder in which both make files, as `/dev/shm` is one.
struct Users {
    dir: TempDir,
}

/// Users whom this run of the tests has to itself, and who own nothing else.
fn attacker() -> u32 {
    20_000 + std::process::id() % 20_000
}

fn victim() -> u32 {
    attacker() + 20_000
}

impl Users {
    /// `None` if this process cannot be two users; then the test was run by one that can, or was
    /// skipped.
    fn new(test: &str) -> Option<Self> {
        let can = Command::new("true").uid(attacker()).gid(attacker()).status();
        if !can.is_ok_and(|status| status.success()) {
            run_in_namespace(test);
            return None;
        }
        let dir = tempfile::tempdir().unwrap();
        std::fs::set_permissions(dir.path(), Permissions::from_mode(0o1777)).unwrap();
        Some(Self { dir })
    }

    fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    /// A folder of a user's own.
    fn folder(&self, name: &str, user: u32) -> PathBuf {
        own_folder(&self.path(name), user)
    }

    /// The output of the victim's node, which is to be at `region` in spite of the attacker.
    fn victims_node(&self, region: Option<&Path>) -> String {
        let socket = self.folder("victim", victim()).join("s");
        let helper = Helper::start(victim(), "node", region, &socket);
        let told = helper.told.clone();
        helper.end();
        told
    }
}

fn own_folder(path: &Path, user: u32) -> PathBuf {
    if !path.exists() {
        std::fs::create_dir(path).unwrap();
        std::fs::set_permissions(path, Permissions::from_mode(0o700)).unwrap();
        chown(path, Some(user), Some(user)).unwrap();
    }
    path.into()
}

/// Says so where the harness does not swallow it, as it does what `eprintln` writes. In CI, whose
/// machine is to have what is needed, it is a failure.
fn skipped(test: &str, why: &str) {
    assert!(std::env::var_os("CI").is_none_or(|it| it != "true"), "CI is to run {test}: {why}");
    std::io::stderr().write_all(format!("SKIPPED: {test}: {why}\n").as_bytes()).unwrap();
}

/// Runs a test where its user is root, if the system lets him have a range of users.
fn run_in_namespace(test: &str) {
    let inside = |program: &Path, arguments: &[&str]| {
        let mut command = Command::new("unshare");
        command.args(["--user", "--map-root-user", "--map-auto", "--"]).arg(program);
        command.args(arguments).stderr(Stdio::null()).status()
    };
    let is_nested = std::env::var_os("LOCH_TEST_NESTED").is_some();
    let setpriv = ["--reuid=20001", "--regid=20001", "--clear-groups", "true"];
    let can = !is_nested && inside(Path::new("setpriv"), &setpriv).is_ok_and(|it| it.success());
    if !can {
        return skipped(test, "needs two users: run it as root, or with subordinate ids");
    }
    let exe = std::env::current_exe().unwrap();
    let ended = Command::new("unshare")
        .args(["--user", "--map-root-user", "--map-auto", "--"])
        .arg(exe)
        .args(["--exact", test, "--nocapture"])
        .env("LOCH_TEST_NESTED", "1")
        .status()
        .unwrap();
    assert!(ended.success(), "{test} failed as root of a user namespace");
}

/// A process of another user, and the first thing that it told.
struct Helper {
    child: Child,
    told: String,
}

impl Helper {
    fn start(user: u32, role: &str, place: Option<&Path>, socket: &Path) -> Self {
        Self::start_in(None, user, role, place, socket)
    }

    /// As [`Helper::start`], with a folder for sockets in the environment.
    fn start_in(
        runtime: Option<&Path>,
        user: u32,
        role: &str,
        place: Option<&Path>,
        socket: &Path,
    ) -> Self {
        // Not by its path, which may lie where the user cannot look.
        let mut command = Command::new("/proc/self/exe");
        command.args(["--exact", "user_process", "--ignored", "--nocapture"]);
        command.env_remove("XDG_RUNTIME_DIR").env(ROLE, role).env(SOCKET, socket);
        if let Some(place) = place {
            command.env(PLACE, place);
        }
        if let Some(runtime) = runtime {
            command.env("XDG_RUNTIME_DIR", runtime);
        }
        command.uid(user).gid(user);
        Self::of(command)
    }

    /// Starts it where no other processes are seen: in a container, as far as these go.
    fn start_apart(role: &str, place: Option<&Path>, socket: &Path) -> Self {
        let mut command = Command::new("unshare");
        command
            .args(["--pid", "--fork", "--kill-child", "--"])
            .arg(std::env::current_exe().unwrap());
        command.args(["--exact", "user_process", "--ignored", "--nocapture"]);
        command.env(ROLE, role).env(SOCKET, socket);
        if let Some(place) = place {
            command.env(PLACE, place);
        }
        Self::of(command)
    }

    fn of(mut command: Command) -> Self {
        command.current_dir("/");
        let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
        let mut lines = BufReader::new(child.stdout.as_mut().unwrap()).lines();
        let told = lines.find_map(|line| {
            // The harness has begun the line.
            line.unwrap().split_once(TOLD).map(|(_, told)| told.to_owned())
        });
        Self { child, told: told.expect("a helper tells something") }
    }

    /// Starts a node that has to serve.
    fn node(user: u32, place: &Path, socket: &Path) -> Self {
        let helper = Self::start(user, "node", Some(place), socket);
        assert_eq!(helper.told, "ready");
        helper
    }

    /// Lets it stop in an orderly way.
    fn end(mut self) {
        drop(self.child.stdin.take());
        assert!(self.child.wait().unwrap().success());
    }
}

/// Runs a line of shell as a user; whether it succeeded.
fn shell(user: u32, line: &str) -> bool {
    let mut command = Command::new("sh");
    command.args(["-c", line]).current_dir("/").uid(user).gid(user).stderr(Stdio::null());
    command.status().unwrap().success()
}

/// The error names the file that was refused, with its owner and mode.
#[track_caller]
fn assert_named(told: &str, path: &Path, owner: u32, mode: &str) {
    let words = [path.display().to_string(), format!("owner {owner}"), format!("mode {mode}")];
    for word in words.iter().map(String::as_str).chain(["is not used"]) {
        assert!(told.contains(word), "no {word:?} in: {told}");
    }
}

#[test]
fn a_region_of_another_user_is_not_taken_over() {
    let Some(users) = Users::new("a_region_of_another_user_is_not_taken_over") else { return };
    let region = users.path("node.region");
    let theirs = users.folder("attacker", attacker()).join("s");
    Helper::node(attacker(), &region, &theirs).end();
    let line = |mode: &str| format!("chmod {mode} {}", region.display());
    // Open to all, so that the node could use it; and closed.
    for mode in ["0666", "0600"] {
        assert!(shell(attacker(), &line(mode)));
        let before = std::fs::metadata(&region).unwrap();
        assert_named(&users.victims_node(Some(&region)), &region, attacker(), mode);
        let after = std::fs::metadata(&region).unwrap();
        assert_eq!((before.mtime(), before.ino()), (after.mtime(), after.ino()));
        // Nor does root take over what is another's.
        let config = NodeConfig {
            region: Some(region.clone()),
            socket: users.path("root.sock"),
            ..NodeConfig::default()
        };
        let error = Node::start(config).err().expect("it is not root's");
        assert_named(&error.to_string(), &region, attacker(), mode);
    }
    // A link to a region of the victim's own is another's doing, too.
    std::fs::remove_file(&region).unwrap();
    let own = users.folder("victim", victim()).join("r");
    assert_eq!(users.victims_node(Some(&own)), "ready");
    assert!(shell(attacker(), &format!("ln -s {} {}", own.display(), region.display())));
    assert_named(&users.victims_node(Some(&region)), &region, attacker(), "0777");
    // One's own region is taken over, where it was chosen, as ever.
    assert_eq!(users.victims_node(Some(&own)), "ready");
}

#[test]
fn an_unfinished_region_of_another_user_is_named() {
    let Some(users) = Users::new("an_unfinished_region_of_another_user_is_named") else { return };
    let region = users.path("node.region");
    let new = users.path("node.region.new");
    for mode in ["0644", "0000"] {
        let line = format!("echo x > {0} && chmod {mode} {0}", new.display());
        assert!(shell(attacker(), &line));
        assert_named(&users.victims_node(Some(&region)), &new, attacker(), mode);
        assert!(new.exists() && !region.exists());
        std::fs::remove_file(&new).unwrap();
    }
    // A FIFO that nobody writes makes nobody wait.
    assert!(shell(attacker(), &format!("mkfifo -m 666 {}", new.display())));
    assert_named(&users.victims_node(Some(&region)), &new, attacker(), "0666");
}

/// Removes the default folder of the victim when the test is over, however it ends.
struct DefaultFolder(PathBuf);

impl Drop for DefaultFolder {
    fn drop(&mut self) {
        // It may not have been made.
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

#[test]
fn the_default_place_is_a_folder_of_the_users_own() {
    let Some(users) = Users::new("the_default_place_is_a_folder_of_the_users_own") else { return };
    let folder = DefaultFolder(format!("/dev/shm/loch-{}", victim()).into());
    let path = &folder.0;
    let socket = users.folder("victim", victim()).join("s");
    // Nothing is in the way. Nobody else reads what is in the folder, nor what it holds.
    let helper = Helper::start(victim(), "node", None, &socket);
    assert_eq!(helper.told, "ready");
    let mode = |path: &Path| std::fs::metadata(path).unwrap().mode() & 0o777;
    let region = path.join("node.region");
    assert_eq!((mode(path), mode(&region), mode(&socket)), (0o700, 0o600, 0o600));
    assert!(!shell(attacker(), &format!("ls {}", path.display())));
    assert!(!shell(attacker(), &format!("cat {} > /dev/null", region.display())));
    assert!(!shell(attacker(), &format!("echo x > {}.new", region.display())));
    helper.end();
    std::fs::remove_dir_all(path).unwrap();
    // Somebody else was first.
    assert!(shell(attacker(), &format!("mkdir -m 777 {}", path.display())));
    assert_named(&users.victims_node(None), path, attacker(), "0777");
    std::fs::remove_dir(path).unwrap();
    assert!(shell(attacker(), &format!("ln -s /tmp {}", path.display())));
    assert_named(&users.victims_node(None), path, attacker(), "0777");
    std::fs::remove_file(path).unwrap();
}

#[test]
fn a_socket_of_another_user_is_neither_served_nor_attached_to() {
    let test = "a_socket_of_another_user_is_neither_served_nor_attached_to";
    let Some(users) = Users::new(test) else { return };
    let socket = users.path("loch.sock");
    let own = users.folder("victim", victim()).join("r");
    let theirs = users.folder("attacker", attacker()).join("r");
    let foreign = Helper::node(attacker(), &theirs, &socket);
    // Theirs is open to all: a node that lies in wait would see to that.
    std::fs::set_permissions(&socket, Permissions::from_mode(0o666)).unwrap();
    let told = Helper::start(victim(), "node", Some(&own), &socket);
    assert_named(&told.told, &socket, attacker(), "0666");
    told.end();
    let told = Helper::start(victim(), "client", None, &socket);
    assert!(told.told.contains(&format!("is served by user {}", attacker())), "{}", told.told);
    told.end();
    // Root could be fooled as well, in a folder where all users make files.
    let error = Cluster::connect_with(&socket, impatient()).err().unwrap();
    assert!(matches!(error, Error::ForeignUser { theirs, .. } if theirs == attacker()), "{error}");
    foreign.end();
    // The socket of another user's dead node is not removed either.
    let left = std::os::unix::net::UnixListener::bind(&socket).unwrap();
    chown(&socket, Some(attacker()), None).unwrap();
    drop(left);
    let told = Helper::start(victim(), "node", Some(&own), &socket);
    assert!(told.told.contains(&format!("owner {}", attacker())), "{}", told.told);
    told.end();
    assert!(std::fs::symlink_metadata(&socket).unwrap().file_type().is_socket());
}

#[test]
fn a_runtime_folder_in_which_others_can_make_files_is_not_used() {
    let test = "a_runtime_folder_in_which_others_can_make_files_is_not_used";
    let Some(users) = Users::new(test) else { return };
    let own = users.folder("victim", victim()).join("r");
    let start = |folder: &Path| {
        let socket = folder.join("loch.sock");
        let helper = Helper::start_in(Some(folder), victim(), "node", Some(&own), &socket);
        let told = helper.told.clone();
        helper.end();
        told
    };
    // As `su` leaves it behind, for one.
    let theirs = users.folder("attacker", attacker());
    std::fs::set_permissions(&theirs, Permissions::from_mode(0o777)).unwrap();
    let told = start(&theirs);
    assert_named(&told, &theirs, attacker(), "0777");
    assert!(told.contains("XDG_RUNTIME_DIR") && !told.contains("remove"), "{told}");
    let open = users.folder("open", victim());
    std::fs::set_permissions(&open, Permissions::from_mode(0o777)).unwrap();
    assert_named(&start(&open), &open, victim(), "0777");
    assert_eq!(start(&users.folder("runtime", victim())), "ready");
}

#[test]
fn root_attaches_to_a_node_that_only_its_user_can_have_put_there() {
    let test = "root_attaches_to_a_node_that_only_its_user_can_have_put_there";
    let Some(_users) = Users::new(test) else { return };
    // No folder above is one where all users make files.
    let Ok(dir) = tempfile::tempdir_in("/run") else {
        return skipped(test, "needs to make a folder in /run");
    };
    std::fs::set_permissions(dir.path(), Permissions::from_mode(0o755)).unwrap();
    let folder = own_folder(&dir.path().join("victim"), victim());
    let (socket, region) = (folder.join("s"), folder.join("r"));
    let node = Helper::node(victim(), &region, &socket);
    let table = Cluster::connect(&socket).unwrap().table("default").unwrap();
    table.put(b"from", b"root").unwrap();
    drop(table);
    // A region that others could change is refused, even root's view of it.
    std::fs::set_permissions(&region, Permissions::from_mode(0o666)).unwrap();
    let error = Cluster::connect_with(&socket, impatient()).err().unwrap();
    assert_named(&error.to_string(), &socket, victim(), "0666");
    std::fs::set_permissions(&region, Permissions::from_mode(0o600)).unwrap();
    // As soon as others can make files in the folder, the socket may be anybody's.
    std::fs::set_permissions(&folder, Permissions::from_mode(0o722)).unwrap();
    let error = Cluster::connect_with(&socket, impatient()).err().unwrap();
    assert!(matches!(error, Error::ForeignUser { .. }), "{error}");
    node.end();
}

#[test]
fn a_client_of_another_pid_namespace_is_served_and_may_serve() {
    let test = "a_client_of_another_pid_namespace_is_served_and_may_serve";
    let Some(users) = Users::new(test) else { return };
    let apart = Command::new("unshare").args(["--pid", "--fork", "true"]).status();
    if !apart.is_ok_and(|status| status.success()) {
        return skipped(test, "needs the right to make a PID namespace");
    }
    let folder = users.folder("root", 0);
    let (socket, region) = (folder.join("s"), folder.join("r"));
    // The node does not see its clients' processes: before Linux 6.9 it could not tell when these
    // have died.
    let node = Helper::start_apart("node", Some(&region), &socket);
    assert_eq!(node.told, "ready");
    let told = Helper::start(0, "client", None, &socket);
    let release = std::fs::read_to_string("/proc/sys/kernel/osrelease").unwrap();
    let mut release = release.split('.').map_while(|part| part.parse::<u32>().ok());
    match (release.next(), release.next()) >= (Some(6), Some(9)) {
        true => assert_eq!(told.told, "put"),
        false => assert!(told.told.contains("needs Linux 6.9"), "{}", told.told),
    }
    told.end();
    node.end();
    // A client that does not see its node is seen by it.
    let node = Helper::node(0, &region, &socket);
    let told = Helper::start_apart("client", None, &socket);
    assert_eq!(told.told, "put");
    told.end();
    node.end();
}

#[test]
fn a_log_is_for_its_user_alone() {
    let Some(users) = Users::new("a_log_is_for_its_user_alone") else { return };
    let home = users.folder("victim", victim());
    std::fs::set_permissions(&home, Permissions::from_mode(0o755)).unwrap();
    let (socket, log) = (home.join("s"), home.join("log"));
    let serve = || Helper::start(victim(), "logging node", Some(&log), &socket);
    let put = || {
        let client = Helper::start(victim(), "client", None, &socket);
        assert_eq!(client.told, "put");
        client.end();
    };
    let node = serve();
    assert_eq!(node.told, "ready");
    put();
    node.end();
    let folder = log.join("node-0");
    let lock = folder.join("lock");
    let mode = |path: &Path| std::fs::metadata(path).unwrap().mode() & 0o777;
    let assert_closed = || {
        assert_eq!((mode(&folder), mode(&lock)), (0o700, 0o600));
        for entry in std::fs::read_dir(&folder).unwrap() {
            assert_eq!(mode(&entry.unwrap().path()), 0o600);
        }
        // A user who can open the file can lock it.
        assert!(!shell(attacker(), &format!("exec 9< {}", lock.display())));
    };
    assert_closed();
    assert_eq!(mode(&log), 0o700, "what the node has made");
    // A log that was open to all is closed, and goes on.
    for (path, mode) in [(&log, 0o755), (&folder, 0o755), (&lock, 0o644)] {
        std::fs::set_permissions(path, Permissions::from_mode(mode)).unwrap();
    }
    let node = serve();
    assert_eq!(node.told, "ready");
    assert_closed();
    put();
    node.end();
    // One who got in first could make it wait for him for ever.
    let taken = users.path("taken");
    assert!(shell(
        attacker(),
        &format!("umask 0; mkdir {0} && mkfifo {0}/node-0", taken.display())
    ));
    let node = Helper::start(victim(), "logging node", Some(&taken), &socket);
    assert_named(&node.told, &taken.join("node-0"), attacker(), "0666");
    node.end();
    // Where others could write, there may be more than the node has written.
    std::fs::set_permissions(&folder, Permissions::from_mode(0o777)).unwrap();
    let node = serve();
    assert_named(&node.told, &folder, victim(), "0777");
    node.end();
}
