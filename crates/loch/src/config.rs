//! What a node is told: its configuration file, and the same for nodes inside this process.
//!
//! A configuration is plain data; it is checked as a whole, when a node starts (see `plan.rs`).

use std::ffi::OsString;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

use crate::limits::{NODE_BYTES_DEFAULT, SESSIONS_DEFAULT, WORKER_SLEEP_MAX_US_DEFAULT};
use crate::{ByteSize, Error, private};

/// The configuration of a node, as TOML or in a program.
///
/// ```
/// use loch::NodeConfig;
/// let config = NodeConfig::from_toml(
///     r#"
///     name = "a"
///     socket = "/run/user/1000/loch-a.sock"
///     memory = "4GiB"
///     cluster = ["/run/user/1000/loch-a.sock", "/run/user/1000/loch-b.sock"]
///
///     [[table]]
///     name = "sessions"
///     memory = "1GiB"
///     value_max = "64KiB"
///
///     [[table]]
///     name = "objects"          # gets the rest
///     "#,
/// )?;
/// assert_eq!(config.tables.len(), 2);
/// # Ok::<(), loch::Error>(())
/// ```
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct NodeConfig {
    /// Names the node in logs and its region file: 1 to 48 of `A-Z a-z 0-9 . _ -`. Default `node`.
    pub name: String,
    /// The unix socket at which clients attach. Default: [`default_socket`].
    pub socket: PathBuf,
    /// Bytes of the region: everything the node lends. Default 256 MiB.
    pub memory: ByteSize,
    /// What carries the verbs.
    pub fabric: FabricKind,
    /// All nodes of the cluster, in the same order on every node, this one among them: their
    /// sockets, or with `fabric = "verbs"` what each has as `listen`. Default: this node alone.
    pub cluster: Vec<PathBuf>,
    /// With `fabric = "verbs"`: the address and TCP port at which other nodes reach this one,
    /// `10.0.0.1:7400`. Default: none, for a node that is alone.
    pub listen: Option<String>,
    /// A file with a secret that all nodes share: 16 bytes or more, for its owner's eyes only. By
    /// it they know each other. With `fabric = "verbs"` several nodes need either this or `tls`; a
    /// node that is alone needs neither.
    pub secret: Option<PathBuf>,
    /// Certificates by which nodes know each other, in place of a secret.
    pub tls: Option<TlsConfig>,
    /// The RDMA device. Default: the first with a port that is up.
    pub device: Option<String>,
    /// The device's port. Default: the first that is up.
    pub device_port: Option<u8>,
    /// The index of the port's address. Default: the best one it has.
    pub gid_index: Option<u8>,
    /// Session slots: how many tables clients can have open for writing at a time. Default 1024.
    pub sessions: u32,
    /// Whether the region file is removed at an orderly stop, or by a start that has made it and
    /// fails. Default no: the next start keeps all data.
    pub ephemeral: bool,
    /// The region file. Default: `/dev/shm/loch-<uid>/<name>.region`, in a folder of this user's
    /// alone.
    pub region: Option<PathBuf>,
    /// How this node's workers work, where tables have some.
    pub workers: WorkersConfig,
    /// The tables, `[[table]]` in TOML. Default: one, named `default`.
    #[serde(rename = "table")]
    pub tables: Vec<TableConfig>,
}

/// How a node's workers work: the threads that serve the tables of engines whose server takes part.
/// `[workers]` in TOML. Nodes of a cluster may differ in it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct WorkersConfig {
    /// The processors they run on, one after the other and then from the first one again. Default:
    /// wherever the system puts them.
    pub cores: Vec<u16>,
    /// Whether a worker without work goes on looking for it for ever, as in the papers. It takes a
    /// whole processor, and answers sooner. Default no: it looks for a while, then offers its
    /// processor to others, and then sleeps.
    pub dedicated: bool,
    /// The longest that a worker without work sleeps, in microseconds, and with it what the first
    /// request after a pause waits for. Default 1000: at rest a worker then uses 1 to 2 % of a
    /// processor, most of it to be woken.
    pub sleep_max_us: u64,
}

/// What a `herd` table does when it is full.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum TableMode {
    /// It lets the oldest values go.
    Cache,
    /// It refuses new ones.
    Store,
}

