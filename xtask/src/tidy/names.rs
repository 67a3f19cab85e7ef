//! The names of modules.

use super::Finding;
use crate::tree::Tree;

const EMPTY_NAMES: [&str; 6] = ["utils", "util", "common", "helpers", "helper", "misc"];

/// A module is named after what it owns; these names own nothing, and attract everything.
pub fn modules_say_what_they_hold(tree: &Tree) -> Vec<Finding> {
    let mut found = Vec::new();
    for (file, rust) in tree.rust("") {
        for module in &rust.modules {
            let name = &module.name;
            if EMPTY_NAMES.contains(&&name[..]) {
                let message = format!("module `{name}` says nothing about its content");
                let fix = "name it after the thing it owns, or move each piece to its user";
                found.push(Finding::new(file, module.line, "module-name", message, fix));
            }
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tidy::lines_found;

    #[test]
    fn modules_are_named_after_what_they_own() {
        let path = "crates/loch/src/lib.rs";
        let good = "mod commonest;\npub mod cluster_map;\n// mod utils;\n";
        assert!(lines_found(modules_say_what_they_hold, path, good).is_empty());
        let bad = "mod utils;\npub(crate) mod common {\n}\n";
        assert_eq!(lines_found(modules_say_what_they_hold, path, bad), [1, 2]);
    }
}
