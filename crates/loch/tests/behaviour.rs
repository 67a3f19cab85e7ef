//! The behaviour of a table of any engine: one suite, run against each, on nodes inside the test's
//! process, which share memory or are reached over TCP.

mod ports;

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::fs::Permissions;
use std::io::Write;
use std::os::unix::fs::PermissionsExt;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant, SystemTime};

use loch::engines::registry::EngineId;
use loch::lanes::{block_on, run};
use loch::{
    ByteSize, Cluster, Conditional, ConnectOptions, EmbeddedConfig, EngineError, Error, Expect,
    Expiry, FabricKind, Node, NodeConfig, PutOptions, ScanCursor, Table, TableConfig, Version,
};
use ports::free_address;

/// An engine, with the options that it is run with.
struct Kind {
    engine: &'static str,
    set: fn(&mut TableConfig),
    /// Bytes that a key and its value may have together, if that is bounded.
    item_max: Option<usize>,
    /// Values that a table of 16 MiB on one node takes at least.
    value_max: usize,
    over: Over,
    /// Whether its tables are on shared memory only.
    is_local: bool,
}

/// How clients reach nodes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Over {
    /// The nodes are embedded.
    Memory,
    /// Each client maps the memory of one of two nodes or more.
    Tcp,
    /// The same, and the connections are encrypted.
    EncryptedTcp,
    /// Each client reaches the memory of all nodes over TCP, also that of its own.
    Far,
}

const MIB: u64 = 1 << 20;

const NESSIE: Kind = Kind {
    engine: "nessie",
    set: |_| (),
    item_max: None,
    value_max: 3 << 20,
    over: Over::Memory,
    is_local: false,
};
const PUBLISHED: Kind =
    Kind { set: |t| t.set("protocol", "published").unwrap(), is_local: true, ..NESSIE };
const SERVER: Kind = Kind {
    engine: "nessie-server",
    set: |t| (t.workers, t.window) = (Some(2), Some(4)),
    item_max: None,
    value_max: 4097,
    over: Over::Memory,
    is_local: false,
};
const HYBRID: Kind = Kind { engine: "nessie-hybrid", set: |_| (), value_max: 4097, ..NESSIE };
const HYBRID_PLUS: Kind = Kind { engine: "nessie-hybrid+", ..HYBRID };
const HERD: Kind =
    Kind { engine: "herd", set: |_| (), item_max: Some(952), value_max: 900, ..NESSIE };
const HERD_STORE: Kind = Kind {
    set: |t| {
        t.set("mode", "store").unwrap();
        t.workers = Some(2);
    },
    ..HERD
};
const HERD_BY_SEND: Kind = Kind { set: |t| t.set("requests", "send").unwrap(), ..HERD };
const PILAF: Kind = Kind { engine: "pilaf", value_max: 4097, ..NESSIE };
const DIRECT: Kind = Kind {
    engine: "kv-direct",
    set: |t| (t.workers, t.window) = (Some(2), Some(4)),
    item_max: None,
    value_max: 4097,
    over: Over::Memory,
    is_local: false,
};
const DIRECT_STALLED: Kind = Kind { set: |t| t.set("out_of_order", false).unwrap(), ..DIRECT };

/// The kinds with modules of their own.
const KINDS: [Kind; 11] = [
    NESSIE,
    PUBLISHED,
    SERVER,
    HYBRID,
    HYBRID_PLUS,
    HERD,
    HERD_STORE,
    HERD_BY_SEND,
    PILAF,
    DIRECT,
    DIRECT_STALLED,
];

/// All other engines of the registry, without options.
fn others() -> impl Iterator<Item = Kind> {
    let has_own = |name: &str| KINDS.iter().any(|kind| kind.engine == name);
    let names = EngineId::ALL.iter().flat_map(|id| id.names().iter().map(move |name| (id, *name)));
    names.filter(move |(_, name)| !has_own(name)).map(|(id, engine)| {
        let item_max = id.needs().key_and_value_bytes_max;
        let value_max = item_max.map_or(4097, |max| max - 68);
        Kind { engine, set: |_| (), item_max, value_max, over: Over::Memory, is_local: false }
    })
}

impl Kind {
    fn table(&self, name: &str) -> TableConfig {
        let mut table = TableConfig {
            name: name.into(),
            engine: self.engine.parse().unwrap(),
            ..TableConfig::default()
        };
        (self.set)(&mut table);
        table
    }

    fn config(&self, nodes: u16) -> EmbeddedConfig {
        EmbeddedConfig {
            nodes,
            // Over TCP there are two nodes at least, whose requests need memory at each.
            memory: ByteSize::new(if self.over == Over::Memory { 16 * MIB } else { 32 * MIB }),
            sessions: 16,
            // Tests are run on busy machines.
            operation_timeout: Duration::from_secs(60),
            tables: vec![self.table("default")],
            ..EmbeddedConfig::default()
        }
    }

    /// Starts nodes. Returns the cluster as it is seen from each of them.
    fn start(&self, config: EmbeddedConfig) -> Vec<Cluster> {
        match self.over {
            Over::Memory => {
                let (nodes, cluster) = (config.nodes, Cluster::embedded(config).unwrap());
                (0..nodes).map(|home| cluster.with_home(home.into()).unwrap()).collect()
            }
            Over::Tcp | Over::EncryptedTcp => over_tcp(&config, config.nodes.max(2), self.over),
            Over::Far => over_tcp(&config, config.nodes, self.over),
        }
    }

    fn cluster(&self, nodes: u16) -> Cluster {
        self.start(self.config(nodes)).remove(0)
    }

    fn open(&self) -> Table {
        self.cluster(1).table("default").unwrap()
    }

    /// The longest key that goes with a value of so many bytes, as far as it is worth a test.
    fn key_max(&self, value: usize) -> usize {
        match self.item_max {
            Some(max) => max - value,
            None => 256,
        }
    }
}

