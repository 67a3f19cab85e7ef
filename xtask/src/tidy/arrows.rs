//! The crates that a crate may use.

use toml::{Table, Value};

use super::Finding;
use crate::tree::{File, Tree};

/// The crates, lowest first. Each may depend on the crates before it.
const LAYERS: [&str; 8] = [
    "loch-fabric",
    "loch-engines",
    "loch",
    "loch-gateway",
    "loch-bench",
    "loch-cli",
    "loch-papers",
    "loch-fuzz",
];

/// Dependencies between the crates point down, for tests and builds too.
pub fn arrows_point_down(tree: &Tree) -> Vec<Finding> {
    let is_manifest =
        |file: &&File| file.path.starts_with("crates/") && file.path.ends_with("/Cargo.toml");
    tree.files.iter().filter(is_manifest).flat_map(check).collect()
}

fn check(file: &File) -> Vec<Finding> {
    let report = |line, message: String, fix| Finding::new(file, line, "arrows", message, fix);
    let manifest: Table = match file.text.parse() {
        Ok(manifest) => manifest,
        Err(error) => return vec![report(0, error.message().to_owned(), "correct the TOML")],
    };
    let name = manifest.get("package").and_then(|package| package.get("name"));
    let Some(name) = name.and_then(Value::as_str) else {
        return vec![report(0, "no package name".to_owned(), "name the package")];
    };
    let Some(layer) = LAYERS.iter().position(|&known| known == name) else {
        let message = format!("crate `{name}` has no place among the layers");
        return vec![report(0, message, "give it one in xtask/src/tidy/arrows.rs")];
    };
    let mut found = Vec::new();
    for dependency in dependencies(&manifest) {
        if LAYERS.iter().position(|&known| known == dependency).is_some_and(|to| to >= layer) {
            let line = file.text.lines().position(|line| line.contains(&dependency)).unwrap_or(0);
            let message = format!("`{name}` depends on `{dependency}`, which is not below it");
            found.push(report(line, message, "move what it needs down, or take it as a trait"));
        }
    }
    found
}

/// The packages a manifest asks for, of every kind and for every target.
fn dependencies(manifest: &Table) -> Vec<String> {
    let targets = manifest.get("target").and_then(Value::as_table);
    let targets = targets.into_iter().flat_map(|all| all.values().filter_map(Value::as_table));
    let kinds = ["dependencies", "dev-dependencies", "build-dependencies"];
    let tables = std::iter::once(manifest).chain(targets);
    let tables = tables.flat_map(|table| kinds.into_iter().filter_map(|kind| table.get(kind)));
    let package = |(key, value): (&String, &Value)| {
        value.get("package").and_then(Value::as_str).unwrap_or(key).to_owned()
    };
    tables.filter_map(Value::as_table).flat_map(|all| all.iter().map(package)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tidy::lines_found;

    #[test]
    fn crates_use_those_below() {
        let path = "crates/engines/Cargo.toml";
        let good =
            "[package]\nname = \"loch-engines\"\n[dependencies]\nloch-fabric.workspace = true\n";
        assert!(lines_found(arrows_point_down, path, good).is_empty());
        let bad =
            format!("{good}[target.'cfg(unix)'.dev-dependencies]\nup = {{ package = \"loch\" }}\n");
        assert_eq!(lines_found(arrows_point_down, path, &bad).len(), 1);
        let unknown = "[package]\nname = \"loch-extras\"\n";
        assert_eq!(lines_found(arrows_point_down, path, unknown), [1]);
    }
}