/// By which rules the clients of a `nessie` table go. What a table does is the same; what it costs is
/// not.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum TableProtocol {
    /// Loch's own.
    #[default]
    Loch,
    /// The published one, repaired, to be measured beside Loch's own. A reservation is copied when it
    /// is committed.
    Published,
}

/// How the requests of a `herd` table reach its workers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum RequestWay {
    /// By WRITE, into slots that the workers poll.
    Write,
    /// By SEND: for more clients than a card has room for connections (herd §5.5).
    Send,
}

/// What carries the verbs.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum FabricKind {
    /// Shared memory, for clients on the node's host.
    #[default]
    Shm,
    /// RDMA verbs, for clusters of machines. A build without the feature `verbs` refuses to start
    /// a node with it.
    Verbs,
}

/// The certificates of a node, in PEM files.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct TlsConfig {
    /// Its certificate, with those between it and the authority's. It is for the host by which
    /// `cluster` names this node, as server and as client.
    pub certificate: PathBuf,
    /// The certificate's key, for its owner's eyes only.
    pub key: PathBuf,
    /// The authority whose certificates all nodes have.
    pub ca: PathBuf,
}

/// The declaration of a table. The same on every node of a cluster, and fixed once the region is
/// made.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct TableConfig {
    /// Its name: 1 to 48 bytes.
    pub name: String,
    /// Its engine: who does the work of an operation. Default `nessie`.
    ///
    /// | | |
    /// | --- | --- |
    /// | `nessie` | the client alone |
    /// | `nessie-server` | workers of the node that owns the key |
    /// | `nessie-hybrid` | GET: the client; all else: workers. Without filter bits, cache and multiple READs, as in the paper |
    /// | `nessie-hybrid+` | the same, and with these as they are declared here |
    /// | `herd` | workers, from their own memory: values are gone when the node's process ends |
    /// | `pilaf` | GET: the client; all else: one worker a node, which may keep a log |
    /// | `kv-direct` | workers, which compute on values as well: see [`Lambda`](crate::Lambda). Values are gone when the node's process ends |
    pub engine: String,
    /// By which rules the clients of a `nessie` table go. Default `loch`.
    pub protocol: TableProtocol,
    /// Whether a GET that meets an undecided PUT takes the previous version, in a table of protocol
    /// `published`; without, it waits. Default yes.
    pub previous_versions: Option<bool>,
    /// Its share of the node's memory, in bytes. Tables without one divide the rest equally.
    pub memory: Option<ByteSize>,
    /// Slots of its index on each node: the most keys it can hold there, less some 5 %. Default:
    /// one for every 112 bytes of the table's memory. A `kv-direct` table has `index_ratio` instead.
    pub index_slots: Option<u64>,
    /// Bytes of the longest value. Default 64 MiB, or a quarter of the table's data on a node if
    /// that is less. Where requests lie in memory each has room for such a value and 256 bytes of
    /// key: there the default is what an eighth of the table's memory has room for. With `herd` a
    /// key and its value have up to 968 bytes together.
    pub value_max: Option<ByteSize>,
    /// Hash functions of the index, 2 to 4. Default 3.
    pub ways: u8,
    /// Slots that each hash function gives a key: 1, 2 or 4. Default 4.
    pub bucket_slots: u8,
    /// Whether index entries carry bits of the key's hash. Default yes.
    pub filter_bits: bool,
    /// Whether clients cache remote entries. Default: where a round trip is dear.
    pub cache: Option<bool>,
    /// Whether of long entries the header is read first. Default yes.
    pub multi_read: bool,
    /// Whether a GET reads all candidates at once. Default: where a round trip is dear. Where readers
    /// go by checksums, as over a network, they always do.
    pub batched_reads: Option<bool>,
    /// Whether entries carry checksums. Default no: clients on the node's host do not need them.
    pub checksums: bool,
    /// Workers of each node that serve the table, 1 to 256. Default 1. `pilaf` has one.
    pub workers: Option<u16>,
    /// Requests that a client has under way at one worker, 1 to 256. Default 8.
    pub window: Option<u16>,
    /// Clients of each node that can have the table open at a time: each takes memory. Default 64,
    /// or the node's `sessions` if that is less. Only sessions of such low numbers can open it: where
    /// other tables take many sessions, give this as many as the node's.
    pub sessions: Option<u32>,
    /// What a `herd` table does when it is full. Default `cache`.
    pub mode: Option<TableMode>,
    /// How requests of a `herd` table reach its workers. Default `write`.
    pub requests: Option<RequestWay>,
    /// The folder of a `pilaf` table's log. Each node has a log of its own there. Default: none, and
    /// the table is empty after the node's process has ended.
    pub log: Option<PathBuf>,
    /// Whether a change of a `pilaf` table is on disk before it is acknowledged. Default no: then
    /// the changes of the last millisecond are lost if the process is killed, and those of a tenth
    /// of a second or more if the machine is.
    pub sync: bool,
    /// Of a `kv-direct` worker's memory the share that is its index, between 0 and 1 (kv-direct
    /// §3.3.1). What is neither in the index nor `inline_bytes` short lies in the rest. Default 0.5.
    pub index_ratio: Option<f64>,
    /// Keys and values of a `kv-direct` table that have up to so many bytes together are in its index:
    /// then a GET is one access to memory, and a PUT two. 0 to 50; default 24.
    pub inline_bytes: Option<u16>,
    /// Chooses `index_ratio` and `inline_bytes` of a `kv-direct` table, so that accesses to memory are as
    /// few as can be.
    pub tuned_for: Option<TunedFor>,
    /// Bytes of every key of a `kv-direct` table, which then need not be told with each. Default: keys
    /// of any length.
    pub key_bytes: Option<u16>,
    /// Whether values of a `kv-direct` table have versions. Without, none takes a byte for it, all are
    /// of version 0, and a PUT that expects another is refused. Default yes.
    pub versions: Option<bool>,
    /// Bytes of a `kv-direct` table's packets: what a client asks of a worker in one WRITE, and what it
    /// is answered. Room for the longest value there is in any case. Default 4 KiB, or what an eighth
    /// of the table's memory has room for.
    pub packet_bytes: Option<ByteSize>,
    /// Whether a `kv-direct` worker executes what does not depend on each other in any order, and
    /// what does from a copy (kv-direct §3.3.3). Without, as a measure, an operation waits for those
    /// before it on the same key. Default yes.
    pub out_of_order: Option<bool>,
    /// The functions of a `kv-direct` table's users, `[[table.functions]]` in TOML. They are compiled
    /// when a node starts, and should be the same on all nodes. Default none.
    pub functions: Vec<FunctionConfig>,
}