thread_local! {
    /// The nodes of the test that runs.
    static NODES: RefCell<Vec<(Vec<Node>, tempfile::TempDir)>> = RefCell::default();
}

/// The same over TCP on the loopback, with nodes as threads of this process.
fn over_tcp(config: &EmbeddedConfig, nodes: u16, over: Over) -> Vec<Cluster> {
    let dir = tempfile::tempdir().unwrap();
    let secret = dir.path().join("secret");
    std::fs::write(&secret, "of all nodes of the test").unwrap();
    std::fs::set_permissions(&secret, Permissions::from_mode(0o600)).unwrap();
    let addresses: Vec<_> = (0..nodes).map(|_| free_address()).collect();
    let start = |(node, address): (usize, &String)| {
        Node::start(NodeConfig {
            name: format!("n{node}"),
            socket: dir.path().join(format!("{node}.sock")),
            region: Some(dir.path().join(format!("{node}.region"))),
            memory: config.memory,
            fabric: FabricKind::Tcp,
            listen: Some(address.clone()),
            cluster: addresses.iter().map(PathBuf::from).collect(),
            secret: Some(secret.clone()),
            encrypt: over == Over::EncryptedTcp,
            sessions: config.sessions,
            tables: config.tables.clone(),
            ..NodeConfig::default()
        })
    };
    let nodes: Vec<Node> = addresses.iter().enumerate().map(|it| start(it).unwrap()).collect();
    let options = ConnectOptions {
        connect_timeout: Duration::from_secs(60),
        operation_timeout: config.operation_timeout,
        far: over == Over::Far,
        ..ConnectOptions::default()
    };
    let connect = |node: &Node| Cluster::connect_with(node.socket(), options.clone()).unwrap();
    let clusters = nodes.iter().map(connect).collect();
    NODES.with_borrow_mut(|all| all.push((nodes, dir)));
    clusters
}

fn bytes(table: &Table, key: &[u8]) -> Option<Vec<u8>> {
    table.get(key).unwrap().map(|value| value.into_vec())
}

fn a_value_is_put_read_and_deleted(kind: &Kind) {
    let table = kind.open();
    assert_eq!(bytes(&table, b"key"), None);
    let first = table.put(b"key", b"value").unwrap();
    assert_eq!(bytes(&table, b"key"), Some(b"value".to_vec()));
    let second = table.put(b"key", b"").unwrap();
    assert_ne!(first, second);
    let value = table.get(b"key").unwrap().unwrap();
    assert_eq!((value.len(), value.version(), value.expires_at()), (0, second, None));
    assert!(table.contains(b"key").unwrap());
    assert!(table.delete(b"key").unwrap() && !table.delete(b"key").unwrap());
    assert!(!table.contains(b"key").unwrap());
    assert_eq!(bytes(&table, b"key"), None);
}

fn values_of_every_length_come_back_whole(kind: &Kind) {
    let table = kind.open();
    let mut into = Vec::new();
    let lengths = [0, 1, 7, 8, 63, 64, 500, 900, 4096, 4097, 100_000, 3 << 20];
    for len in lengths.into_iter().filter(|len| *len <= kind.value_max) {
        let value: Vec<u8> = (0..len).map(|i| (i * 7 + len) as u8).collect();
        let version = table.put(b"key", &value).unwrap();
        assert_eq!(bytes(&table, b"key").as_ref(), Some(&value), "{len}");
        assert_eq!(table.get_into(b"key", &mut into).unwrap(), Some(version));
        assert!(into == value, "{len}");
    }
    assert_eq!(table.get_into(b"none", &mut into).unwrap(), None);
    assert!(into.is_empty());
    let longest_key = vec![b'k'; kind.key_max(5)];
    table.put(&longest_key, b"value").unwrap();
    assert_eq!(bytes(&table, &longest_key), Some(b"value".to_vec()));
    assert!(table.delete(&longest_key).unwrap());
}

fn a_value_is_as_long_as_was_declared_and_no_longer(kind: &Kind) {
    let max = kind.value_max.min(900);
    let declared =
        TableConfig { value_max: Some(ByteSize::new(max as u64)), ..kind.table("default") };
    let config = EmbeddedConfig { tables: vec![declared], ..kind.config(1) };
    let table = kind.start(config)[0].table("default").unwrap();
    table.put(b"key", &vec![1; max]).unwrap();
    for error in [
        table.put(b"key", &vec![2; max + 1]).unwrap_err(),
        table.put_if_absent(b"new", &vec![2; max + 1]).unwrap_err(),
        table.append(b"key", b"2").unwrap_err(),
        table.append(b"new", &vec![2; max + 1]).unwrap_err(),
        table.reserve(b"key", max + 1).err().unwrap(),
        table.reserve(b"key", 1 << 40).err().unwrap(),
    ] {
        // Engines of bounded items report the bound of the item.
        assert!(matches!(error.engine(), Some(EngineError::ValueTooLong { .. })), "{error}");
        assert!(error.to_string().contains("value_max"), "{error}");
    }
    assert_eq!(bytes(&table, b"key"), Some(vec![1; max]));
    // Where keys are bounded by the same memory, the error names the key and its bound.
    let long = [1; 5000];
    match table.put(&long, b"v") {
        Ok(_) => assert_eq!(bytes(&table, &long), Some(b"v".to_vec())),
        Err(Error::Table { source: EngineError::KeyTooLong { len: 5000, max }, .. }) => {
            let put = table.put(&vec![1; max], b"").map(|_| ());
            assert!(
                !matches!(put, Err(Error::Table { source: EngineError::KeyTooLong { .. }, .. })),
                "{put:?}"
            );
        }
        Err(error) => panic!("{error}"),
    }
}

/// Checks that the operation was refused with this error of the engine.
#[track_caller]
fn assert_refused<T>(done: loch::Result<T>, why: &EngineError) {
    assert_eq!(done.err().expect("it is refused").engine(), Some(why));
}

