//! The needs of every node and client on this host: shared memory, locked memory, a kernel that is
//! new enough. The facts are read from files below a root, so that tests can have hosts of their
//! own.

use std::fs;
use std::path::Path;

use loch::Pages;
use loch::limits::{NODE_BYTES_DEFAULT, SESSIONS_DEFAULT};
use loch_fabric::shm::Region;
use serde::Serialize;

use super::Wanted;
use super::finding::{Finding, Mark, Section};
use crate::size::rounded;

/// The oldest kernel with everything that nodes use: pidfds that can be polled.
const KERNEL_MIN: (u32, u32) = (5, 3);
/// Bytes of a region that requests huge pages, to see whether there are any.
const TRIED_BYTES: u64 = 4 << 20;
/// The capability to lock memory without a limit: bit 14.
const CAP_IPC_LOCK: u64 = 1 << 14;
/// Descriptors of a node besides those of its clients: its files, sockets and devices.
const NODE_FILES: u64 = 64;

/// The facts about the host.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Host {
    /// The kernel's release.
    pub kernel: Option<String>,
    /// Bytes of `/dev/shm`, and how many are free; none without it.
    pub shm: Option<Room>,
    /// The policy for huge pages in shared memory: `always`, `advise`, `never`, …
    pub shmem_huge_pages: Option<String>,
    /// Whether a region that asked for huge pages got them; none if that was not tried.
    pub regions_get_huge_pages: Option<bool>,
    /// Locked memory, in bytes.
    pub locked_memory: Limit,
    /// Whether this process may lock memory beyond that.
    pub locks_without_limit: bool,
    /// Open files.
    pub open_files: Limit,
}

/// Room in a file system.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct Room {
    /// All of it.
    pub bytes: u64,
    /// Free bytes.
    pub free_bytes: u64,
    /// Whether this user may make files in it.
    pub is_writable: bool,
}

/// A limit of this process; `None` is unlimited.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Limit {
    /// The limit in effect.
    pub soft: Option<u64>,
    /// The value to which it may be raised.
    pub hard: Option<u64>,
}

impl Host {
    /// Looks at the host whose files are below `root`.
    pub fn look(root: &Path) -> Self {
        let text = |path: &str| fs::read_to_string(root.join(path)).ok();
        let limits = text("proc/self/limits").unwrap_or_default();
        let status = text("proc/self/status").unwrap_or_default();
        let huge = text("sys/kernel/mm/transparent_hugepage/shmem_enabled");
        Self {
            kernel: text("proc/sys/kernel/osrelease").map(|release| release.trim().to_owned()),
            shm: room(&root.join("dev/shm")),
            shmem_huge_pages: huge.as_deref().and_then(chosen).map(str::to_owned),
            regions_get_huge_pages: None,
            locked_memory: limit(&limits, "Max locked memory"),
            locks_without_limit: capabilities(&status) & CAP_IPC_LOCK != 0,
            open_files: limit(&limits, "Max open files"),
        }
    }

    /// Requests huge pages as a node does. Since Linux 6.1 they are available on request, whatever
    /// the files say.
    pub fn with_region(self) -> Self {
        let region = Region::anonymous(TRIED_BYTES).ok();
        let regions_get_huge_pages = region.map(|region| region.populate() == Pages::Huge);
        Self { regions_get_huge_pages, ..self }
    }

    /// The findings that matter.
    pub fn findings(&self, wanted: Wanted) -> Vec<Finding> {
        vec![
            self.kernel(),
            self.shared_memory(),
            self.huge_pages(),
            self.locked_memory(wanted),
            self.open_files(),
        ]
    }

    fn kernel(&self) -> Finding {
        let Some(release) = &self.kernel else {
            return Finding::new(Mark::Note, Section::Host, "kernel", "/proc is not mounted");
        };
        if version(release).is_some_and(|version| version < KERNEL_MIN) {
            let (major, minor) = KERNEL_MIN;
            return Finding::new(Mark::Problem, Section::Host, "kernel", release)
                .with_remedy(format!("Loch needs Linux {major}.{minor} or later"));
        }
        Finding::ok(Section::Host, "kernel", format!("Linux {release}"))
    }

