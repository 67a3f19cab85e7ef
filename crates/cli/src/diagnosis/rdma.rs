//! Facts of the kernel and the system about RDMA, without opening a device:
//! `/sys/class/infiniband`, the device files, the library and the modules. They are read from files
//! below a root.

use std::fs;
use std::net::Ipv6Addr;
use std::path::{Path, PathBuf};

use serde::Serialize;

use super::Wanted;
use super::finding::{Finding, Mark, Section};
use super::modules::{Module, Modules};

/// The facts.
#[derive(Clone, Debug, Serialize)]
pub struct Rdma {
    /// The path of libibverbs.
    pub library: Option<PathBuf>,
    /// How many kinds of cards it has drivers for.
    pub providers: usize,
    /// The kernel's devices.
    pub devices: Vec<Device>,
    /// The kernel's modules.
    pub modules: Modules,
    /// A network device that Soft-RoCE could use.
    pub network: Option<String>,
}

/// A device of the kernel's.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Device {
    /// Its name, as `rdma link` shows it.
    pub name: String,
    /// The file by which programs use it.
    pub file: Option<PathBuf>,
    /// Whether this user may open it.
    pub is_accessible: bool,
    /// Its ports.
    pub ports: Vec<Port>,
}

/// A port of a device.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Port {
    /// Its number, from 1.
    pub port: u8,
    /// `ACTIVE`, `DOWN`, `INIT`, …
    pub state: String,
    /// `Ethernet` (RoCE) or `InfiniBand`.
    pub link_layer: String,
    /// The rate, in the kernel's words.
    pub rate: String,
    /// Its addresses.
    pub gids: Vec<Gid>,
}

/// An address of a port.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Gid {
    /// Its place in the port's table.
    pub index: u8,
    /// The address.
    pub gid: Ipv6Addr,
    /// `RoCE v1`, `RoCE v2` or `InfiniBand`.
    pub kind: String,
}

impl Rdma {
    /// Looks at the host whose files are below `root`.
    pub fn look(root: &Path, release: &str) -> Self {
        let library = libraries(root).into_iter().find(|path| path.exists());
        let folder = library.as_ref().and_then(|path| path.parent());
        let drivers = folder.map(|folder| folder.join("libibverbs"));
        let is_driver = |name: &String| name.starts_with("lib") && name.contains("-rdmav");
        let providers = drivers.map_or(0, |at| names(&at).iter().filter(|n| is_driver(n)).count());
        let devices = names(&root.join("sys/class/infiniband"));
        Self {
            library,
            providers,
            devices: devices.into_iter().map(|name| device(root, name)).collect(),
            modules: Modules::look(root, release),
            network: network(root),
        }
    }

    /// The findings that matter.
    pub fn findings(&self, wanted: Wanted) -> Vec<Finding> {
        let missing = wanted.mark_of_missing_rdma();
        let mut findings = vec![self.library(missing), self.modules(), self.devices(missing)];
        for device in &self.devices {
            findings.push(device.rights(missing));
            findings.extend(device.ports.iter().map(|port| port.finding(&device.name)));
        }
        let text = "not needed: nodes meet at their control ports (`loch serve --listen`)";
        findings.push(Finding::ok(Section::Rdma, "rdma_cm", text));
        findings
    }

    fn library(&self, missing: Mark) -> Finding {
        const NAME: &str = "libibverbs";
        const REMEDY: &str = "apt-get install libibverbs1 ibverbs-providers";
        match &self.library {
            None => Finding::new(missing, Section::Rdma, NAME, "is not installed"),
            Some(path) if self.providers == 0 => {
                let text = format!("{}, but no driver for any card", path.display());
                Finding::new(missing, Section::Rdma, NAME, text)
            }
            Some(path) => {
                let text = format!("{} (Debian: libibverbs1, ibverbs-providers)", path.display());
                return Finding::ok(Section::Rdma, NAME, text);
            }
        }
        .with_remedy(REMEDY)
    }

    fn modules(&self) -> Finding {
        const NAME: &str = "kernel modules";
        let text = self.modules.in_words();
        match self.modules.ib_uverbs {
            Module::Loaded => Finding::ok(Section::Rdma, NAME, text),
            Module::Available => Finding::new(Mark::Note, Section::Rdma, NAME, text)
                .with_remedy("modprobe ib_uverbs"),
            Module::Missing => Finding::new(Mark::Note, Section::Rdma, NAME, text),
        }
    }

    fn devices(&self, missing: Mark) -> Finding {
        let names: Vec<&str> = self.devices.iter().map(|device| device.name.as_str()).collect();
        let soft_roce = self.modules.soft_roce(self.network.as_deref());
        if names.is_empty() {
            return Finding::new(missing, Section::Rdma, "devices", "there is none")
                .with_remedy(format!("an RDMA card, or Soft-RoCE: {soft_roce}"));
        }
        let mut ports = self.devices.iter().flat_map(|device| &device.ports);
        if !ports.any(|port| port.is_active()) {
            let text = format!("{}: no port is active", names.join(", "));
            return Finding::new(missing, Section::Rdma, "devices", text)
                .with_remedy("see each port below");
        }
        Finding::ok(Section::Rdma, "devices", names.join(", "))
    }
}