fn wrong_arguments_are_named_and_change_nothing(kind: &Kind) {
    let table = kind.open();
    table.put(b"key", b"value").unwrap();
    assert_refused(table.get(b""), &EngineError::KeyEmpty);
    assert_refused(table.contains(b""), &EngineError::KeyEmpty);
    assert_refused(table.put(b"", b"v"), &EngineError::KeyEmpty);
    assert_refused(table.append(b"", b"v"), &EngineError::KeyEmpty);
    let long = vec![0; loch::limits::KEY_BYTES_MAX + 1];
    for error in [
        table.get(&long).unwrap_err(),
        table.put(&long, b"v").unwrap_err(),
        table.append(&long, b"v").unwrap_err(),
        table.delete(&long).unwrap_err(),
        table.contains(&long).unwrap_err(),
        table.get_many(&[&long]).unwrap_err(),
        table.reserve(&long, 1).err().unwrap(),
    ] {
        assert!(
            matches!(error.engine(), Some(EngineError::KeyTooLong { len: 65537, .. })),
            "{error}"
        );
    }
    assert_refused(table.fetch_add(b"key", 1), &EngineError::NotACounter { len: 5 });
    assert_eq!(bytes(&table, b"key"), Some(b"value".to_vec()));
}

fn conditions_are_kept(kind: &Kind) {
    let table = kind.open();
    let Conditional::Done(first) = table.put_if_absent(b"key", b"one").unwrap() else {
        panic!("it was absent");
    };
    let refused = Conditional::Refused(Some(first));
    assert_eq!(table.put_if_absent(b"key", b"two").unwrap(), refused);
    let other = Version::from_u64(first.as_u64() ^ 1);
    assert_eq!(table.put_if_version(b"key", b"two", other).unwrap(), refused);
    let done = table.put_if_version(b"key", b"two", first).unwrap();
    assert!(matches!(done, Conditional::Done(_)));
    assert_eq!(bytes(&table, b"key"), Some(b"two".to_vec()));
    let Conditional::Done(second) = done else { panic!("{done:?}") };
    assert!(!table.delete_if_version(b"key", first).unwrap());
    assert!(!table.delete_if_version(b"none", second).unwrap());
    assert_eq!(bytes(&table, b"key"), Some(b"two".to_vec()));
    assert!(table.delete_if_version(b"key", second).unwrap());
    assert_eq!(bytes(&table, b"key"), None);
    assert!(!table.delete_if_version(b"key", second).unwrap());
    let none = table.put_if_version(b"none", b"x", first).unwrap();
    assert_eq!(none, Conditional::Refused(None));
    let ttl = PutOptions { expiry: Expiry::In(Duration::from_secs(60)) };
    let done = table.put_if(b"timed", b"x", Expect::Absent, ttl).unwrap();
    assert!(matches!(done, Conditional::Done(_)));
    assert!(table.get(b"timed").unwrap().unwrap().expires_at().is_some());
}

fn a_value_with_a_time_to_live_expires(kind: &Kind) {
    let table = kind.open();
    let ttl = |ms| PutOptions { expiry: Expiry::In(Duration::from_millis(ms)) };
    table.put_with(b"now", b"x", ttl(0)).unwrap();
    assert_eq!(bytes(&table, b"now"), None);
    assert!(!table.contains(b"now").unwrap());
    assert!(matches!(table.put_if_absent(b"now", b"y").unwrap(), Conditional::Done(_)));
    let before = SystemTime::now();
    table.put_with(b"later", b"x", ttl(60_000)).unwrap();
    let expires = table.get(b"later").unwrap().unwrap().expires_at().unwrap();
    let lives = expires.duration_since(before).unwrap();
    assert!((59_000..62_000).contains(&lives.as_millis()), "{lives:?}");
    let for_ever = PutOptions { expiry: Expiry::In(Duration::MAX) };
    table.put_with(b"ever", b"x", for_ever).unwrap();
    assert!(table.contains(b"ever").unwrap());
}

fn numbers_are_added_to(kind: &Kind) {
    let table = kind.open();
    assert_eq!(table.fetch_add(b"n", 5).unwrap(), 0);
    assert_eq!(table.fetch_add(b"n", u64::MAX).unwrap(), 5);
    assert_eq!(table.fetch_add(b"n", 0).unwrap(), 4);
    assert_eq!(bytes(&table, b"n"), Some(4u64.to_le_bytes().to_vec()));
    table.put(b"m", &7u64.to_le_bytes()).unwrap();
    assert_eq!(table.fetch_add(b"m", 1).unwrap(), 7);
}

fn appended_bytes_come_behind_the_value(kind: &Kind) {
    let table = kind.open();
    let first = table.append(b"key", b"one").unwrap();
    let value = table.get(b"key").unwrap().unwrap();
    assert_eq!((&value[..], value.version(), value.expires_at()), (&b"one"[..], first, None));
    let second = table.append(b"key", b", two").unwrap();
    let value = table.get(b"key").unwrap().unwrap();
    assert_eq!((&value[..], value.version(), value.expires_at()), (&b"one, two"[..], second, None));
    let stale = table.put_if_version(b"key", b"x", first).unwrap();
    assert_eq!(stale, Conditional::Refused(Some(second)));
    table.append(b"key", b"").unwrap();
    assert_eq!(bytes(&table, b"key"), Some(b"one, two".to_vec()));
    table.append(b"empty", b"").unwrap();
    assert_eq!(bytes(&table, b"empty"), Some(vec![]));
    table.fetch_add(b"number", 7).unwrap();
    table.append(b"number", b"!").unwrap();
    assert_refused(table.fetch_add(b"number", 1), &EngineError::NotACounter { len: 9 });
    // From one size of entries to the next.
    let mut whole = Vec::new();
    for piece in (0..80u8).map(|n| [n; 10]) {
        table.append(b"grows", &piece).unwrap();
        whole.extend_from_slice(&piece);
    }
    assert_eq!(bytes(&table, b"grows"), Some(whole));
}

