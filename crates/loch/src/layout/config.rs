//! The configuration of a node: its file, and the same for nodes inside this process.
//!
//! A configuration is plain data; it is checked as a whole, when a node starts (see `plan/` and
//! `node/plan.rs`).

use std::ffi::OsString;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

use super::declaration::field_names;
use crate::limits::{NODE_BYTES_DEFAULT, SESSIONS_DEFAULT, WORKER_SLEEP_MAX_US_DEFAULT};
use crate::{ByteSize, Error, Result, TableConfig, private};

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
    /// Bytes of the region, which has everything that the node lends. Default 256 MiB.
    pub memory: ByteSize,
    /// The fabric that carries the verbs. Default: the one that suits the host
    /// ([`FabricKind::Auto`]).
    pub fabric: FabricKind,
    /// All nodes of the cluster, in the same order on every node, this node among them. They are
    /// named by their sockets, or on a network by their `listen` addresses. Default: this node
    /// alone.
    pub cluster: Vec<PathBuf>,
    /// With `fabric = "tcp"` or `"verbs"`, the address and TCP port at which other nodes reach this
    /// one: `10.0.0.1:7400`. Default: none, for a node that is alone.
    pub listen: Option<String>,
    /// A file with a secret that all nodes share: 16 bytes or more. It is this user's alone, or
    /// root's with mode 0440 and a group of this process.
    /// The nodes prove by it that they are of one cluster. Several nodes on a network need either
    /// this or `tls`; a node that is alone needs neither.
    pub secret: Option<PathBuf>,
    /// Certificates by which nodes prove what they are, in place of a secret.
    pub tls: Option<TlsConfig>,
    /// With `fabric = "tcp"`, whether the connections on which clients reach this node's memory are
    /// encrypted: keys, values and all else. The node then lets in no client whose connection is
    /// not. Nodes of a cluster may differ in it. Default no: whoever sees the packets sees the
    /// values.
    pub encrypt: bool,
    /// With `fabric = "tcp"`, the threads that execute the verbs of clients on other hosts: 1 to 64.
    /// The nodes of a cluster may differ in it. Default 1.
    pub agent_threads: Option<u16>,
    /// The RDMA device. Default: the first device with a port that is up.
    pub device: Option<String>,
    /// The device's port. Default: the first port that is up.
    pub device_port: Option<u8>,
    /// The index of the port's address. Default: the best address of the port.
    pub gid_index: Option<u8>,
    /// The owner of the connections to the nodes. Default: each client has its own.
    pub connections: Connections,
    /// Session slots: the number of tables that clients can have open for writing at a time.
    /// Default 1024.
    pub sessions: u32,
    /// Whether the region file is removed at an orderly stop, or by a start that has made it and
    /// fails. Default no: the next start keeps all data.
    pub ephemeral: bool,
    /// The region file. Default: `/dev/shm/loch-<uid>/<name>.region`, in a folder that only this
    /// user can use.
    pub region: Option<PathBuf>,
    /// How this node's workers work.
    pub workers: WorkersConfig,
    /// The tables, `[[table]]` in TOML. Default: one, named `default`.
    #[serde(rename = "table")]
    pub tables: Vec<TableConfig>,
}

/// How a node's workers work: the threads that serve tables whose engine needs workers. `[workers]`
/// in TOML. The nodes of a cluster may differ in it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct WorkersConfig {
    /// The processors on which the workers run, one after the other and then from the first again.
    /// Default: the system chooses.
    pub cores: Vec<u16>,
    /// Whether a worker without requests goes on looking for one for ever, as in the papers. It
    /// then takes a whole processor, and answers sooner. Default no: it looks for a while, then
    /// yields its processor, and then sleeps.
    pub dedicated: bool,
    /// The longest that a worker without requests sleeps if clients may come over verbs, in
    /// microseconds. Their first request after a pause waits up to this time. Default 1000: at rest
    /// a worker then uses 1 to 2 % of a processor, mostly to be woken. On one host and over TCP
    /// requests wake the worker, which uses nothing at rest.
    pub sleep_max_us: u64,
}

/// The fabric that carries the verbs.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum FabricKind {
    /// Shared memory for a node that does not listen; otherwise verbs if there is a device that can
    /// be used, and else TCP. The log says which, and why.
    #[default]
    Auto,
    /// Shared memory, for clients on the node's host.
    Shm,
    /// TCP, for clusters of machines without RDMA.
    Tcp,
    /// RDMA verbs, for clusters of machines. A build without the feature `verbs` refuses to start
    /// a node with it.
    Verbs,
}

impl FabricKind {
    /// The name in configurations.
    pub fn name(self) -> &'static str {
        match self {
            Self::Auto => "auto",
            Self::Shm => "shm",
            Self::Tcp => "tcp",
            Self::Verbs => "verbs",
        }
    }
}

/// The owner of the connections to the nodes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Connections {
    /// Each client has its own.
    #[default]
    Client,
    /// The clients of a host share one to each node. No fabric of a node can do that: on shared
    /// memory there are no connections, and over verbs neither rights nor fences would hold. So it
    /// is refused, and only the benchmark's simulator has it.
    Host,
}

/// Why connections cannot be shared over verbs, for the errors of all who ask for it.
#[doc(hidden)]
pub const SHARED_OVER_VERBS: &str = "over verbs a queue pair has one protection domain and one end at the node, so clients that \
     shared one would have each other's rights, and the fence of one would cut off all of them";

/// The same over TCP.
#[doc(hidden)]
pub const SHARED_OVER_TCP: &str =
    "over TCP a connection is one client's, with its rights, and its end is that client's fence";