impl Device {
    fn rights(&self, missing: Mark) -> Finding {
        let name = format!("{} file", self.name);
        let Some(file) = &self.file else {
            return Finding::new(missing, Section::Rdma, &name, "there is none")
                .with_remedy("modprobe ib_uverbs; in a container, --device /dev/infiniband");
        };
        if self.is_accessible {
            return Finding::ok(Section::Rdma, &name, file.display().to_string());
        }
        let text = format!("{} cannot be opened for reading and writing", file.display());
        Finding::new(missing, Section::Rdma, &name, text).with_remedy(format!(
            "apt-get install rdma-core (its udev rules let everybody), or chmod 666 {}",
            file.display()
        ))
    }
}

impl Port {
    fn is_active(&self) -> bool {
        self.state == "ACTIVE"
    }

    fn finding(&self, device: &str) -> Finding {
        let name = format!("{device} port {}", self.port);
        let gids = self.gids.iter().map(|gid| format!("{} {} {}", gid.index, gid.gid, gid.kind));
        let gids: Vec<String> = gids.collect();
        let gids = if gids.is_empty() { "none".to_owned() } else { gids.join("; ") };
        let text = format!("{}, {}, {}; GIDs: {gids}", self.state, self.link_layer, self.rate);
        if !self.is_active() {
            let remedy = match (self.link_layer.as_str(), self.state.as_str()) {
                ("InfiniBand", "INIT") => "no subnet manager answers: start opensm",
                ("InfiniBand", _) => "is the cable in?",
                _ => "ip link set its network device up; is the cable in?",
            };
            return Finding::new(Mark::Note, Section::Rdma, &name, text).with_remedy(remedy);
        }
        if self.gids.is_empty() {
            return Finding::new(Mark::Note, Section::Rdma, &name, text)
                .with_remedy("give its network device an IP address");
        }
        Finding::ok(Section::Rdma, &name, text)
    }
}

/// The paths at which distributions put the library.
fn libraries(root: &Path) -> Vec<PathBuf> {
    let lib = root.join("usr/lib");
    // Debian's folder of an architecture is named after it.
    let debian = names(&lib).into_iter().filter(|name| name.contains("-linux-"));
    let folders = debian.map(|name| lib.join(name));
    let folders = folders.chain([root.join("usr/lib64"), lib.clone(), root.join("usr/local/lib")]);
    folders.map(|folder| folder.join("libibverbs.so.1")).collect()
}

fn device(root: &Path, name: String) -> Device {
    let class = root.join("sys/class/infiniband_verbs");
    let is_its = |uverbs: &String| line(&class.join(uverbs).join("ibdev")) == name;
    let uverbs = names(&class).into_iter().find(is_its);
    let file = uverbs.map(|uverbs| root.join("dev/infiniband").join(uverbs));
    let file = file.filter(|path| path.exists());
    let rights = rustix::fs::Access::READ_OK | rustix::fs::Access::WRITE_OK;
    let is_accessible = file.as_ref().is_some_and(|path| rustix::fs::access(path, rights).is_ok());
    let ports = root.join("sys/class/infiniband").join(&name).join("ports");
    let numbers = names(&ports).into_iter().filter_map(|number| number.parse().ok());
    let ports = numbers.map(|number| port(&ports, number)).collect();
    Device { name, file, is_accessible, ports }
}

fn port(ports: &Path, number: u8) -> Port {
    let folder = ports.join(number.to_string());
    let state = line(&folder.join("state"));
    let state = state.split_once(": ").map_or(state.as_str(), |(_, word)| word).to_owned();
    let link_layer = line(&folder.join("link_layer"));
    let gid = |index: u8| {
        let index_text = index.to_string();
        let gid: Ipv6Addr = line(&folder.join("gids").join(&index_text)).parse().ok()?;
        let kind = line(&folder.join("gid_attrs/types").join(&index_text));
        // The kernel has one word for both.
        let kind = match (kind.as_str(), link_layer.as_str()) {
            (_, "InfiniBand") => "InfiniBand",
            ("IB/RoCE v1", _) => "RoCE v1",
            (kind, _) => kind,
        };
        (!gid.is_unspecified()).then(|| Gid { index, gid, kind: kind.to_owned() })
    };
    let gids = (0..u8::MAX).map_while(|index| {
        let is_there = folder.join("gids").join(index.to_string()).exists();
        is_there.then(|| gid(index))
    });
    let gids = gids.flatten().collect();
    Port { port: number, state, rate: line(&folder.join("rate")), gids, link_layer }
}