fn an_appended_value_expires_when_it_did_before(kind: &Kind) {
    let table = kind.open();
    let ttl = |ms| PutOptions { expiry: Expiry::In(Duration::from_millis(ms)) };
    table.put_with(b"later", b"a", ttl(60_000)).unwrap();
    let expires = table.get(b"later").unwrap().unwrap().expires_at();
    assert!(expires.is_some());
    for (piece, whole) in [("b", "ab"), ("cdefghij", "abcdefghij")] {
        table.append(b"later", piece.as_bytes()).unwrap();
        let value = table.get(b"later").unwrap().unwrap();
        assert_eq!((&value[..], value.expires_at()), (whole.as_bytes(), expires));
    }
    table.put_with(b"now", b"old", ttl(0)).unwrap();
    table.append(b"now", b"new").unwrap();
    let value = table.get(b"now").unwrap().unwrap();
    assert_eq!((&value[..], value.expires_at()), (&b"new"[..], None));
}

fn a_touched_value_keeps_its_bytes_and_gets_another_expiry(kind: &Kind) {
    let table = kind.open();
    let expires = |key: &[u8]| table.get(key).unwrap().and_then(|value| value.expires_at());
    let value: Vec<u8> = (0..kind.value_max.min(600)).map(|i| i as u8).collect();
    for key in [&b"short"[..], b"long"] {
        let value = if key == b"long" { &value[..] } else { b"v" };
        let first = table.put(key, value).unwrap();
        let minute = Expiry::In(Duration::from_secs(60));
        let second = table.touch(key, minute).unwrap().expect("it has a value");
        let found = table.get(key).unwrap().unwrap();
        assert!(found.version() == second && second != first && found[..] == *value);
        let lives = found.expires_at().unwrap().duration_since(SystemTime::now()).unwrap();
        assert!((30..61).contains(&lives.as_secs()), "{lives:?}");
        let stale = table.put_if_version(key, b"x", first).unwrap();
        assert_eq!(stale, Conditional::Refused(Some(second)));
        // At a time, later, never; and the same with the value.
        let at = SystemTime::UNIX_EPOCH + Duration::from_secs(1 << 34);
        assert!(table.touch(key, Expiry::At(at)).unwrap().is_some());
        assert_eq!(expires(key), Some(at));
        let found = table.get_and_touch(key, minute).unwrap().unwrap();
        assert_eq!((found.expires_at(), &found[..]), (expires(key), value));
        assert!(expires(key).is_some_and(|expires| expires < at));
        let found = table.get_and_touch(key, Expiry::Never).unwrap().unwrap();
        assert_eq!((found.expires_at(), &found[..]), (None, value));
        let again = table.get(key).unwrap().unwrap();
        assert_eq!((again.version(), again.expires_at(), &again[..]), {
            (found.version(), None, value)
        });
        assert!(table.touch(key, minute).unwrap().is_some());
        assert!(table.touch(key, Expiry::Never).unwrap().is_some());
        assert_eq!(expires(key), None);
    }
    // The table still has room and is sound, however often a value is touched.
    for _ in 0..200 {
        table.touch(b"long", Expiry::In(Duration::from_secs(60))).unwrap().unwrap();
        table.get_and_touch(b"long", Expiry::Never).unwrap().unwrap();
    }
    assert_eq!(bytes(&table, b"long"), Some(value));
    let report = table.check().unwrap();
    assert_eq!((report.broken, report.values, report.unshown), (vec![], 2, 0));
}

fn a_touch_brings_no_value_back(kind: &Kind) {
    let table = kind.open();
    let minute = Expiry::In(Duration::from_secs(60));
    let is_absent = |key: &[u8]| {
        assert_eq!(table.touch(key, minute).unwrap(), None);
        assert!(table.get_and_touch(key, Expiry::Never).unwrap().is_none());
        assert_eq!(bytes(&table, key), None);
        assert!(matches!(table.put_if_absent(key, b"new").unwrap(), Conditional::Done(_)));
    };
    is_absent(b"never there");
    table.put(b"deleted", b"v").unwrap();
    table.delete(b"deleted").unwrap();
    is_absent(b"deleted");
    table.put_with(b"expired", b"v", PutOptions { expiry: Expiry::In(Duration::ZERO) }).unwrap();
    is_absent(b"expired");
    // An expiry in the past is an end at once; the value is returned for the last time.
    let past = SystemTime::UNIX_EPOCH + Duration::from_secs(1);
    let before_time = SystemTime::UNIX_EPOCH - Duration::from_secs(1);
    for expiry in [Expiry::In(Duration::ZERO), Expiry::At(past), Expiry::At(before_time)] {
        table.put(b"ended", b"v").unwrap();
        assert!(table.touch(b"ended", expiry).unwrap().is_some());
        assert_eq!(bytes(&table, b"ended"), None);
        table.put(b"ended", b"w").unwrap();
        let last = table.get_and_touch(b"ended", expiry).unwrap().unwrap();
        assert_eq!(&last[..], b"w");
        assert_eq!(bytes(&table, b"ended"), None);
    }
    is_absent(b"ended");
    for refused in [table.touch(b"", minute).err(), table.get_and_touch(b"", minute).err()] {
        assert!(
            matches!(refused, Some(Error::Table { source: EngineError::KeyEmpty, .. })),
            "{refused:?}"
        );
    }
}

