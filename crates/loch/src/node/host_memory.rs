//! The memory that this host can still give to a process.
//!
//! Pages of shared memory that the host or a control group cannot give are not refused: the kernel
//! ends a process instead. So a node asks before it takes them.

use std::path::{Path, PathBuf};

use loch_engines::size::InWords;

use crate::{ByteSize, Error, Result};

/// Where control groups of version 2 and of version 1 are mounted: see `cgroups(7)`.
const UNIFIED: &str = "sys/fs/cgroup";
const MEMORY: &str = "sys/fs/cgroup/memory";

/// Checks that the host and the control groups of this process have `bytes` to give.
///
/// # Errors
/// [`Error::HostMemory`] names the holder that has too little.
pub(crate) fn check_host(bytes: u64) -> Result<()> {
    check(Path::new("/"), bytes)
}

/// The check of a host whose files are below `root`. A file that cannot be read forbids nothing.
fn check(root: &Path, bytes: u64) -> Result<()> {
    let holders = std::iter::once(("this host".to_string(), of_host(root)));
    for (holder, left) in holders.chain(groups(root).map(|group| {
        let name = group.strip_prefix(root).unwrap_or(&group);
        (format!("the control group /{}", name.display()), of_group(&group))
    })) {
        if let Some(left) = left.filter(|left| *left < bytes) {
            return Err(Error::HostMemory {
                size: ByteSize::new(bytes),
                holder,
                left: InWords(left).to_string(),
            });
        }
    }
    Ok(())
}

/// The bytes that the host can give without ending a process.
fn of_host(root: &Path) -> Option<u64> {
    let text = std::fs::read_to_string(root.join("proc/meminfo")).ok()?;
    let kib = |name| field(&text, name, ':');
    Some((kib("MemAvailable")? + kib("SwapFree").unwrap_or(0)) << 10)
}

/// The folders of the control groups of this process, the innermost first.
fn groups(root: &Path) -> impl Iterator<Item = PathBuf> {
    let text = std::fs::read_to_string(root.join("proc/self/cgroup")).unwrap_or_default();
    let folder = |line: &str| {
        let mut parts = line.splitn(3, ':').skip(1);
        let (controllers, path) = (parts.next()?, parts.next()?.trim_start_matches('/'));
        let mount = match controllers {
            "" => UNIFIED,
            _ if controllers.split(',').any(|name| name == "memory") => MEMORY,
            _ => return None,
        };
        Some((root.join(mount), root.join(mount).join(path)))
    };
    let folders: Vec<_> = text.lines().filter_map(folder).collect();
    folders.into_iter().flat_map(|(mount, folder)| {
        // In a container the path may be another than the one that the host has.
        let inside = folder.ancestors().take_while(|at| at.starts_with(&mount));
        inside.map(Path::to_path_buf).collect::<Vec<_>>()
    })
}

/// The bytes that a control group can still give, if it has a limit: caches of files do not count,
/// since the kernel takes them back.
fn of_group(folder: &Path) -> Option<u64> {
    let read = |name| std::fs::read_to_string(folder.join(name)).ok();
    let stat = read("memory.stat")?;
    let used = |names: [&str; 2]| -> u64 {
        names.into_iter().filter_map(|name| field(&stat, name, ' ')).sum()
    };
    match (read("memory.max"), read("memory.limit_in_bytes")) {
        (Some(limit), _) => Some(number(&limit)?.saturating_sub(used(["anon", "shmem"]))),
        (_, Some(limit)) => {
            Some(number(&limit)?.saturating_sub(used(["total_rss", "total_shmem"])))
        }
        _ => None,
    }
}

/// The number in the line of `text` that begins with `name` and `separator`.
fn field(text: &str, name: &str, separator: char) -> Option<u64> {
    let rest = |line: &str| line.strip_prefix(name)?.strip_prefix(separator).map(str::to_owned);
    number(&text.lines().find_map(rest)?)
}

/// The number that `text` begins with; none for "max".
fn number(text: &str) -> Option<u64> {
    text.split_whitespace().next()?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A host with 8 GiB left, in which the process is in the group `/a/b`.
    fn host(version: &str, files: &[(&str, &str)]) -> tempfile::TempDir {
        let dir = tempfile::tempdir().unwrap();
        let meminfo = "MemTotal: 33554432 kB\nMemAvailable:    6291456 kB\nSwapFree: 2097152 kB\n";
        let group = match version {
            "2" => "0::/a/b\n",
            _ => "5:cpu:/\n4:memory,hugetlb:/a/b\n0::/\n",
        };
        let fixed = [("proc/meminfo", meminfo), ("proc/self/cgroup", group)];
        for (path, text) in fixed.iter().chain(files) {
            let path = dir.path().join(path);
            std::fs::create_dir_all(path.parent().unwrap()).unwrap();
            std::fs::write(path, text).unwrap();
        }
        dir
    }

    fn refusal(host: &tempfile::TempDir, bytes: u64) -> String {
        check(host.path(), bytes).err().map(|error| error.to_string()).unwrap_or_default()
    }

    #[test]
    fn a_node_that_needs_more_than_the_host_has_left_is_refused() {
        let host = host("2", &[]);
        assert_eq!(refusal(&host, 8 << 30), "");
        let text = refusal(&host, (8 << 30) + 4096);
        assert!(text.contains("this host has 8GiB") && text.contains("less memory"), "{text}");
    }

    #[test]
    fn a_limit_of_any_control_group_around_the_process_counts() {
        // The outer group has 4 GiB, of which 1 GiB is used by what cannot be taken back.
        let stat = "anon 536870912\nfile 2147483648\nkernel 1\nshmem 536870912\n";
        let second = host(
            "2",
            &[
                ("sys/fs/cgroup/a/b/memory.max", "max\n"),
                ("sys/fs/cgroup/a/b/memory.stat", stat),
                ("sys/fs/cgroup/a/memory.max", "4294967296\n"),
                ("sys/fs/cgroup/a/memory.stat", stat),
            ],
        );
        let stat = "rss 0\nshmem 0\ntotal_rss 1073741824\ntotal_shmem 0\n";
        let first = host(
            "1",
            &[
                ("sys/fs/cgroup/memory/a/memory.limit_in_bytes", "4294967296\n"),
                ("sys/fs/cgroup/memory/a/memory.stat", stat),
            ],
        );
        for host in [second, first] {
            assert_eq!(refusal(&host, 3 << 30), "");
            let text = refusal(&host, (3 << 30) + 1);
            assert!(text.contains("/a has 3GiB"), "{text}");
            let stat =
                if host.path().join("sys/fs/cgroup/memory").exists() { "memory/" } else { "" };
            let stat = host.path().join(format!("sys/fs/cgroup/{stat}a/memory.stat"));
            std::fs::write(stat, "anon 8589934592\ntotal_rss 8589934592\n").unwrap();
            assert!(refusal(&host, 1).contains("/a has 0 "), "a group may be over its limit");
        }
    }

    #[test]
    fn a_host_that_tells_nothing_refuses_nothing() {
        let dir = tempfile::tempdir().unwrap();
        assert_eq!(refusal(&dir, u64::MAX), "");
    }
}