/// A function that the clients of a table may have computed ([`Lambda::user`](crate::Lambda::user)).
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct FunctionConfig {
    /// By which it is called.
    pub number: u16,
    /// A WebAssembly module.
    pub path: PathBuf,
}

/// What the keys and values of a table will be like.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct TunedFor {
    /// Bytes of a key.
    pub key_bytes: u64,
    /// Bytes of a value.
    pub value_bytes: u64,
    /// The share of a worker's memory that keys and values will take, between 0 and 1.
    pub utilisation: f64,
}

/// Nodes inside this process: see [`Cluster::embedded`](crate::Cluster::embedded).
///
/// ```
/// use loch::{ByteSize, Cluster, EmbeddedConfig};
/// let config = EmbeddedConfig { memory: ByteSize::new(16 << 20), ..EmbeddedConfig::default() };
/// assert!(Cluster::embedded(config)?.table("default")?.get(b"key")?.is_none());
/// # Ok::<(), loch::Error>(())
/// ```
#[derive(Clone, Debug, PartialEq)]
pub struct EmbeddedConfig {
    /// How many nodes. Default 1.
    pub nodes: u16,
    /// Bytes of each node's region. Default 64 MiB.
    pub memory: ByteSize,
    /// Session slots of each node: tables open at a time. Default 1024.
    pub sessions: u32,
    /// The tables. Default: one, named `default`.
    pub tables: Vec<TableConfig>,
    /// As [`ConnectOptions::operation_timeout`](crate::ConnectOptions::operation_timeout).
    pub operation_timeout: std::time::Duration,
    /// As [`ConnectOptions::cache`](crate::ConnectOptions::cache).
    pub cache: crate::CacheLimits,
    /// As [`ConnectOptions::batch`](crate::ConnectOptions::batch).
    pub batch: usize,
    /// How the workers of all nodes work.
    pub workers: WorkersConfig,
}