/// Whatever comes between, a touch changes neither a number nor a value.
fn touches_beside_other_operations_lose_no_update(kind: &Kind) {
    let table = kind.open();
    let lanes = table.asynch();
    let minute = Expiry::In(Duration::from_secs(60));
    let work = (0..120u64).map(|i| async move {
        match i % 4 {
            0 => assert!(lanes.fetch_add(b"number", 1).await.is_ok()),
            1 => assert!(lanes.append(b"pieces", &[i as u8]).await.is_ok()),
            2 => {
                lanes.touch(b"number", minute).await.unwrap();
                lanes.touch(b"pieces", Expiry::Never).await.unwrap();
            }
            _ => {
                let found = lanes.get_and_touch(b"pieces", minute).await.unwrap();
                assert!(found.is_none_or(|found| found.expires_at().is_some()));
                let found = lanes.get_and_touch(b"number", Expiry::Never).await.unwrap();
                assert!(found.is_none_or(|found| found.len() == 8 && found.expires_at().is_none()));
            }
        }
    });
    block_on(run(20, work, |()| ()));
    assert_eq!(table.fetch_add(b"number", 0).unwrap(), 30);
    let mut pieces = bytes(&table, b"pieces").unwrap();
    pieces.sort_unstable();
    assert!(pieces.into_iter().eq((0..120u8).filter(|i| i % 4 == 1)));
}

fn bytes_that_many_append_are_all_there_in_one_order(kind: &Kind) {
    let table = kind.open();
    let lanes = table.asynch();
    let pieces: Vec<[u8; 1]> = (0..60).map(|n| [n]).collect();
    let appends = pieces.iter().map(|piece| lanes.append(b"key", piece));
    let mut versions = Vec::new();
    block_on(run(20, appends, |version| versions.push(version.unwrap())));
    versions.sort_unstable_by_key(|version| version.as_u64());
    versions.dedup();
    assert_eq!(versions.len(), 60);
    let mut value = bytes(&table, b"key").unwrap();
    value.sort_unstable();
    assert_eq!(value, pieces.concat());
}

fn many_at_a_time_come_back_in_order(kind: &Kind) {
    let table = kind.open().with_lanes(7);
    let pairs: Vec<_> = (0..1000u32).map(|i| (i.to_le_bytes(), i.to_string())).collect();
    let versions = table.put_many(&pairs).unwrap();
    let keys: Vec<_> = (0..1100u32).map(u32::to_le_bytes).collect();
    let values = table.get_many(&keys).unwrap();
    for (i, value) in values.iter().enumerate() {
        let Some(value) = value else {
            assert!(i >= 1000, "{i} is missing");
            continue;
        };
        assert_eq!(&value[..], i.to_string().as_bytes());
        assert_eq!(value.version(), versions[i]);
    }
    assert!(table.get_many::<&[u8]>(&[]).unwrap().is_empty());
    let wrong = table.put_many(&[(&b"good"[..], &b"v"[..]), (b"", b"v")]);
    assert_refused(wrong, &EngineError::KeyEmpty);
}

fn batches_do_what_single_operations_do(kind: &Kind) {
    let table = kind.open();
    let name = |key: u32| format!("key of some length {key}").into_bytes();
    let value = |key: u32, round: u8| vec![round ^ key as u8; (key as usize * 37) % 600];
    for round in 0..3 {
        let pairs: Vec<_> = (0..200).map(|key| (name(key), value(key, round))).collect();
        let mut versions = Vec::new();
        for pairs in [&pairs[..1], &pairs[1..33], &pairs[33..66], &pairs[66..]] {
            versions.extend(table.put_many(pairs).unwrap());
        }
        assert!(table.delete(&name(u32::from(round) + 7)).unwrap());
        for (key, version) in (0..).zip(versions).filter(|(key, _)| *key != u32::from(round) + 7) {
            let found = table.get(&name(key)).unwrap().expect("it was put");
            assert_eq!((&found[..], found.version()), (&value(key, round)[..], version), "{key}");
        }
        // One key is asked for twice, and some have no value.
        let keys: Vec<_> = (0..220).chain([3]).map(name).collect();
        for keys in [&keys[..1], &keys[..32], &keys[1..34], &keys] {
            let pair = |bytes: &[u8], version| (bytes.to_vec(), version);
            let mut answers = vec![Vec::new(); keys.len()];
            let answered = table.get_each(keys, |key, found| {
                answers[key].push(found.map(|value| pair(&value, value.version())));
            });
            answered.unwrap();
            for (key, answers) in keys.iter().zip(answers) {
                let single = table.get(key).unwrap();
                assert_eq!(answers, [single.map(|value| pair(&value, value.version()))], "{key:?}");
            }
        }
    }
    // One key is deleted by itself before, one twice in a batch, and some have no value.
    assert!(table.delete(&name(50)).unwrap());
    let keys: Vec<_> = (0..240).map(name).collect();
    let there = |key: u32| key < 200 && key != 50 && key != 9;
    let contained = table.contains_many(&keys).unwrap();
    assert!((0..240).map(there).eq(contained), "all of them, in the order of the keys");
    for (first, prefix) in [(0, 9), (10, 40), (50, 0), (51, 149), (200, 0)] {
        assert_eq!(table.contains_prefix(&keys[first..]).unwrap(), prefix, "from {first} on");
    }
    // More keys than it looks at at a time.
    let long: Vec<_> = (10..50).cycle().take(700).chain([9, 10]).map(name).collect();
    assert_eq!(table.contains_prefix(&long).unwrap(), 700);
    assert_eq!(table.contains_prefix(&long[..700]).unwrap(), 700);
    assert_eq!(table.contains_prefix::<Vec<u8>>(&[]).unwrap(), 0);
    let doomed: Vec<_> = (30..235).chain([60]).map(name).collect();
    let deleted = table.delete_many(&doomed).unwrap();
    assert!((30..235).map(there).eq(deleted[..205].iter().enumerate().map(|(at, had_value)| {
        // Of its two DELETEs either may come first.
        if at == 30 { *had_value != deleted[205] } else { *had_value }
    })));
    let contained = table.contains_many(&keys).unwrap();
    assert!((0..240).map(|key| there(key) && key < 30).eq(contained));
    assert!((0..240).all(|key| table.contains(&name(key)).unwrap() == (there(key) && key < 30)));
    assert_refused(table.delete_many(&[&b"good"[..], b""]), &EngineError::KeyEmpty);
    assert_refused(table.contains_many(&[&b"good"[..], b""]), &EngineError::KeyEmpty);
    // Both PUTs of a key are done, and one of them wins.
    let versions = table.put_many(&[(b"twice", b"1"), (b"twice", b"2")]).unwrap();
    let found = table.get(b"twice").unwrap().expect("it was put");
    let winner = versions.iter().position(|version| *version == found.version());
    assert_eq!(winner.map(|winner| vec![b'1' + winner as u8]), Some(found.to_vec()));
    let wrong = table.get_each(&[&b"good"[..], b""], |_, _| ());
    assert_refused(wrong, &EngineError::KeyEmpty);
}