    fn shared_memory(&self) -> Finding {
        const NAME: &str = "/dev/shm";
        let Some(room) = self.shm else {
            return Finding::new(Mark::Problem, Section::Host, NAME, "is not there")
                .with_remedy("mount -t tmpfs tmpfs /dev/shm");
        };
        let text = format!("{}, {} free", rounded(room.bytes), rounded(room.free_bytes));
        if !room.is_writable {
            return Finding::new(Mark::Problem, Section::Host, NAME, "cannot be written")
                .with_remedy("chmod 1777 /dev/shm");
        }
        if room.free_bytes < NODE_BYTES_DEFAULT {
            let needs = rounded(NODE_BYTES_DEFAULT);
            return Finding::new(Mark::Problem, Section::Host, NAME, text).with_remedy(format!(
                "a node takes {needs} unless `loch serve --memory` says less; \
                 mount -o remount,size=SIZE /dev/shm, or docker run --shm-size=SIZE"
            ));
        }
        Finding::ok(Section::Host, NAME, text)
    }

    fn huge_pages(&self) -> Finding {
        const NAME: &str = "huge pages";
        let how = self.shmem_huge_pages.as_deref().unwrap_or("not there");
        let file_says = matches!(how, "always" | "within_size" | "advise" | "force");
        if self.regions_get_huge_pages.unwrap_or(file_says) {
            return Finding::ok(
                Section::Host,
                NAME,
                format!("on request (shmem_enabled is {how})"),
            );
        }
        let text = format!("none (shmem_enabled is {how}): more cache misses in large regions");
        Finding::new(Mark::Note, Section::Host, NAME, text)
            .with_remedy("echo advise > /sys/kernel/mm/transparent_hugepage/shmem_enabled")
    }

    /// Only RDMA locks memory: a card writes pages that must stay where they are.
    fn locked_memory(&self, wanted: Wanted) -> Finding {
        const NAME: &str = "locked memory";
        let (soft, hard) = (shown(self.locked_memory.soft), shown(self.locked_memory.hard));
        let (needs, node) = (rounded(super::LOCKED_BYTES), rounded(NODE_BYTES_DEFAULT));
        let text = format!("limit {soft}, hard {hard}; with RDMA a node of {node} needs {needs}");
        if self.locked_memory.soft.is_none_or(|soft| soft >= super::LOCKED_BYTES) {
            return Finding::ok(Section::Host, NAME, format!("limit {soft}"));
        }
        if self.locks_without_limit {
            let text = format!("limit {soft}, but this process may exceed it (CAP_IPC_LOCK)");
            return Finding::ok(Section::Host, NAME, text);
        }
        Finding::new(wanted.mark_of_missing_rdma(), Section::Host, NAME, text).with_remedy(
            "ulimit -l unlimited, `LimitMEMLOCK=infinity` of systemd, or `* - memlock unlimited` \
             in /etc/security/limits.conf",
        )
    }

    fn open_files(&self) -> Finding {
        let soft = shown_count(self.open_files.soft);
        let wanted = u64::from(SESSIONS_DEFAULT) + NODE_FILES;
        if self.open_files.soft.is_none_or(|soft| soft >= wanted) {
            return Finding::ok(Section::Host, "open files", format!("limit {soft}"));
        }
        let text = format!("limit {soft}: a node has two for each client that is attached");
        Finding::new(Mark::Note, Section::Host, "open files", text)
            .with_remedy(format!("ulimit -n {}", 2 * wanted))
    }
}

/// The word in brackets in a file of choices: `always [madvise] never`.
fn chosen(text: &str) -> Option<&str> {
    let (_, rest) = text.split_once('[')?;
    rest.split_once(']').map(|(chosen, _)| chosen)
}

/// A line of `/proc/self/limits`.
fn limit(limits: &str, name: &str) -> Limit {
    let line = limits.lines().find_map(|line| line.strip_prefix(name));
    let mut values = line.unwrap_or_default().split_ascii_whitespace().map(|v| v.parse().ok());
    Limit { soft: values.next().flatten(), hard: values.next().flatten() }
}

/// The effective capabilities in `/proc/self/status`.
fn capabilities(status: &str) -> u64 {
    let line = status.lines().find_map(|line| line.strip_prefix("CapEff:"));
    line.and_then(|bits| u64::from_str_radix(bits.trim(), 16).ok()).unwrap_or(0)
}