impl Default for NodeConfig {
    fn default() -> Self {
        Self {
            name: "node".into(),
            socket: default_socket(),
            memory: ByteSize::new(NODE_BYTES_DEFAULT),
            fabric: FabricKind::default(),
            cluster: Vec::new(),
            listen: None,
            secret: None,
            tls: None,
            device: None,
            device_port: None,
            gid_index: None,
            sessions: SESSIONS_DEFAULT,
            ephemeral: false,
            region: None,
            workers: WorkersConfig::default(),
            tables: Vec::new(),
        }
    }
}

impl Default for WorkersConfig {
    fn default() -> Self {
        Self { cores: Vec::new(), dedicated: false, sleep_max_us: WORKER_SLEEP_MAX_US_DEFAULT }
    }
}

impl Default for TableConfig {
    fn default() -> Self {
        Self {
            name: "default".into(),
            engine: "nessie".into(),
            protocol: TableProtocol::default(),
            previous_versions: None,
            memory: None,
            index_slots: None,
            value_max: None,
            ways: 3,
            bucket_slots: 4,
            filter_bits: true,
            cache: None,
            multi_read: true,
            batched_reads: None,
            checksums: false,
            workers: None,
            window: None,
            sessions: None,
            mode: None,
            requests: None,
            log: None,
            sync: false,
            index_ratio: None,
            inline_bytes: None,
            key_bytes: None,
            versions: None,
            packet_bytes: None,
            out_of_order: None,
            functions: Vec::new(),
            tuned_for: None,
        }
    }
}

impl Default for EmbeddedConfig {
    fn default() -> Self {
        Self {
            nodes: 1,
            memory: ByteSize::new(64 << 20),
            sessions: SESSIONS_DEFAULT,
            tables: Vec::new(),
            operation_timeout: crate::limits::OPERATION_TIMEOUT,
            cache: crate::CacheLimits::default(),
            batch: crate::limits::BATCH_DEFAULT,
            workers: WorkersConfig::default(),
        }
    }
}

impl NodeConfig {
    /// Reads a configuration. What is not written has its default.
    ///
    /// # Errors
    /// [`Error::Config`] that names line and field.
    pub fn from_toml(text: &str) -> Result<Self, Error> {
        toml::from_str(text).map_err(|error| Error::config("TOML", error.to_string()))
    }

    /// Reads a configuration file.
    ///
    /// # Errors
    /// [`Error::Os`] if it cannot be read, else as [`NodeConfig::from_toml`].
    pub fn load(path: &Path) -> Result<Self, Error> {
        let text = std::fs::read_to_string(path).map_err(Error::os("read", path))?;
        toml::from_str(&text)
            .map_err(|error| Error::config(path.display().to_string(), error.to_string()))
    }

    /// Whether a node could have these tables: what [`Node::start`](crate::Node::start) says of them
    /// first, on any machine. Of `cluster` only the number of nodes counts; no device, file or
    /// address is looked at.
    ///
    /// # Errors
    /// [`Error::Config`] names the table and what does not fit; [`Error::NoSuchEngine`].
    ///
    /// ```
    /// let config = loch::NodeConfig::from_toml("memory = \"64KiB\"\n[[table]]\nindex_slots = 65536")?;
    /// assert!(config.check_tables().is_err());
    /// # Ok::<(), loch::Error>(())
    /// ```
    pub fn check_tables(&self) -> Result<(), Error> {
        crate::plan::check_layout(self)
    }

    /// The region file: the configured one, or the default of this user and name.
    pub fn region_path(&self) -> PathBuf {
        let default = || own_folder(MEMORY).join(format!("{}.region", self.name));
        self.region.clone().unwrap_or_else(default)
    }
}

/// Where a node listens and a client connects that is not told otherwise: `$LOCH_SOCKET`, else
/// `loch.sock` in `$XDG_RUNTIME_DIR`, else `/tmp/loch-<uid>/loch.sock`.
pub fn default_socket() -> PathBuf {
    if let Some(socket) = set_to("LOCH_SOCKET") {
        return socket.into();
    }
    runtime_folder().unwrap_or_else(|| own_folder(TEMPORARY)).join("loch.sock")
}

