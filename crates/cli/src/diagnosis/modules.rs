//! The kernel's modules for RDMA: loaded, available, or missing.

use std::fs;
use std::path::Path;

use serde::Serialize;

const NO_SOFT_ROCE: &str = "this kernel has no rdma_rxe (of Debian's, linux-image-amd64 has it, \
    linux-image-cloud-amd64 has not); a checkout of Loch has vm/run, a virtual machine with it";

/// Whether a module can be used.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Module {
    /// Loaded, or part of the kernel.
    Loaded,
    /// `modprobe` finds it.
    Available,
    /// This kernel was built or packaged without it.
    Missing,
}

/// The modules that matter.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct Modules {
    /// Verbs from user space: every card needs it.
    pub ib_uverbs: Module,
    /// Soft-RoCE: RDMA over any network card.
    pub rdma_rxe: Module,
    /// Software iWARP.
    pub siw: Module,
}

impl Modules {
    /// Looks at the modules of the kernel of that release.
    pub fn look(root: &Path, release: &str) -> Self {
        let folder = root.join("lib/modules").join(release);
        let list = |name| fs::read_to_string(folder.join(name)).unwrap_or_default();
        let (available, built_in) = (list("modules.dep"), list("modules.builtin"));
        let state = |name: &str| {
            if root.join("sys/module").join(name).exists() || has(&built_in, name) {
                Module::Loaded
            } else if has(&available, name) {
                Module::Available
            } else {
                Module::Missing
            }
        };
        Self { ib_uverbs: state("ib_uverbs"), rdma_rxe: state("rdma_rxe"), siw: state("siw") }
    }

    /// The modules in words.
    pub fn in_words(&self) -> String {
        let all = [("ib_uverbs", self.ib_uverbs), ("rdma_rxe", self.rdma_rxe), ("siw", self.siw)];
        let word = |state| match state {
            Module::Loaded => "loaded",
            Module::Available => "available",
            Module::Missing => "missing",
        };
        all.map(|(name, state)| format!("{name} {}", word(state))).join(", ")
    }

    /// How this host gets an RDMA device without an RDMA card.
    pub fn soft_roce(&self, network: Option<&str>) -> String {
        let network = network.unwrap_or("eth0");
        let add = format!("rdma link add rxe0 type rxe netdev {network}");
        match self.rdma_rxe {
            Module::Loaded => add,
            Module::Available => format!("modprobe rdma_rxe; {add}"),
            Module::Missing => NO_SOFT_ROCE.to_owned(),
        }
    }
}

/// Whether a list of modules, one a line and by path, has that one, compressed or not.
fn has(list: &str, name: &str) -> bool {
    let mut paths = list.lines().map(|line| line.split(':').next().unwrap_or(line));
    paths.any(|path| {
        let file = path.rsplit('/').next().unwrap_or(path);
        file.split_once(".ko").is_some_and(|(stem, _)| stem.replace('-', "_") == name)
    })
}

#[cfg(test)]
mod tests {
    use super::super::fixtures::Tree;
    use super::*;

    const RELEASE: &str = "6.1.0-42-amd64";

    #[test]
    fn modules_are_loaded_or_available_or_missing() {
        let tree = Tree::host();
        let folder = format!("lib/modules/{RELEASE}");
        let available = "kernel/drivers/infiniband/sw/rxe/rdma_rxe.ko.xz: kernel/lib/crc32.ko\n";
        tree.write(&format!("{folder}/modules.dep"), available);
        tree.write("sys/module/ib_uverbs/refcnt", "0\n");
        let modules = Modules::look(tree.root(), RELEASE);
        let expected = Modules {
            ib_uverbs: Module::Loaded,
            rdma_rxe: Module::Available,
            siw: Module::Missing,
        };
        assert_eq!(modules, expected);
        let words = "ib_uverbs loaded, rdma_rxe available, siw missing";
        assert_eq!(modules.in_words(), words);
        let remedy = modules.soft_roce(Some("enp3s0"));
        assert_eq!(remedy, "modprobe rdma_rxe; rdma link add rxe0 type rxe netdev enp3s0");
        tree.write(&format!("{folder}/modules.builtin"), "kernel/drivers/siw.ko\n");
        assert_eq!(Modules::look(tree.root(), RELEASE).siw, Module::Loaded);
    }

    #[test]
    fn a_kernel_without_soft_roce_says_what_to_do() {
        let modules = Modules::look(Path::new("/nowhere"), RELEASE);
        assert!(modules.soft_roce(None).contains("linux-image-amd64"));
    }
}