fn lanes_mix_all_operations(kind: &Kind) {
    let table = kind.open();
    let lanes = table.asynch();
    let mut last = 0;
    let work = (0..500u64).map(|i| async move {
        let key = (i % 16).to_le_bytes();
        lanes.put(&key, &i.to_le_bytes()).await?;
        assert!(lanes.contains(&key).await?);
        lanes.fetch_add(b"operations", 1).await
    });
    // More than a window has room for.
    block_on(run(40, work, |before| last = last.max(before.unwrap())));
    assert_eq!(last, 499);
    let mut reserved = block_on(lanes.reserve(b"in place", 3)).unwrap();
    reserved.write_at(0, b"abc").unwrap();
    block_on(reserved.commit_async()).unwrap();
    assert_eq!(bytes(&table, b"in place"), Some(b"abc".to_vec()));
}

fn a_value_is_written_in_place(kind: &Kind) {
    let table = kind.open();
    let mut value = table.reserve(b"key", 10).unwrap();
    assert_eq!(value.len(), 10);
    assert!(!value.as_mut_ptr().unwrap().is_null());
    value.write_all(b"01234").unwrap();
    value.write_at(5, b"56789").unwrap();
    let error = value.write_at(6, b"56789").unwrap_err();
    assert!(matches!(error, Error::OutsideReservation { end: 11, len: 10 }), "{error}");
    assert!(value.write_at(usize::MAX, b"x").is_err());
    assert_eq!(value.write(b"5678901").unwrap(), 5);
    assert!(value.write_all(b"x").is_err(), "it is full");
    assert_eq!(bytes(&table, b"key"), None, "it is not committed");
    value.commit().unwrap();
    assert_eq!(bytes(&table, b"key"), Some(b"0123456789".to_vec()));
    drop(table.reserve(b"key", 10).unwrap());
    assert_eq!(bytes(&table, b"key"), Some(b"0123456789".to_vec()));
    assert_eq!(table.check().unwrap().unshown, 0, "it leaves nothing behind");
}

fn a_pinned_value_stays_what_it_is(kind: &Kind) {
    let table = kind.open();
    assert!(table.pin(b"key").unwrap().is_none());
    let version = table.put(b"key", &[7; 500]).unwrap();
    let pinned = table.pin(b"key").unwrap().unwrap();
    assert_eq!((pinned.version(), pinned.expires_at()), (version, None));
    (0..600).for_each(|n| _ = table.put(b"key", &[n as u8; 500]).unwrap());
    assert!(table.delete(b"key").unwrap());
    assert_eq!(pinned[..], [7; 500]);
    let lanes = table.asynch();
    block_on(lanes.put(b"key", b"")).unwrap();
    assert!(block_on(lanes.pin(b"key")).unwrap().is_some_and(|pinned| pinned.is_empty()));
    assert!(table.pin(b"").is_err());
}

/// The keys that a scan finds, each once, with what the scan says of them.
fn scanned(table: &Table, prefix: &[u8]) -> BTreeMap<Vec<u8>, (u64, Version)> {
    let found = table.scan().prefix(prefix).map(Result::unwrap);
    found.map(|one| (one.key, (one.value_bytes, one.version))).collect()
}

fn a_scan_finds_the_keys_that_are_there(kind: &Kind) {
    let clusters = kind.start(kind.config(2));
    let table = clusters[0].table("default").unwrap();
    if let Err(Error::Table { source: EngineError::NoScans, .. }) =
        table.scan_page(&ScanCursor::default(), b"")
    {
        assert!(kind.is_local, "only the published protocol has no scans");
        return;
    }
    assert_eq!(scanned(&table, b""), BTreeMap::new());
    let mut there = BTreeMap::new();
    for number in 0..1_500u64 {
        let (key, len) = (format!("key:{number}").into_bytes(), number % 60);
        let version = table.put(&key, &vec![7; len as usize]).unwrap();
        there.insert(key, (len, version));
    }
    let ttl = |ms| PutOptions { expiry: Expiry::In(Duration::from_millis(ms)) };
    table.put_with(b"expired", b"x", ttl(0)).unwrap();
    table.put_with(b"key:1", b"later", ttl(60_000)).unwrap();
    assert!(table.delete(b"key:2").unwrap() && there.remove(&b"key:2"[..]).is_some());
    let version = table.get(b"key:1").unwrap().unwrap().version();
    there.insert(b"key:1".to_vec(), (5, version));
    assert_eq!(scanned(&table, b""), there);
    let expiries = table.scan().map(Result::unwrap).filter(|one| one.expires_at.is_some());
    assert!(expiries.map(|one| one.key).all(|key| key == b"key:1"));
    there.retain(|key, _| key.starts_with(b"key:14"));
    assert_eq!(scanned(&table, b"key:14"), there);
    assert_eq!(scanned(&table, b"nothing"), BTreeMap::new());
    let far = clusters[1].table("default").unwrap();
    assert_eq!(scanned(&far, b"key:14"), there);
}