/// The first network device that is up and not the loopback.
fn network(root: &Path) -> Option<String> {
    let class = root.join("sys/class/net");
    let is_up = |name: &String| line(&class.join(name).join("operstate")) == "up";
    names(&class).into_iter().filter(|name| name != "lo").find(is_up)
}

/// The first line of a file; empty where there is none.
fn line(path: &Path) -> String {
    fs::read_to_string(path).unwrap_or_default().trim().to_owned()
}

/// The names in a folder, in order.
fn names(folder: &Path) -> Vec<String> {
    let entries = fs::read_dir(folder).into_iter().flatten().flatten();
    let mut names: Vec<String> =
        entries.filter_map(|entry| entry.file_name().into_string().ok()).collect();
    names.sort_unstable();
    names
}

#[cfg(test)]
mod tests {
    use super::super::fixtures::Tree;
    use super::*;

    fn look(tree: &Tree) -> Rdma {
        Rdma::look(tree.root(), "6.1.0-42-amd64")
    }

    fn mark(rdma: &Rdma, wanted: Wanted, name: &str) -> (Mark, String) {
        let found = rdma.findings(wanted).into_iter().find(|one| one.name == name);
        let found = found.unwrap_or_else(|| panic!("nothing is said of {name}"));
        (found.mark, found.text + " " + &found.remedy.unwrap_or_default())
    }

    #[test]
    fn a_host_without_rdma_is_told_how_to_get_it() {
        let tree = Tree::host();
        let rdma = look(&tree);
        assert!(rdma.devices.is_empty() && rdma.library.is_none());
        assert_eq!(mark(&rdma, Wanted::Shm, "devices").0, Mark::Note);
        assert_eq!(mark(&rdma, Wanted::Verbs, "devices").0, Mark::Problem);
        let (missing, words) = mark(&rdma, Wanted::Verbs, "libibverbs");
        assert_eq!(missing, Mark::Problem);
        assert!(words.contains("apt-get install libibverbs1"), "{words}");
        tree.write("sys/module/rdma_rxe/refcnt", "0\n");
        let (_, words) = mark(&look(&tree), Wanted::Verbs, "devices");
        assert!(words.ends_with("rdma link add rxe0 type rxe netdev enp3s0"), "{words}");
    }

    #[test]
    fn a_roce_card_is_described() {
        let rdma = look(&Tree::roce());
        let [device] = &rdma.devices[..] else { panic!("{:?}", rdma.devices) };
        assert!(device.name == "mlx5_0" && device.is_accessible);
        let [port] = &device.ports[..] else { panic!("{:?}", device.ports) };
        assert!(port.is_active() && port.link_layer == "Ethernet");
        let kinds: Vec<_> = port.gids.iter().map(|g| (g.index, g.kind.as_str())).collect();
        assert_eq!(kinds, [(0, "RoCE v1"), (1, "RoCE v2"), (2, "RoCE v2")]);
        assert_eq!(port.gids[2].gid.to_ipv4_mapped(), Some([10, 9, 0, 1].into()));
        let findings = rdma.findings(Wanted::Verbs);
        assert!(findings.iter().all(|one| one.mark == Mark::Ok), "{findings:?}");
    }

    #[test]
    fn a_port_that_is_down_leaves_nothing_to_use() {
        let rdma = look(&Tree::port_down());
        assert_eq!(mark(&rdma, Wanted::Verbs, "devices").0, Mark::Problem);
        let (down, words) = mark(&rdma, Wanted::Verbs, "mlx5_0 port 1");
        assert_eq!(down, Mark::Note);
        assert!(words.starts_with("DOWN") && words.contains("cable"), "{words}");
    }

    #[test]
    fn an_infiniband_port_has_infiniband_addresses() {
        let tree = Tree::infiniband();
        let rdma = look(&tree);
        let (active, words) = mark(&rdma, Wanted::Verbs, "mlx4_0 port 1");
        assert_eq!(active, Mark::Ok);
        assert!(words.contains("0 fe80::2:c903:0:1f31 InfiniBand"), "{words}");
        tree.write("sys/class/infiniband/mlx4_0/ports/1/state", "2: INIT\n");
        assert!(mark(&look(&tree), Wanted::Verbs, "mlx4_0 port 1").1.contains("opensm"));
    }

    #[test]
    fn a_device_without_a_file_cannot_be_used() {
        let tree = Tree::roce();
        fs::remove_file(tree.root().join("dev/infiniband/uverbs0")).expect("it was there");
        let rdma = look(&tree);
        assert_eq!(mark(&rdma, Wanted::Verbs, "mlx5_0 file").0, Mark::Problem);
        let drivers = tree.root().join("usr/lib/x86_64-linux-gnu/libibverbs");
        fs::remove_dir_all(drivers).expect("it was there");
        assert_eq!(mark(&look(&tree), Wanted::Verbs, "libibverbs").0, Mark::Problem);
    }
}