/// Where all users' regions are, and where all users make files.
const MEMORY: &str = "/dev/shm";
const TEMPORARY: &str = "/tmp";

/// The folder of this user in one where all users make files.
fn own_folder(place: &str) -> PathBuf {
    Path::new(place).join(format!("loch-{}", private::user()))
}

/// The folder that the environment has for this user's sockets.
fn runtime_folder() -> Option<PathBuf> {
    set_to("XDG_RUNTIME_DIR").map(PathBuf::from)
}

fn set_to(variable: &str) -> Option<OsString> {
    std::env::var_os(variable).filter(|value| !value.is_empty())
}

/// Makes the folder of a default place (a region's or a socket's: `field`), or checks that nobody
/// else can have put something into it. A folder that the user has chosen is his own affair, so long
/// as it is there.
///
/// # Errors
/// [`Error::NotPrivate`], [`Error::Os`].
pub(crate) fn prepare_folder(path: &Path, field: &'static str) -> Result<(), Error> {
    let Some(folder) = path.parent() else { return Ok(()) };
    if [MEMORY, TEMPORARY].iter().any(|place| own_folder(place) == folder) {
        return private::make_folder(folder, field);
    }
    let is_runtime = runtime_folder().is_some_and(|it| it == folder);
    let field = if is_runtime { "XDG_RUNTIME_DIR or socket" } else { field };
    let problem = match std::fs::metadata(folder) {
        Ok(there) if there.is_dir() => None,
        Ok(_) => Some("it is no folder".to_owned()),
        Err(error) => Some(error.to_string()),
    };
    match problem {
        Some(problem) => Err(Error::Os {
            action: "use the folder",
            path: folder.into(),
            cause: format!("{problem}; make it, or choose another {field}"),
        }),
        None if is_runtime => private::check_folder(folder, field),
        None => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_not_written_has_its_default() {
        assert_eq!(NodeConfig::from_toml("").unwrap(), NodeConfig::default());
        let config = NodeConfig::from_toml("memory = 65536\n[[table]]\nname = \"t\"").unwrap();
        assert_eq!(config.memory, ByteSize::new(65536));
        let table = TableConfig { name: "t".into(), ..TableConfig::default() };
        assert_eq!(config.tables, [table]);
    }

    #[test]
    fn a_configuration_survives_the_trip() {
        let config = NodeConfig {
            region: Some("/somewhere".into()),
            tables: vec![TableConfig {
                cache: Some(true),
                protocol: TableProtocol::Published,
                previous_versions: Some(false),
                memory: Some(ByteSize::new(1 << 30)),
                mode: Some(TableMode::Store),
                requests: Some(RequestWay::Send),
                functions: vec![FunctionConfig { number: 1, path: "f.wasm".into() }],
                tuned_for: Some(TunedFor { key_bytes: 8, value_bytes: 8, utilisation: 0.5 }),
                ..TableConfig::default()
            }],
            workers: WorkersConfig { cores: vec![1, 3], ..WorkersConfig::default() },
            ..NodeConfig::default()
        };
        let text = toml::to_string(&config).unwrap();
        assert_eq!(NodeConfig::from_toml(&text).unwrap(), config);
    }

    #[test]
    fn what_is_wrong_is_named_with_its_line() {
        for (text, word) in [
            ("memry = 1", "memry"),
            ("memory = \"1GB\"", "1GB"),
            ("memory = -1", "-1"),
            ("fabric = \"ib\"", "ib"),
            ("[[table]]\nnme = \"x\"", "line 2"),
            ("[[table]]\nmode = \"ring\"", "ring"),
            ("[workers]\ncore = 1", "core"),
            ("[[table]]\nfunctions = [{ number = 65536, path = \"f\" }]", "65536"),
            ("[[table]]\ntuned_for = { key_bytes = 16 }", "value_bytes"),
        ] {
            let error = NodeConfig::from_toml(text).unwrap_err().to_string();
            assert!(error.contains(word), "{text}: {error}");
        }
    }
}
