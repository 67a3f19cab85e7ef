//! The part of a configuration that is about the network, checked.

use super::credentials::Credentials;
use crate::limits::AGENT_THREADS_MAX;
use crate::session::wire::{DeviceChoice, MediumChoice};
use crate::{Error, FabricKind, NodeConfig, Result};

/// A node's place in the network.
#[derive(Debug)]
pub(crate) struct Network {
    /// The node's number.
    pub node: usize,
    /// The control addresses of all nodes, in order.
    pub addresses: Vec<String>,
    /// The address at which the node listens, if it is not alone.
    pub listen: Option<String>,
    pub credentials: Credentials,
    /// The fabric, if it is known without a look at the host.
    pub medium: Option<MediumChoice>,
    /// The threads of the agent, with TCP.
    pub agent_threads: u16,
    /// The device for verbs.
    pub device: DeviceChoice,
}

impl Network {
    /// Checks a configuration.
    ///
    /// # Errors
    /// [`Error::Config`] names the field.
    pub fn new(config: &NodeConfig) -> Result<Self> {
        let listen = config.listen.as_deref().map(|it| checked("listen", it)).transpose()?;
        let cluster = config.cluster.iter().map(|address| {
            let text = address.to_str().unwrap_or_default();
            checked("cluster", text)
        });
        let mut addresses: Vec<String> = cluster.collect::<Result<_, _>>()?;
        let node = match &listen {
            None if addresses.is_empty() => 0,
            None => {
                let problem = "there is a `cluster`, but no address for the other nodes to reach \
                               this one at: give the one that `cluster` has for it";
                return Err(Error::config("listen", problem));
            }
            Some(own) if addresses.is_empty() => {
                addresses.push(own.clone());
                0
            }
            Some(own) => position(&addresses, own)?,
        };
        if addresses.is_empty() {
            addresses.push(config.socket.display().to_string());
        }
        let credentials =
            Credentials::load(config.secret.as_deref(), config.tls.as_ref(), addresses.len())?;
        let device = DeviceChoice {
            name: config.device.clone(),
            port: config.device_port,
            gid_index: config.gid_index,
        };
        let medium = match config.fabric {
            FabricKind::Tcp => Some(MediumChoice::Tcp {}),
            FabricKind::Verbs => Some(MediumChoice::Verbs(device.clone())),
            FabricKind::Auto | FabricKind::Shm => None,
        };
        let agent_threads = agent_threads(config)?;
        Ok(Self { node, addresses, listen, credentials, medium, agent_threads, device })
    }

    /// The node's number.
    pub fn node(&self) -> usize {
        self.node
    }

    /// The control addresses of all nodes, in order.
    pub fn addresses(&self) -> &[String] {
        &self.addresses
    }
}

fn agent_threads(config: &NodeConfig) -> Result<u16> {
    let Some(threads) = config.agent_threads else { return Ok(1) };
    let problem = match config.fabric {
        FabricKind::Verbs => {
            "it is for fabric \"tcp\", and with \"verbs\" cards do that work: leave it out".into()
        }
        _ if !(1..=AGENT_THREADS_MAX).contains(&threads) => {
            format!("it is {threads}, it may be 1 to {AGENT_THREADS_MAX}")
        }
        _ => return Ok(threads),
    };
    Err(Error::config("agent_threads", problem))
}

/// Checks the form of an address.
///
/// # Errors
/// [`Error::Config`] names the field.
pub(super) fn checked(field: &str, address: &str) -> Result<String> {
    let port = address.rsplit_once(':').and_then(|(host, port)| {
        let host_is_one = !host.is_empty() && !host.contains('/');
        port.parse::<u16>().ok().filter(|port| host_is_one && *port != 0)
    });
    match port {
        Some(_) => Ok(address.to_owned()),
        None => Err(Error::config(
            field,
            format!(
                "{address:?} is no address: write HOST:PORT, 10.0.0.1:7400, as the nodes are on a network"
            ),
        )),
    }
}