fn a_scan_misses_no_key_that_stays_while_others_come_and_go(kind: &Kind) {
    let clusters = kind.start(kind.config(2));
    let table = clusters[0].table("default").unwrap();
    if let Err(Error::Table { source: EngineError::NoScans, .. }) =
        table.scan_page(&ScanCursor::default(), b"")
    {
        return;
    }
    let stays: Vec<_> = (0..400u32).map(|number| format!("stays:{number}")).collect();
    for key in &stays {
        table.put(key.as_bytes(), b"first").unwrap();
    }
    let ends = AtomicBool::new(false);
    std::thread::scope(|scope| {
        for (number, cluster) in clusters[..2].iter().enumerate() {
            let (cluster, stays, ends) = (cluster.clone(), &stays, &ends);
            scope.spawn(move || {
                let table = cluster.table("default").unwrap();
                for i in 0u64.. {
                    if ends.load(Ordering::Relaxed) {
                        return;
                    }
                    let key = [&[number as u8], &(i % 300).to_le_bytes()[..]].concat();
                    table.put(&key, b"comes").unwrap();
                    table.delete(&key).unwrap();
                    let one = &stays[(i * 7) as usize % stays.len()];
                    table.put(one.as_bytes(), &vec![1; (i % 50) as usize]).unwrap();
                }
            });
        }
        let scans: Vec<_> = (0..3).map(|_| scanned(&table, b"stays:").len()).collect();
        ends.store(true, Ordering::Relaxed);
        assert_eq!(scans, [stays.len(); 3]);
    });
}

fn threads_at_several_nodes_see_one_table(kind: &Kind) {
    let clusters = kind.start(kind.config(3));
    std::thread::scope(|scope| {
        for thread in 0..6usize {
            let cluster = clusters[thread % 3].clone();
            scope.spawn(move || {
                let table = cluster.table("default").unwrap();
                for i in 0..500u64 {
                    table.put(&(i % 50).to_le_bytes(), &i.to_le_bytes()).unwrap();
                    table.fetch_add(b"puts", 1).unwrap();
                }
            });
        }
    });
    let cluster = &clusters[0];
    let table = cluster.table("default").unwrap();
    assert_eq!(table.fetch_add(b"puts", 0).unwrap(), 3000);
    let report = table.check().unwrap();
    assert_eq!((report.broken, report.values, report.unshown), (vec![], 51, 0));
    let usage = table.usage().unwrap();
    assert_eq!(usage.iter().map(|u| u.entries).sum::<u64>(), 51);
    assert_eq!(usage.len(), 3);
    let info = cluster.info();
    assert_eq!((info.nodes.len(), info.nodes[0].sessions_taken), (3, 1));
    assert!(matches!(cluster.with_home(3), Err(Error::ClusterMismatch { .. })));
}

fn two_tables_are_apart(kind: &Kind) {
    let tables = vec![kind.table("first"), kind.table("second")];
    let config = EmbeddedConfig { tables, memory: ByteSize::new(64 * MIB), ..kind.config(2) };
    let cluster = kind.start(config).remove(0);
    assert_eq!(cluster.tables(), ["first", "second"]);
    let (first, second) = (cluster.table("first").unwrap(), cluster.table("second").unwrap());
    for i in 0..100u32 {
        first.put(&i.to_le_bytes(), b"first").unwrap();
        second.put(&i.to_le_bytes(), b"second").unwrap();
    }
    for i in 0..100u32 {
        assert_eq!(bytes(&first, &i.to_le_bytes()), Some(b"first".to_vec()));
        assert!(second.delete(&i.to_le_bytes()).unwrap());
        assert!(first.contains(&i.to_le_bytes()).unwrap());
    }
    let error = cluster.table("third").err().unwrap();
    assert!(error.to_string().contains("first, second"), "{error}");
}

fn a_table_goes_to_another_thread_and_outlives_its_cluster(kind: &Kind) {
    let table = kind.open();
    table.put(b"key", b"value").unwrap();
    let moved = std::thread::spawn(move || bytes(&table, b"key"));
    assert_eq!(moved.join().unwrap(), Some(b"value".to_vec()));
}

fn a_session_is_used_again_by_the_next_client(kind: &Kind) {
    let cluster = kind.cluster(1);
    for i in 0..40u64 {
        let table = cluster.table("default").unwrap();
        assert_eq!(table.fetch_add(b"opened", 1).unwrap(), i);
    }
    let mut tables: Vec<_> = (0..16).map(|_| cluster.table("default").unwrap()).collect();
    let error = cluster.table("default").err().unwrap();
    assert!(matches!(error, Error::SessionsExhausted { sessions: 16, .. }), "{error}");
    tables.pop();
    // Over a network the slot is free when the session was fenced.
    let until = Instant::now() + Duration::from_secs(60);
    let again = loop {
        match cluster.table("default") {
            Ok(table) => break table,
            Err(error) => assert!(kind.over != Over::Memory && Instant::now() < until, "{error}"),
        }
    };
    again.put(b"key", b"value").unwrap();
}

/// The cases, against some engines.
macro_rules! suite {
    ($kinds:expr) => {
        suite!($kinds; a_value_is_put_read_and_deleted values_of_every_length_come_back_whole
            a_value_is_as_long_as_was_declared_and_no_longer
            wrong_arguments_are_named_and_change_nothing conditions_are_kept
            a_value_with_a_time_to_live_expires numbers_are_added_to
            appended_bytes_come_behind_the_value an_appended_value_expires_when_it_did_before
            bytes_that_many_append_are_all_there_in_one_order
            a_touched_value_keeps_its_bytes_and_gets_another_expiry a_touch_brings_no_value_back
            touches_beside_other_operations_lose_no_update
            many_at_a_time_come_back_in_order batches_do_what_single_operations_do
            lanes_mix_all_operations
            a_value_is_written_in_place a_pinned_value_stays_what_it_is
            a_scan_finds_the_keys_that_are_there
            a_scan_misses_no_key_that_stays_while_others_come_and_go
            threads_at_several_nodes_see_one_table two_tables_are_apart
            a_table_goes_to_another_thread_and_outlives_its_cluster
            a_session_is_used_again_by_the_next_client);
    };
    ($kinds:expr; $($case:ident)*) => {
        $(
            #[test]
            fn $case() {
                for kind in $kinds {
                    super::$case(&kind);
                    super::NODES.take();
                }
            }
        )*
    };
}

