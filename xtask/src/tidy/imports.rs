//! What the engines may name: they are protocols over a trait, the same code in production and in
//! the simulator.

use super::Finding;
use crate::rust_source::{Line, has_word};
use crate::tree::Tree;

const ENGINES: &str = "crates/engines/src/";
const SYSTEM_MODULES: [&str; 4] = ["net", "fs", "thread", "process"];
const SYSTEM_CLOCKS: [&str; 2] = ["Instant", "SystemTime"];
const BACKENDS: [&str; 3] = ["shm", "verbs", "sim"];

/// An engine has no sockets, files, threads, processes or clock of its own: on the simulator these
/// would not be virtual, and a seed would no longer reproduce a run.
pub fn engines_call_no_system(tree: &Tree) -> Vec<Finding> {
    let mut found = Vec::new();
    for (file, rust) in tree.rust(ENGINES) {
        let mut report = |line: usize, what: &str| {
            let message = format!("engine code uses `{what}`");
            let fix = "take it as a trait: time, randomness, storage and membership come in";
            found.push(Finding::new(file, line, "engine-imports", message, fix));
        };
        for (line, path) in rust.paths() {
            if !rust.lines[line].test && names_system_module(&path) {
                report(line, &path);
            }
        }
        for (line, Line { code, .. }) in rust.product() {
            for clock in SYSTEM_CLOCKS.into_iter().filter(|clock| has_word(code, clock)) {
                report(line, clock);
            }
        }
    }
    found
}

/// An engine is generic over the fabric trait. One that names a backend would be held to that
/// backend's promises, which are more than RDMA's.
pub fn engines_name_no_backend(tree: &Tree) -> Vec<Finding> {
    let mut found = Vec::new();
    for (file, rust) in tree.rust(ENGINES) {
        for (line, path) in rust.paths() {
            if !rust.lines[line].test && names_backend(&path) {
                let message = format!("engine code names the backend `{path}`");
                let fix = "be generic over the fabric trait, or ask its capabilities";
                found.push(Finding::new(file, line, "engine-backend", message, fix));
            }
        }
    }
    found
}

fn names_system_module(path: &str) -> bool {
    let mut segments = path.trim_start_matches("::").split("::");
    segments.next() == Some("std") && segments.next().is_some_and(|s| SYSTEM_MODULES.contains(&s))
}

fn names_backend(path: &str) -> bool {
    let segments: Vec<&str> = path.trim_start_matches("::").split("::").collect();
    let in_fabric = segments[0] == "loch_fabric";
    let last = segments.len() - 1;
    let is_module =
        |(n, segment): (usize, &&str)| BACKENDS.contains(segment) && (in_fabric || n < last);
    segments.iter().enumerate().any(is_module)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tidy::lines_found;

    const PATH: &str = "crates/engines/src/nessie/get.rs";

    #[test]
    fn engines_get_time_and_storage_from_traits() {
        let good = "use std::time::Duration;\nuse crate::fs::Disk; // not std::fs\nlet net = 1;\n\
                    #[cfg(test)]\nmod tests {\n    use std::thread;\n}\n";
        assert!(lines_found(engines_call_no_system, PATH, good).is_empty());
        let bad = "use std::{fmt, net::TcpStream};\nlet t = Instant::now();\nstd::fs::read(p);\n";
        assert_eq!(lines_found(engines_call_no_system, PATH, bad), [1, 3, 2]);
        assert!(lines_found(engines_call_no_system, "crates/loch/src/lib.rs", bad).is_empty());
    }

    #[test]
    fn engines_are_generic_over_backends() {
        let good = "use loch_fabric::{Fabric, lanes};\nlet verbs = self.verbs;\n/// [`shm::X`]\n\
                    #[cfg(test)]\nuse loch_fabric::sim;\n";
        assert!(lines_found(engines_name_no_backend, PATH, good).is_empty());
        let bad = "use loch_fabric::{self, sim};\nlet f = shm::Shm::open();\n";
        assert_eq!(lines_found(engines_name_no_backend, PATH, bad), [1, 2]);
    }
}