fn position(addresses: &[String], own: &str) -> Result<usize> {
    let mut distinct = std::collections::HashSet::new();
    if let Some(twice) = addresses.iter().find(|it| !distinct.insert(*it)) {
        let problem = format!("it names {twice} twice: write the address of each node once");
        return Err(Error::config("cluster", problem));
    }
    addresses.iter().position(|address| address == own).ok_or_else(|| {
        let problem = format!(
            "this node's own address {own}, its `listen`, is not in it: add it, in the same order \
             on every node, or listen at one that is in it"
        );
        Error::config("cluster", problem)
    })
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;
    use std::path::Path;

    use super::*;

    fn network(listen: Option<&str>, cluster: &[&str]) -> Result<Network, String> {
        network_with(None, listen, cluster)
    }

    fn network_with(
        secret: Option<&Path>,
        listen: Option<&str>,
        cluster: &[&str],
    ) -> Result<Network, String> {
        let config = NodeConfig {
            listen: listen.map(str::to_owned),
            cluster: cluster.iter().map(|it| it.into()).collect(),
            secret: secret.map(Path::to_owned),
            ..NodeConfig::default()
        };
        Network::new(&config).map_err(|e| e.to_string())
    }

    fn refusal(listen: Option<&str>, cluster: &[&str]) -> String {
        network(listen, cluster).expect_err("it is refused")
    }

    fn private(path: &Path, text: &str, mode: u32) {
        std::fs::write(path, text).unwrap();
        std::fs::set_permissions(path, PermissionsExt::from_mode(mode)).unwrap();
    }

    #[test]
    fn a_node_knows_its_place() {
        let dir = tempfile::tempdir().unwrap();
        let secret = dir.path().join("secret");
        private(&secret, "sixteen bytes or more\n", 0o600);
        let list = ["127.0.0.1:1", "127.0.0.1:2"];
        let two = network_with(Some(&secret), Some("127.0.0.1:2"), &list).unwrap();
        assert_eq!((two.node, two.addresses.len()), (1, 2));
        assert_eq!(network(Some("127.0.0.1:1"), &[]).unwrap().addresses, ["127.0.0.1:1"]);
        let alone = network(None, &[]).unwrap();
        assert_eq!((alone.node, alone.addresses.len(), alone.listen), (0, 1, None));
    }

    #[test]
    fn a_refused_address_list_says_the_remedy() {
        for (error, word) in [
            (refusal(Some("127.0.0.1"), &[]), "HOST:PORT"),
            (refusal(Some("127.0.0.1:0"), &[]), "HOST:PORT"),
            (refusal(None, &["/run/a.sock"]), "HOST:PORT"),
            (refusal(None, &["127.0.0.1:1"]), "listen"),
            (refusal(Some("127.0.0.1:3"), &["127.0.0.1:1"]), "add it"),
            (refusal(Some("127.0.0.1:1"), &["127.0.0.1:1", "127.0.0.1:1"]), "127.0.0.1:1 twice"),
        ] {
            assert!(error.contains(word), "{word}: {error}");
        }
    }

    #[test]
    fn an_agent_has_as_many_threads_as_it_is_given() {
        let threads = |text: &str| {
            let config = NodeConfig::from_toml(&format!("listen = \"127.0.0.1:1\"\n{text}"));
            Network::new(&config.unwrap()).map(|it| it.agent_threads).map_err(|e| e.to_string())
        };
        assert_eq!(threads(""), Ok(1));
        for (given, fabric) in [(1, "auto"), (2, "tcp"), (AGENT_THREADS_MAX, "tcp")] {
            let text = format!("agent_threads = {given}\nfabric = \"{fabric}\"");
            assert_eq!(threads(&text), Ok(given));
        }
        for given in [0, AGENT_THREADS_MAX + 1] {
            let error = threads(&format!("agent_threads = {given}")).unwrap_err();
            let words = format!("agent_threads: it is {given}, it may be 1 to 64");
            assert!(error.contains(&words), "{error}");
        }
        let error = threads("agent_threads = 2\nfabric = \"verbs\"").unwrap_err();
        assert!(error.contains("agent_threads") && error.contains("leave it out"), "{error}");
    }

    #[test]
    fn several_nodes_need_a_secret_or_certificates_wherever_they_listen() {
        for host in ["127.0.0.1", "[::1]", "localhost", "10.1.2.3", "0.0.0.0"] {
            let list = [1, 2].map(|port| format!("{host}:{port}"));
            let error = refusal(Some(&list[0]), &[&list[0], &list[1]]);
            for word in ["secret: 2 nodes", "urandom", "--secret", "[tls]"] {
                assert!(error.contains(word), "{host}: {error}");
            }
        }
    }

    #[test]
    fn a_node_that_is_alone_makes_a_secret_that_nobody_else_has() {
        let alone: [(Option<&str>, &[&str]); 3] =
            [(None, &[]), (Some("127.0.0.1:1"), &[]), (Some("127.0.0.1:1"), &["127.0.0.1:1"])];
        let mut seen = vec![[0; 32]];
        for (listen, list) in alone {
            let Credentials::Secret(key) = network(listen, list).unwrap().credentials else {
                panic!("{listen:?} {list:?}: it has no secret");
            };
            assert!(!seen.contains(&key), "it is another at every start");
            seen.push(key);
        }
    }

    #[test]
    fn a_secret_is_long_and_nobody_elses() {
        let dir = tempfile::tempdir().unwrap();
        let secret = dir.path().join("secret");
        let refusal = |text: &str, mode| {
            private(&secret, text, mode);
            Credentials::load(Some(&secret), None, 2).err().map(|e| e.to_string())
        };
        let open = refusal("sixteen bytes or more", 0o644).unwrap();
        assert!(open.contains("chmod 600"), "{open}");
        let short = refusal("short\n\n", 0o600).unwrap();
        assert!(short.contains("5 bytes") && short.contains("urandom"), "{short}");
        assert_eq!(refusal("sixteen bytes or more", 0o600), None);
        // Root could read any user's file, and other users cannot give a file away.
        if rustix::process::geteuid().is_root() {
            std::os::unix::fs::chown(&secret, Some(12_345), None).unwrap();
            let theirs = Credentials::load(Some(&secret), None, 2).err().unwrap().to_string();
            assert!(
                theirs.contains("belongs to user 12345") && theirs.contains("chown"),
                "{theirs}"
            );
        }
        std::fs::remove_file(&secret).unwrap();
        let none = Credentials::load(Some(&secret), None, 2).err().unwrap().to_string();
        assert!(none.contains("cannot open") && none.contains("make it, or name one"), "{none}");
    }
}
