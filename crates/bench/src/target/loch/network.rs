//! Nodes of one host that form a cluster over a network: each listens on the loopback, and all know
//! the same secret, which is made for the run.

use std::fs::{self, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

use loch::{FabricKind, NodeConfig};
use rand::Rng;

use crate::target::server::free_address;

/// Bytes of the secret.
const SECRET_BYTES: usize = 32;

/// The folder in which the kernel lists RDMA devices.
pub const DEVICES: &str = "/sys/class/infiniband";

/// Whether all RDMA devices are software, which the kernel calls virtual.
pub fn is_soft_roce(devices: impl AsRef<Path>) -> bool {
    let Ok(devices) = fs::read_dir(devices) else { return false };
    let mut places = devices.flatten().map(|device| fs::canonicalize(device.path())).peekable();
    let is_virtual = |place: &Path| place.iter().any(|folder| folder == "virtual");
    places.peek().is_some() && places.all(|place| place.is_ok_and(|place| is_virtual(&place)))
}

/// Makes nodes of shared memory nodes of a network. The secret's file lies in `dir`.
pub fn join(configs: &mut [NodeConfig], fabric: FabricKind, dir: &Path) -> io::Result<()> {
    let secret = dir.join("secret");
    write_secret(&secret)?;
    let addresses = configs.iter().map(|_| free_address().map(|at| at.to_string()));
    let addresses = addresses.collect::<io::Result<Vec<_>>>()?;
    for (config, address) in configs.iter_mut().zip(&addresses) {
        config.fabric = fabric;
        config.listen = Some(address.clone());
        config.cluster = addresses.iter().map(PathBuf::from).collect();
        config.secret = Some(secret.clone());
    }
    Ok(())
}

fn write_secret(file: &Path) -> io::Result<()> {
    let mut secret = [0; SECRET_BYTES];
    rand::rng().fill_bytes(&mut secret);
    let text: String = secret.iter().map(|byte| format!("{byte:02x}")).collect();
    let mut file = OpenOptions::new().write(true).create_new(true).mode(0o600).open(file)?;
    file.write_all(text.as_bytes())
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    #[test]
    fn software_in_the_place_of_a_card_is_noticed() {
        let dir = tempfile::tempdir().unwrap();
        let class = dir.path().join("class");
        fs::create_dir(&class).unwrap();
        assert!(!is_soft_roce(&class) && !is_soft_roce(dir.path().join("none")));
        let device = |place: &str| {
            let place = dir.path().join(place);
            fs::create_dir_all(&place).unwrap();
            std::os::unix::fs::symlink(&place, class.join(place.file_name().unwrap())).unwrap();
        };
        device("devices/virtual/infiniband/rxe0");
        assert!(is_soft_roce(&class));
        device("devices/pci0000:16/0000:17:00.0/infiniband/mlx5_0");
        assert!(!is_soft_roce(&class), "the card is what is chosen by itself");
    }

    #[test]
    fn nodes_share_a_secret_and_know_each_others_addresses() {
        let dir = tempfile::tempdir().unwrap();
        let mut configs = vec![NodeConfig::default(); 3];
        join(&mut configs, FabricKind::Verbs, dir.path()).unwrap();
        for (node, config) in configs.iter().enumerate() {
            assert_eq!(config.fabric, FabricKind::Verbs);
            assert_eq!(config.cluster, configs[0].cluster);
            let own = config.listen.as_deref().unwrap();
            assert!(config.cluster[node] == Path::new(own) && own.starts_with("127.0.0.1:"));
            let others = &config.cluster[node + 1..];
            assert!(!others.contains(&own.into()), "{:?}", config.cluster);
        }
        let secret = configs[0].secret.as_ref().unwrap();
        let file = std::fs::metadata(secret).unwrap();
        assert_eq!((file.permissions().mode() & 0o777, file.len()), (0o600, 64));
        assert!(
            join(&mut configs, FabricKind::Verbs, dir.path()).is_err(),
            "no secret is used twice"
        );
    }
}
