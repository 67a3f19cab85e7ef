//! The checked configuration of a node: its socket, its region, and its place among the nodes.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use super::control::network::Network;
use super::workers::plan::WorkerPlan;
use crate::layout::plan::Plan;
use crate::limits::{NODE_NAME_BYTES_MAX, SOCKET_PATH_BYTES_MAX};
use crate::{
    Connections, Error, FabricKind, NodeConfig, Result, SHARED_OVER_TCP, SHARED_OVER_VERBS,
};

/// A node's configuration, checked, with its paths made absolute.
#[derive(Debug)]
pub(crate) struct NodePlan {
    pub socket: PathBuf,
    /// The sockets of all nodes, in order.
    pub cluster: Vec<PathBuf>,
    pub region: PathBuf,
    pub plan: Plan,
    pub workers: WorkerPlan,
    /// The node's place in the network, if its memory is reached over one.
    pub network: Option<Network>,
    /// Whether the region ends with the node.
    pub ephemeral: bool,
    /// Set from outside if the start is to end early.
    pub stop: Arc<AtomicBool>,
}

impl NodePlan {
    /// Checks a configuration and lays it out.
    ///
    /// # Errors
    /// [`Error::Config`].
    pub fn new(config: &NodeConfig) -> Result<Self> {
        check_name(&config.name)?;
        let socket = checked_socket("socket", &config.socket)?;
        check_connections(config)?;
        check_encryption(config)?;
        if config.is_on_network() {
            return Self::of_network(config, socket);
        }
        check_shared(config)?;
        let workers = WorkerPlan::new(&config.workers, &config.tables)?;
        let cluster = match &config.cluster[..] {
            [] => vec![socket.clone()],
            sockets => {
                sockets.iter().map(|s| checked_socket("cluster", s)).collect::<Result<_, _>>()?
            }
        };
        let node = position(&cluster, &socket)?;
        let plan = Plan::of_node(config, node, cluster.len())?;
        Ok(Self {
            plan,
            workers,
            network: None,
            ephemeral: config.ephemeral,
            stop: Arc::default(),
            region: std::path::absolute(config.region_path())
                .map_err(Error::os("resolve", &config.region_path()))?,
            socket,
            cluster,
        })
    }

    fn of_network(config: &NodeConfig, socket: PathBuf) -> Result<Self> {
        let network = Network::new(config)?;
        let workers = WorkerPlan::new(&config.workers, &config.tables)?;
        let plan = Plan::of_node(config, network.node(), network.addresses().len())?;
        Ok(Self {
            plan,
            workers,
            region: std::path::absolute(config.region_path())
                .map_err(Error::os("resolve", &config.region_path()))?,
            socket,
            cluster: network.addresses().iter().map(PathBuf::from).collect(),
            network: Some(network),
            ephemeral: config.ephemeral,
            stop: Arc::default(),
        })
    }
}

/// Refuses connections that the clients of a host share: no fabric of a node has them.
fn check_connections(config: &NodeConfig) -> Result<()> {
    let reason = match (config.connections, config.fabric) {
        (Connections::Client, _) => return Ok(()),
        (_, FabricKind::Shm | FabricKind::Auto) => {
            "clients reach shared memory without connections"
        }
        (_, FabricKind::Verbs) => SHARED_OVER_VERBS,
        (_, FabricKind::Tcp) => SHARED_OVER_TCP,
    };
    let problem = format!("\"host\": {reason}: write \"client\", or leave it out");
    Err(Error::config("connections", problem))
}

/// Refuses encryption where Loch cannot encrypt.
fn check_encryption(config: &NodeConfig) -> Result<()> {
    match config.fabric {
        _ if !config.encrypt => Ok(()),
        FabricKind::Verbs => Err(encrypted_verbs()),
        _ if config.is_on_network() => Ok(()),
        _ => {
            let problem = format!(
                "memory is shared here, and nothing travels over a network: leave it out, or {} \
                 fabric = \"tcp\"",
                way_to_a_network(config)
            );
            Err(Error::config("encrypt", problem))
        }
    }
}

/// The error of a node that is to encrypt, and has the fabric verbs.
pub(super) fn encrypted_verbs() -> Error {
    let problem = "over verbs the cards move keys and values, and do not encrypt them: write \
                   fabric = \"tcp\", or leave `encrypt` out and trust the network";
    Error::config("encrypt", problem)
}

/// Refuses the keys of a network where memory is shared.
fn check_shared(config: &NodeConfig) -> Result<()> {
    let vain = [
        ("listen", config.listen.is_some()),
        ("secret", config.secret.is_some()),
        ("tls", config.tls.is_some()),
        ("agent_threads", config.agent_threads.is_some()),
        ("device", config.device.is_some()),
        ("device_port", config.device_port.is_some()),
        ("gid_index", config.gid_index.is_some()),
    ];
    match vain.into_iter().find(|(_, said)| *said) {
        None => Ok(()),
        Some((field, _)) => {
            let problem = format!(
                "it is for nodes on a network, and memory is shared here: leave it out, or {} \
                 fabric = \"tcp\" or \"verbs\"",
                way_to_a_network(config)
            );
            Err(Error::config(field, problem))
        }
    }
}

