//! What a configuration says of the network, checked.

use std::net::{IpAddr, ToSocketAddrs};

use super::credentials::Credentials;
use crate::wire::DeviceChoice;
use crate::{Error, NodeConfig};

/// A node's place in the network.
#[derive(Debug)]
pub(crate) struct Network {
    /// Its number.
    pub node: usize,
    /// The control addresses of all nodes, in order.
    pub addresses: Vec<String>,
    /// Where it listens, if it is not alone.
    pub listen: Option<String>,
    pub credentials: Credentials,
    pub device: DeviceChoice,
}

impl Network {
    /// Checks a configuration.
    ///
    /// # Errors
    /// [`Error::Config`] names the field.
    pub fn new(config: &NodeConfig) -> Result<Self, Error> {
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
        let credentials = Credentials::load(config.secret.as_deref(), config.tls.as_ref())?;
        if let (Some(own), Credentials::Open) = (&listen, &credentials) {
            refuse_strangers(own)?;
        }
        let device = DeviceChoice {
            name: config.device.clone(),
            port: config.device_port,
            gid_index: config.gid_index,
        };
        Ok(Self { node, addresses, listen, credentials, device })
    }
}

fn checked(field: &str, address: &str) -> Result<String, Error> {
    let port = address.rsplit_once(':').and_then(|(host, port)| {
        let host_is_one = !host.is_empty() && !host.contains('/');
        port.parse::<u16>().ok().filter(|port| host_is_one && *port != 0)
    });
    match port {
        Some(_) => Ok(address.to_owned()),
        None => Err(Error::config(
            field,
            format!(
                "{address:?} is no address: with fabric \"verbs\" write HOST:PORT, 10.0.0.1:7400"
            ),
        )),
    }
}

fn position(addresses: &[String], own: &str) -> Result<usize, Error> {
    let distinct: std::collections::HashSet<_> = addresses.iter().collect();
    if distinct.len() != addresses.len() {
        return Err(Error::config("cluster", "it names the same address twice"));
    }
    addresses.iter().position(|address| address == own).ok_or_else(|| {
        let problem = format!("this node's own address {own}, its `listen`, is not in it");
        Error::config("cluster", problem)
    })
}

/// Whoever reaches the port could reach the memory.
fn refuse_strangers(listen: &str) -> Result<(), Error> {
    let resolved = listen.to_socket_addrs();
    let resolved = resolved.map_err(|e| Error::config("listen", format!("{listen}: {e}")))?;
    let strangers = resolved.map(|at| at.ip()).find(|ip: &IpAddr| !ip.is_loopback());
    match strangers {
        None => Ok(()),
        Some(ip) => Err(Error::config(
            "listen",
            format!(
                "other hosts can connect to {ip}, and nothing keeps strangers out: give all nodes \
                 the same `secret` file, or certificates with [tls]"
            ),
        )),
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    fn network(listen: Option<&str>, cluster: &[&str]) -> Result<Network, String> {
        let config = NodeConfig {
            listen: listen.map(str::to_owned),
            cluster: cluster.iter().map(|it| it.into()).collect(),
            ..NodeConfig::default()
        };
        Network::new(&config).map_err(|e| e.to_string())
    }

    fn refusal(listen: Option<&str>, cluster: &[&str]) -> String {
        network(listen, cluster).expect_err("it is refused")
    }

    #[test]
    fn a_node_knows_its_place() {
        let two = network(Some("127.0.0.1:2"), &["127.0.0.1:1", "127.0.0.1:2"]).unwrap();
        assert_eq!((two.node, two.addresses.len()), (1, 2));
        assert_eq!(network(Some("127.0.0.1:1"), &[]).unwrap().addresses, ["127.0.0.1:1"]);
        let alone = network(None, &[]).unwrap();
        assert_eq!((alone.node, alone.addresses.len(), alone.listen), (0, 1, None));
    }

    #[test]
    fn what_cannot_be_says_what_would_be_right() {
        for (error, word) in [
            (refusal(Some("127.0.0.1"), &[]), "HOST:PORT"),
            (refusal(Some("127.0.0.1:0"), &[]), "HOST:PORT"),
            (refusal(None, &["/run/a.sock"]), "HOST:PORT"),
            (refusal(None, &["127.0.0.1:1"]), "listen"),
            (refusal(Some("127.0.0.1:3"), &["127.0.0.1:1"]), "is not in it"),
            (refusal(Some("127.0.0.1:1"), &["127.0.0.1:1", "127.0.0.1:1"]), "twice"),
        ] {
            assert!(error.contains(word), "{word}: {error}");
        }
    }

    #[test]
    fn a_public_address_needs_a_secret_or_certificates() {
        for public in ["0.0.0.0:1", "10.1.2.3:1", "[::]:1"] {
            let error = refusal(Some(public), &[]);
            assert!(error.contains("`secret`") && error.contains("[tls]"), "{error}");
        }
        let dir = tempfile::tempdir().unwrap();
        let secret = dir.path().join("secret");
        std::fs::write(&secret, "sixteen bytes or more\n").unwrap();
        std::fs::set_permissions(&secret, PermissionsExt::from_mode(0o600)).unwrap();
        let config = NodeConfig {
            listen: Some("10.1.2.3:1".into()),
            secret: Some(secret),
            ..NodeConfig::default()
        };
        assert!(Network::new(&config).is_ok());
    }

    #[test]
    fn a_secret_is_long_and_nobody_elses() {
        let dir = tempfile::tempdir().unwrap();
        let secret = dir.path().join("secret");
        let refusal = |text: &str, mode| {
            std::fs::write(&secret, text).unwrap();
            std::fs::set_permissions(&secret, PermissionsExt::from_mode(mode)).unwrap();
            Credentials::load(Some(&secret), None).err().map(|e| e.to_string())
        };
        let open = refusal("sixteen bytes or more", 0o640).unwrap();
        assert!(open.contains("chmod 600"), "{open}");
        let short = refusal("short\n\n", 0o600).unwrap();
        assert!(short.contains("5 bytes") && short.contains("urandom"), "{short}");
        assert_eq!(refusal("sixteen bytes or more", 0o600), None);
        std::fs::remove_file(&secret).unwrap();
        let none = Credentials::load(Some(&secret), None).err().unwrap().to_string();
        assert!(none.contains("cannot open"), "{none}");
    }
}