mod nessie {
    suite!([super::NESSIE]);

    #[test]
    fn its_values_are_pinned_in_place_and_those_of_others_copied() {
        let kinds = [(super::NESSIE, true), (super::PUBLISHED, false), (super::HYBRID, false)];
        for (kind, in_place) in kinds {
            let table = kind.open();
            table.put(b"key", b"value").unwrap();
            assert_eq!(table.pin(b"key").unwrap().unwrap().is_in_place(), in_place);
        }
    }
}

mod nessie_published {
    suite!([super::PUBLISHED]);
}

mod nessie_server {
    suite!([super::SERVER]);
}

mod nessie_hybrid {
    suite!([super::HYBRID]);
}

mod nessie_hybrid_plus {
    suite!([super::HYBRID_PLUS]);
}

mod herd {
    suite!([super::HERD]);
}

mod herd_store {
    suite!([super::HERD_STORE]);
}

mod herd_by_send {
    suite!([super::HERD_BY_SEND]);
}

mod pilaf {
    suite!([super::PILAF]);
}

mod kv_direct {
    suite!([super::DIRECT]);
}

mod kv_direct_stalled {
    suite!([super::DIRECT_STALLED]);
}

/// An engine with no module of its own is tested by its line in the registry.
mod others {
    suite!(super::others());

    #[test]
    fn the_example_is_one_of_them() {
        assert!(super::others().any(|kind| kind.engine == "example"));
    }
}

mod over_tcp {
    use super::{Kind, Over};

    /// All engines that are reached over a network.
    pub fn kinds() -> impl Iterator<Item = Kind> {
        let mut kinds: Vec<_> = super::KINDS.into_iter().chain(super::others()).collect();
        kinds.retain(|kind| !kind.is_local);
        kinds.into_iter().map(|kind| Kind { over: Over::Tcp, ..kind })
    }

    suite!(kinds());

    /// A worker reaches no memory but its own node's, for evicting as for anything else.
    #[test]
    fn every_node_evicts() {
        for kind in [super::NESSIE, super::SERVER] {
            let mut config = kind.config(2);
            config.tables[0].set("eviction", "sieve").unwrap();
            let clusters = Kind { over: Over::Tcp, ..kind }.start(config);
            let (value, keys) = ([7; 2000], 0..25_000u32);
            for (number, cluster) in clusters.iter().enumerate() {
                let table = cluster.table("default").unwrap();
                let all: Vec<_> = keys.clone().map(|key| (key.to_le_bytes(), value)).collect();
                for pairs in all.chunks(100) {
                    table.put_many(pairs).unwrap();
                }
                let usage = table.usage().unwrap();
                let evicted = |node: &loch::Usage| -> u64 {
                    node.forgotten.iter().flatten().map(|class| class.evicted).sum()
                };
                let by_node: Vec<u64> = usage.iter().map(evicted).collect();
                // A client of nessie writes into the memory of its own host.
                let who = if kind.engine == "nessie" { number..number + 1 } else { 0..2 };
                assert!(who.clone().all(|node| by_node[node] > 1000), "{who:?} {by_node:?}");
            }
            let report = clusters[0].table("default").unwrap().check().unwrap();
            assert!(report.broken.is_empty(), "{}: {:?}", kind.engine, report.broken);
        }
    }
}

/// Cases with long values, with batches, and with several nodes, for an engine whose clients READ
/// and WRITE, one whose requests and replies are WRITTEN, and one whose requests are SENT.
mod over_encrypted_tcp {
    use super::{Kind, Over};

    fn kinds() -> [Kind; 3] {
        [super::NESSIE, super::SERVER, super::PILAF]
            .map(|kind| Kind { over: Over::EncryptedTcp, ..kind })
    }

    suite!(kinds(); values_of_every_length_come_back_whole numbers_are_added_to
        many_at_a_time_come_back_in_order batches_do_what_single_operations_do
        threads_at_several_nodes_see_one_table a_session_is_used_again_by_the_next_client);
}

mod far {
    use super::{Kind, Over};

    fn kinds() -> impl Iterator<Item = Kind> {
        super::over_tcp::kinds().map(|kind| Kind { over: Over::Far, ..kind })
    }

    suite!(kinds());

    /// Nothing that a client reads or changes is near, though its node is the only one.
    #[test]
    fn no_verb_is_local() {
        for kind in kinds() {
            let table = kind.open();
            let carried = || table.bytes_carried().unwrap();
            for i in 0..50u64 {
                let key = i.to_le_bytes();
                let before = (table.counters().verbs, carried());
                table.put(&key, &[7; 100]).unwrap();
                assert_eq!(super::bytes(&table, &key), Some(vec![7; 100]));
                assert!(table.delete(&key).unwrap() && !table.contains(&key).unwrap());
                let did = table.counters().verbs - before.0;
                assert_eq!((did.verbs, did.bytes), (did.remote_verbs, did.remote_bytes));
                let has_gone_far = did.verbs >= 4 && did.round_trips >= 4 && did.bytes >= 200;
                assert!(has_gone_far, "{}: {did:?}", kind.engine);
                let [sent, received] = carried();
                let [sent_before, received_before] = before.1;
                assert!(sent > sent_before && received >= received_before + 100);
            }
        }
    }
}