/// The beginning of the advice to give a node a fabric of a network.
fn way_to_a_network(config: &NodeConfig) -> &'static str {
    if config.listen.is_some() { "write" } else { "give `listen`, and" }
}

fn check_name(name: &str) -> Result<()> {
    let allowed = |c: char| c.is_ascii_alphanumeric() || "._-".contains(c);
    if name.is_empty() || name.len() > NODE_NAME_BYTES_MAX || !name.chars().all(allowed) {
        let problem =
            format!("{name:?} is no name: write 1 to {NODE_NAME_BYTES_MAX} of A-Z a-z 0-9 . _ -");
        return Err(Error::config("name", problem));
    }
    Ok(())
}

fn checked_socket(field: &str, path: &Path) -> Result<PathBuf> {
    let absolute = std::path::absolute(path)
        .map_err(|e| Error::config(field, format!("{}: {e}", path.display())))?;
    match absolute.to_str() {
        None => Err(Error::config(field, "the path is not UTF-8")),
        Some(text) if text.len() > SOCKET_PATH_BYTES_MAX => Err(Error::config(
            field,
            format!(
                "{text} has {} bytes, the path of a socket has up to {SOCKET_PATH_BYTES_MAX}",
                text.len()
            ),
        )),
        Some(_) => Ok(absolute),
    }
}

fn position(cluster: &[PathBuf], socket: &Path) -> Result<usize> {
    let mut distinct = std::collections::HashSet::new();
    if let Some(twice) = cluster.iter().find(|it| !distinct.insert(*it)) {
        let problem =
            format!("it names {} twice: write the socket of each node once", twice.display());
        return Err(Error::config("cluster", problem));
    }
    cluster.iter().position(|it| it == socket).ok_or_else(|| {
        let problem = format!(
            "this node's own socket {} is not in it: add it, in the same order on every node, or \
             choose a socket that is in it",
            socket.display()
        );
        Error::config("cluster", problem)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_node_knows_its_place() {
        let node = |socket: &str, cluster: &[&str]| {
            NodePlan::new(&NodeConfig {
                socket: socket.into(),
                cluster: cluster.iter().map(PathBuf::from).collect(),
                ..NodeConfig::default()
            })
        };
        let b = node("/b", &["/a", "/b", "/c"]).unwrap();
        assert_eq!((b.plan.header.node, b.plan.header.nodes), (1, 3));
        assert_eq!(node("/a", &[]).unwrap().cluster, [Path::new("/a")]);
        for (socket, cluster, word) in [
            ("/d", &["/a", "/b"][..], "own socket"),
            ("/a", &["/a", "/a"], "twice"),
            (&format!("/{}", "s".repeat(107)), &[], "107"),
        ] {
            let error = node(socket, cluster).unwrap_err().to_string();
            assert!(error.contains(word), "{error}");
        }
        let bad = NodeConfig { name: "a/b".into(), ..NodeConfig::default() };
        assert!(matches!(NodePlan::new(&bad), Err(Error::Config { .. })));
    }

    #[test]
    fn encryption_is_refused_where_there_is_none_and_the_error_names_the_way_out() {
        let plan = |text: &str| NodePlan::new(&NodeConfig::from_toml(text).unwrap());
        let listen = "encrypt = true\nlisten = \"127.0.0.1:7400\"\nfabric";
        for (text, reason) in [
            ("encrypt = true".into(), "memory is shared"),
            ("encrypt = true\nfabric = \"shm\"".into(), "memory is shared"),
            (format!("{listen} = \"verbs\""), "the cards move"),
        ] {
            let error = plan(&text).unwrap_err().to_string();
            assert!(error.contains("encrypt"), "{error}");
            assert!(error.contains(reason) && error.contains("fabric = \"tcp\""), "{error}");
        }
        for fabric in ["tcp", "auto"] {
            assert!(plan(&format!("{listen} = \"{fabric}\"")).is_ok(), "{fabric}");
        }
    }

    /// The error of `listen` once said: leave it out, or give `listen`.
    #[test]
    fn an_error_about_a_network_asks_for_an_address_only_where_there_is_none() {
        let listen = "listen = '127.0.0.1:7400'";
        for (text, key, asks) in [
            (listen, "listen:", false),
            ("device = 'a'", "device:", true),
            ("encrypt = true", "encrypt:", true),
            (&format!("encrypt = true\n{listen}"), "encrypt:", false),
        ] {
            let config = NodeConfig::from_toml(&format!("fabric = 'shm'\n{text}")).unwrap();
            let error = NodePlan::new(&config).unwrap_err().to_string();
            assert!(error.contains(key) && error.contains("fabric = \"tcp\""), "{error}");
            assert_eq!(error.contains("give `listen`"), asks, "{error}");
        }
    }

    #[test]
    fn connections_that_a_host_shares_are_refused_with_the_reason() {
        for (fabric, reason) in [("shm", "without connections"), ("verbs", "the fence of one")] {
            let text = format!("fabric = \"{fabric}\"\nconnections = \"host\"");
            let config = NodeConfig::from_toml(&text).unwrap();
            let error = NodePlan::new(&config).unwrap_err().to_string();
            assert!(error.contains("connections") && error.contains(reason), "{error}");
        }
        let config = NodeConfig::from_toml("connections = \"client\"").unwrap();
        assert_eq!(config, NodeConfig::default());
    }
}
