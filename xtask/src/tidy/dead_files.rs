//! Files that nothing leads to.

use std::collections::BTreeSet;

use super::Finding;
use super::links::targets;
use crate::tree::{File, Tree, resolve};

/// Every Rust file is the root of a crate, or a module that another file declares.
pub fn rust_files_are_built(tree: &Tree) -> Vec<Finding> {
    let mut next: Vec<&File> = tree.files.iter().filter(|file| is_root(tree, file)).collect();
    let mut built: BTreeSet<&str> = next.iter().map(|file| &file.path[..]).collect();
    while let Some(file) = next.pop() {
        let modules = file.rust.iter().flat_map(|rust| &rust.modules);
        let modules = modules.filter(|module| !module.has_body);
        let folder = file.module_folder();
        let paths: Vec<String> =
            modules.flat_map(|module| file.module_paths(&folder, module)).collect();
        let reached = tree.files.iter().filter(|file| paths.contains(&file.path));
        next.extend(reached.filter(|file| built.insert(&file.path)));
    }
    let dead = tree.rust("").filter(|(file, _)| !built.contains(&file.path[..]));
    let fix = "declare it with `mod`, or delete it";
    dead.map(|(file, _)| Finding::new(file, 0, "dead-file", "no `mod` leads here", fix)).collect()
}

/// Every document can be reached from another, every script is run or named somewhere.
pub fn documents_and_scripts_are_found(tree: &Tree) -> Vec<Finding> {
    let documents = || tree.files.iter().filter(|file| file.path.ends_with(".md"));
    let mut linked = BTreeSet::new();
    for file in documents() {
        let targets = targets(&file.text).into_iter();
        let paths = targets.filter_map(|(_, target)| resolve(&file.path, &target));
        linked.extend(paths.filter(|path| *path != file.path));
    }
    let mut found = Vec::new();
    // GitHub and readers look for documents at the top by name.
    for file in documents().filter(|file| file.path.contains('/') && !linked.contains(&file.path)) {
        let fix = "link it where its readers come by, or delete it";
        found.push(Finding::new(file, 0, "dead-file", "no document links to this one", fix));
    }
    for file in tree.files.iter().filter(|file| file.path.ends_with(".sh")) {
        let name = file.path.rsplit('/').next().unwrap_or(&file.path);
        let mut others = tree.files.iter().filter(|other| other.path != file.path);
        if !others.any(|other| names(&other.text, name)) {
            let fix = "call it from the Makefile or another script, or delete it";
            found.push(Finding::new(file, 0, "dead-file", "nothing calls this script", fix));
        }
    }
    found
}

/// Whether `name` stands in `text`, and not as the end of a longer one.
fn names(text: &str, name: &str) -> bool {
    let is_longer = |c: char| c.is_alphanumeric() || c == '-' || c == '_';
    text.match_indices(name).any(|(at, _)| !text[..at].ends_with(is_longer))
}

/// Whether cargo starts a crate here: by the file's place in its package, or by the manifest.
fn is_root(tree: &Tree, file: &File) -> bool {
    let manifests = tree.files.iter().filter(|file| file.path.ends_with("Cargo.toml"));
    let mut manifests = manifests.filter(|manifest| manifest.text.contains("[package]"));
    manifests.any(|manifest| {
        let package = manifest.path.trim_end_matches("Cargo.toml");
        let by_place = file.path.strip_prefix(package).is_some_and(|path| {
            let (folder, name) = path.rsplit_once('/').unwrap_or(("", path));
            match folder {
                "" => name == "build.rs",
                "src" => name == "lib.rs" || name == "main.rs",
                "src/bin" | "tests" | "benches" | "examples" => true,
                // A folder of its own: `benches/accesses/main.rs`.
                _ => name == "main.rs" && folder.matches('/').count() == 1,
            }
        });
        let named = manifest.text.lines().filter_map(|line| line.strip_prefix("path = "));
        let mut named = named.filter_map(|path| resolve(&manifest.path, path.trim_matches('"')));
        by_place || named.any(|path| path == file.path)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn dead(rule: fn(&Tree) -> Vec<Finding>, files: &[(&str, &str)]) -> Vec<String> {
        rule(&Tree::of(files)).into_iter().map(|finding| finding.path).collect()
    }

    #[test]
    fn a_rust_file_that_no_mod_leads_to_is_dead() {
        let files = [
            ("crates/a/Cargo.toml", "[package]\n[[test]]\npath = \"../../tests/whole.rs\"\n"),
            ("crates/a/src/lib.rs", "mod get;\nmod inline {\n    mod deep;\n}\n"),
            ("crates/a/src/get.rs", "mod straight;\n"),
            ("crates/a/src/get/straight.rs", ""),
            ("crates/a/src/inline/deep/mod.rs", ""),
            ("crates/a/tests/whole.rs", "mod support;\n#[path = \"../elsewhere.rs\"]\nmod e;\n"),
            ("crates/a/tests/support/mod.rs", ""),
            ("crates/a/elsewhere.rs", ""),
            ("crates/a/benches/get/main.rs", "mod figures;\n"),
            ("crates/a/benches/get/figures.rs", ""),
            ("tests/whole.rs", ""),
        ];
        assert_eq!(dead(rust_files_are_built, &files), [""; 0]);
        let planted = [("crates/a/src/put.rs", ""), ("crates/a/src/put/straight.rs", "")];
        let planted = [&files[..], &planted, &[("tests/other.rs", "// mod put;\n")]].concat();
        let found = dead(rust_files_are_built, &planted);
        assert_eq!(
            found,
            ["crates/a/src/put.rs", "crates/a/src/put/straight.rs", "tests/other.rs"]
        );
    }

    #[test]
    fn documents_and_scripts_that_nothing_names_are_dead() {
        let files = [
            ("README.md", "[a](docs/a.md)\n"),
            ("docs/a.md", "[b](b.md#part)\n"),
            ("docs/b.md", ""),
            ("docs/c.md", "[c](c.md)\n"),
            ("Makefile", "test:\n\tscripts/test.sh\n"),
            ("scripts/test.sh", ""),
            ("scripts/other.sh", "scripts/other.sh another.sh\n"),
            ("scripts/another.sh", "an-other.sh\n"),
        ];
        let found = dead(documents_and_scripts_are_found, &files);
        assert_eq!(found, ["docs/c.md", "scripts/other.sh"]);
        let found = dead(documents_and_scripts_are_found, &files[..2]);
        assert_eq!(found, [""; 0]);
        assert_eq!(dead(documents_and_scripts_are_found, &files[2..3]), ["docs/b.md"]);
    }
}