/// The certificates of a node, in PEM files.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct TlsConfig {
    /// The node's certificate, with all certificates between it and the authority's. It is for the
    /// host by which `cluster` names this node, both as server and as client.
    pub certificate: PathBuf,
    /// The certificate's key, which only its owner may read.
    pub key: PathBuf,
    /// The authority that has signed the certificates of all nodes.
    pub ca: PathBuf,
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
    /// The number of nodes. Default 1.
    pub nodes: u16,
    /// Bytes of each node's region. Default 64 MiB.
    pub memory: ByteSize,
    /// Session slots of each node, for tables that are open at a time. Default 1024.
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
            encrypt: false,
            agent_threads: None,
            device: None,
            device_port: None,
            gid_index: None,
            connections: Connections::default(),
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
    /// Whether memory is reached over a network.
    pub(crate) fn is_on_network(&self) -> bool {
        match self.fabric {
            FabricKind::Shm => false,
            FabricKind::Auto => self.listen.is_some(),
            FabricKind::Tcp | FabricKind::Verbs => true,
        }
    }

    /// Reads a configuration. Keys that are not given have their defaults.
    ///
    /// # Errors
    /// [`Error::Config`] that names line and field.
    pub fn from_toml(text: &str) -> Result<Self> {
        Self::read(text, "TOML")
    }

    /// Reads a configuration, which an error calls `source`.
    fn read(text: &str, source: impl Into<String>) -> Result<Self> {
        toml::from_str(text).map_err(|error: toml::de::Error| {
            let unknown = error.message().strip_prefix("unknown field `");
            let unknown = unknown.and_then(|rest| rest.split('`').next());
            let of_tables = unknown.filter(|field| field_names().contains(*field));
            let hint = of_tables.map(|field| {
                format!("{field} is a key of tables: write it below a line [[table]]\n")
            });
            Error::config(source, format!("{error}{}", hint.unwrap_or_default()))
        })
    }

    /// Reads a configuration file.
    ///
    /// # Errors
    /// [`Error::Os`] if the file cannot be read, else as [`NodeConfig::from_toml`].
    pub fn load(path: &Path) -> Result<Self> {
        let text = std::fs::read_to_string(path).map_err(Error::os("read", path))?;
        Self::read(&text, path.display().to_string())
    }

    /// The region file: the configured one, or the default of this user and name.
    pub fn region_path(&self) -> PathBuf {
        let default = || own_folder(MEMORY).join(format!("{}.region", self.name));
        self.region.clone().unwrap_or_else(default)
    }
}

/// The default socket, at which a node listens and a client connects: `$LOCH_SOCKET`, else
/// `loch.sock` in `$XDG_RUNTIME_DIR`, else `/tmp/loch-<uid>/loch.sock`.
pub fn default_socket() -> PathBuf {
    if let Some(socket) = set_to("LOCH_SOCKET") {
        return socket.into();
    }
    runtime_folder().unwrap_or_else(|| own_folder(TEMPORARY)).join("loch.sock")
}

/// The folder of all users' regions, and the folder in which all users make files.
const MEMORY: &str = "/dev/shm";
const TEMPORARY: &str = "/tmp";

/// This user's folder in a folder where all users make files.
fn own_folder(place: &str) -> PathBuf {
    Path::new(place).join(format!("loch-{}", private::user()))
}

/// The folder for this user's sockets that the environment names.
fn runtime_folder() -> Option<PathBuf> {
    set_to("XDG_RUNTIME_DIR").map(PathBuf::from)
}

fn set_to(variable: &str) -> Option<OsString> {
    std::env::var_os(variable).filter(|value| !value.is_empty())
}

/// Makes the folder of a default place (a region's or a socket's: `field`), or checks that no other
/// user can have put a file into it. A folder that the user has chosen is not checked, but it has
/// to exist.
///
/// # Errors
/// [`Error::NotPrivate`], [`Error::Os`].
pub(crate) fn prepare_folder(path: &Path, field: &'static str) -> Result<()> {
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
        None if is_runtime => private::check_runtime_folder(folder),
        None => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Engine;

    #[test]
    fn keys_that_are_not_given_have_their_defaults() {
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
            tables: vec![
                TableConfig {
                    memory: Some(ByteSize::new(1 << 30)),
                    workers: Some(3),
                    ..TableConfig::default()
                },
                TableConfig::new("b", "nessie-hybrid+".parse::<Engine>().unwrap()),
            ],
            workers: WorkersConfig { cores: vec![1, 3], ..WorkersConfig::default() },
            ..NodeConfig::default()
        };
        let text = toml::to_string(&config).unwrap();
        assert_eq!(NodeConfig::from_toml(&text).unwrap(), config);
    }

    #[test]
    fn an_error_names_the_line_of_the_key() {
        for (text, word) in [
            ("memry = 1", "memry"),
            ("memory = \"1GB\"", "1GB"),
            ("memory = -1", "-1"),
            ("fabric = \"ib\"", "ib"),
            ("[[table]]\nnme = \"x\"", "line 2"),
            ("[[table]]\nnme = \"x\"", "nme"),
            ("[[table]]\nworkers = \"many\"", "line 2"),
            ("[[table]]\nengine = \"herd\"\nmode = \"ring\"", "ring"),
            ("[workers]\ncore = 1", "core"),
            (
                "[[table]]\nengine = \"kv-direct\"\nfunctions = [{ number = 65536, path = \"f\" }]",
                "65536",
            ),
            ("[[table]]\nengine = \"kv-direct\"\ntuned_for = { key_bytes = 16 }", "value_bytes"),
        ] {
            let error = NodeConfig::from_toml(text).unwrap_err().to_string();
            assert!(error.contains(word), "{text}: {error}");
        }
    }
}
