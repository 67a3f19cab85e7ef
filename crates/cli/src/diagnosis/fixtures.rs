//! Hosts made of files, for tests.

use std::fs;
use std::path::Path;

use tempfile::TempDir;

/// A root of files.
pub struct Tree {
    dir: TempDir,
}

impl Tree {
    /// A host without RDMA, with a limit of 8 MiB of locked memory.
    pub fn host() -> Self {
        let tree = Self { dir: tempfile::tempdir().expect("a temporary directory") };
        fs::create_dir_all(tree.root().join("dev/shm")).expect("it is new");
        tree.write("proc/sys/kernel/osrelease", "6.1.0-42-amd64\n");
        tree.write("proc/self/status", "Name:\tloch\nCapEff:\t0000000000000000\n");
        tree.write(
            "proc/self/limits",
            "Limit                     Soft Limit           Hard Limit           Units     \n\
             Max open files            20000                20000                files     \n\
             Max locked memory         8388608              unlimited            bytes     \n",
        );
        let choices = "always within_size advise [never] deny force\n";
        tree.write("sys/kernel/mm/transparent_hugepage/shmem_enabled", choices);
        tree.write("sys/class/net/lo/operstate", "unknown\n");
        tree.write("sys/class/net/enp3s0/operstate", "up\n");
        tree
    }

    /// A RoCE card of one port, which is up.
    pub fn roce() -> Self {
        let tree = Self::with_rdma("mlx5_0", "Ethernet", "4: ACTIVE");
        let port = "sys/class/infiniband/mlx5_0/ports/1";
        tree.gid(port, 0, "fe80:0000:0000:0000:5054:00ff:fe00:0001", "IB/RoCE v1");
        tree.gid(port, 1, "fe80:0000:0000:0000:5054:00ff:fe00:0001", "RoCE v2");
        tree.gid(port, 2, "0000:0000:0000:0000:0000:ffff:0a09:0001", "RoCE v2");
        tree.write(&format!("{port}/gids/3"), "0000:0000:0000:0000:0000:0000:0000:0000\n");
        tree
    }

    /// A RoCE card whose cable is out.
    pub fn port_down() -> Self {
        let tree = Self::roce();
        tree.write("sys/class/infiniband/mlx5_0/ports/1/state", "1: DOWN\n");
        tree
    }

    /// An InfiniBand card.
    pub fn infiniband() -> Self {
        let tree = Self::with_rdma("mlx4_0", "InfiniBand", "4: ACTIVE");
        let port = "sys/class/infiniband/mlx4_0/ports/1";
        tree.gid(port, 0, "fe80:0000:0000:0000:0002:c903:0000:1f31", "IB/RoCE v1");
        tree
    }

    fn with_rdma(device: &str, link_layer: &str, state: &str) -> Self {
        let tree = Self::host();
        let port = format!("sys/class/infiniband/{device}/ports/1");
        tree.write(&format!("{port}/state"), &format!("{state}\n"));
        tree.write(&format!("{port}/link_layer"), &format!("{link_layer}\n"));
        tree.write(&format!("{port}/rate"), "100 Gb/sec (4X EDR)\n");
        tree.write("sys/class/infiniband_verbs/uverbs0/ibdev", &format!("{device}\n"));
        tree.write("dev/infiniband/uverbs0", "");
        tree.write("sys/module/ib_uverbs/refcnt", "1\n");
        tree.write("usr/lib/x86_64-linux-gnu/libibverbs.so.1", "");
        tree.write("usr/lib/x86_64-linux-gnu/libibverbs/libmlx5-rdmav34.so", "");
        tree
    }

    fn gid(&self, port: &str, index: u8, gid: &str, kind: &str) {
        self.write(&format!("{port}/gids/{index}"), &format!("{gid}\n"));
        self.write(&format!("{port}/gid_attrs/types/{index}"), &format!("{kind}\n"));
    }

    /// Its path.
    pub fn root(&self) -> &Path {
        self.dir.path()
    }

    /// Writes a file.
    pub fn write(&self, path: &str, text: &str) {
        let path = self.root().join(path);
        fs::create_dir_all(path.parent().expect("it is below the root")).expect("it is writable");
        fs::write(path, text).expect("it is writable");
    }
}
