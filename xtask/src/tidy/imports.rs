//! The paths that engines may name: engines are protocols over a trait, the same code in production
//! and in the simulator.

use super::Finding;
use crate::tree::Tree;

const ENGINES: [&str; 2] = ["crates/engines/src/", "tests/example/"];
const SYSTEM_MODULES: [&str; 4] = ["net", "fs", "thread", "process"];
const BACKENDS: [&str; 3] = ["shm", "verbs", "sim"];

/// An engine has no sockets, files, threads or processes of its own: on the simulator these would
/// not be virtual, and a seed would no longer reproduce a run. (The engines' `clippy.toml` forbids
/// clocks, and calls by another name.)
pub fn engines_call_no_system(tree: &Tree) -> Vec<Finding> {
    let fix = "take it as a trait: time, randomness, storage and membership come in";
    engine_paths(tree, "engine-imports", names_system_module, "engine code uses", fix)
}

/// An engine is generic over the fabric trait. An engine that names a backend could rely on that
/// backend's promises, which are more than RDMA's.
pub fn engines_name_no_backend(tree: &Tree) -> Vec<Finding> {
    let fix = "be generic over the fabric trait, or ask its capabilities";
    engine_paths(tree, "engine-backend", names_backend, "engine code names the backend", fix)
}

fn engine_paths(
    tree: &Tree,
    rule: &'static str,
    is_forbidden: fn(&[String]) -> bool,
    message: &str,
    fix: &'static str,
) -> Vec<Finding> {
    let mut found = Vec::new();
    for (file, rust) in ENGINES.iter().flat_map(|folder| tree.rust(folder)) {
        for path in rust.product_paths().filter(|path| is_forbidden(&path.segments)) {
            let message = format!("{message} `{}`", path.segments.join("::"));
            found.push(Finding::new(file, path.line, rule, message, fix));
        }
    }
    found
}

fn names_system_module(path: &[String]) -> bool {
    path[0] == "std" && path.get(1).is_some_and(|module| SYSTEM_MODULES.contains(&&module[..]))
}

fn names_backend(path: &[String]) -> bool {
    let last = path.len() - 1;
    let is_module = |(n, segment): (usize, &String)| {
        BACKENDS.contains(&&segment[..]) && (path[0] == "loch_fabric" || n < last)
    };
    path.iter().enumerate().any(is_module)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tidy::lines_found;

    const PATH: &str = "crates/engines/src/nessie/ops/get.rs";

    #[test]
    fn engines_get_time_and_storage_from_traits() {
        let good = "use std::time::Duration;\nuse crate::fs::Disk; // not std::fs\nlet net = 1;\n\
                    #[cfg(test)]\nmod tests {\n    use std::thread;\n}\n";
        assert!(lines_found(engines_call_no_system, PATH, good).is_empty());
        let bad = "use std::{fmt, net::TcpStream};\nstd::fs::read(p);\n";
        assert_eq!(lines_found(engines_call_no_system, PATH, bad), [1, 2]);
        assert!(lines_found(engines_call_no_system, "crates/loch/src/lib.rs", bad).is_empty());
    }

    #[test]
    fn engines_are_generic_over_backends() {
        let good = "use loch_fabric::{Fabric, lanes};\nlet verbs = self.verbs;\n/// [`shm::X`]\n\
                    #[cfg(test)]\nuse loch_fabric::sim;\n";
        assert!(lines_found(engines_name_no_backend, PATH, good).is_empty());
        let bad = "use loch_fabric::{self, sim};\nlet f = shm::Shm::open();\n";
        assert_eq!(lines_found(engines_name_no_backend, PATH, bad), [1, 2]);
        assert_eq!(lines_found(engines_name_no_backend, "tests/example/mod.rs", bad), [1, 2]);
    }
}