fn version(release: &str) -> Option<(u32, u32)> {
    let mut numbers = release.split(|c: char| !c.is_ascii_digit()).map(str::parse);
    Some((numbers.next()?.ok()?, numbers.next()?.ok()?))
}

fn room(path: &Path) -> Option<Room> {
    let stat = rustix::fs::statvfs(path).ok()?;
    let bytes = |blocks: u64| blocks.saturating_mul(stat.f_frsize);
    let access = rustix::fs::Access::WRITE_OK | rustix::fs::Access::EXEC_OK;
    Some(Room {
        bytes: bytes(stat.f_blocks),
        free_bytes: bytes(stat.f_bavail),
        is_writable: rustix::fs::access(path, access).is_ok(),
    })
}

fn shown(limit: Option<u64>) -> String {
    limit.map_or("unlimited".to_owned(), rounded)
}

fn shown_count(limit: Option<u64>) -> String {
    limit.map_or("unlimited".to_owned(), |count| count.to_string())
}

#[cfg(test)]
mod tests {
    use super::super::fixtures::Tree;
    use super::*;

    fn marks(host: &Host, wanted: Wanted, name: &str) -> (Mark, String) {
        let found = host.findings(wanted).into_iter().find(|one| one.name == name);
        let found = found.expect("it is looked at");
        (found.mark, found.remedy.unwrap_or_default())
    }

    #[test]
    fn a_host_is_read_from_its_files() {
        let tree = Tree::host();
        let host = Host::look(tree.root());
        assert_eq!(host.kernel.as_deref(), Some("6.1.0-42-amd64"));
        assert_eq!(host.shmem_huge_pages.as_deref(), Some("never"));
        assert_eq!(host.locked_memory, Limit { soft: Some(8 << 20), hard: None });
        assert_eq!(host.open_files.soft, Some(20_000));
        assert!(!host.locks_without_limit && host.shm.is_some());
        assert_eq!(marks(&host, Wanted::Shm, "huge pages").0, Mark::Note);
        let tried = Host { regions_get_huge_pages: Some(true), ..host };
        assert_eq!(marks(&tried, Wanted::Shm, "huge pages").0, Mark::Ok);
        assert!(tried.with_region().regions_get_huge_pages.is_some());
    }

    #[test]
    fn too_little_locked_memory_is_a_problem_for_rdma_alone() {
        let tree = Tree::host();
        let host = Host::look(tree.root());
        assert_eq!(marks(&host, Wanted::Shm, "locked memory").0, Mark::Note);
        let (mark, remedy) = marks(&host, Wanted::Verbs, "locked memory");
        assert_eq!(mark, Mark::Problem);
        assert!(remedy.contains("ulimit -l"), "{remedy}");
        tree.write("proc/self/status", "Name:\tloch\nCapEff:\t000001ffffffffff\n");
        let root = Host::look(tree.root());
        assert_eq!(marks(&root, Wanted::Verbs, "locked memory").0, Mark::Ok);
    }

    #[test]
    fn a_host_without_shared_memory_or_with_an_old_kernel_will_not_do() {
        let tree = Tree::host();
        std::fs::remove_dir(tree.root().join("dev/shm")).expect("it is there");
        tree.write("proc/sys/kernel/osrelease", "4.19.0-27-amd64\n");
        let host = Host::look(tree.root());
        assert_eq!(marks(&host, Wanted::Shm, "/dev/shm").0, Mark::Problem);
        assert_eq!(marks(&host, Wanted::Shm, "kernel").0, Mark::Problem);
        let full = Room { bytes: 64 << 20, free_bytes: 64 << 20, is_writable: true };
        let full = Host { shm: Some(full), ..Host::default() };
        assert!(marks(&full, Wanted::Shm, "/dev/shm").1.contains("--shm-size"));
    }

    #[test]
    fn nothing_to_read_is_no_crash() {
        let nothing = Host::look(Path::new("/nowhere"));
        assert_eq!(nothing, Host::default());
        assert_eq!(nothing.findings(Wanted::Verbs).len(), 5);
        assert_eq!((version("6"), version("x.y")), (None, None));
    }
}
