//! Modules of a folder that use each other are one module in several files.

use std::collections::{BTreeMap, BTreeSet};

use super::Finding;
use crate::modules::{Uses, globs, uses_by_folder};
use crate::tree::Tree;

/// A folder, and its modules that may still be in a circle.
type Known = (&'static str, &'static [&'static str]);

/// Circles that are still to be opened. The list only shrinks: a module that is in no circle any
/// more has to be taken out.
const KNOWN: [Known; 0] = [];

/// Uses between the modules of a folder make no circle. A folder counts as one module for the
/// modules beside it; a module and those inside it may use each other.
pub fn modules_make_no_circle(tree: &Tree) -> Vec<Finding> {
    circles_but(tree, &KNOWN)
}

/// A product file imports the names of its crate's modules one by one, so that uses can be found.
pub fn own_modules_are_imported_by_name(tree: &Tree) -> Vec<Finding> {
    let describe = |(file, line)| {
        let message = "all names of a module of the crate are imported".to_owned();
        Finding::new(file, line, "glob", message, "name what is used")
    };
    globs(tree).into_iter().map(describe).collect()
}

fn circles_but(tree: &Tree, known: &[Known]) -> Vec<Finding> {
    let mut found = Vec::new();
    let mut listed: BTreeSet<(String, String)> = BTreeSet::new();
    for (folder, modules) in known {
        listed.extend(modules.iter().map(|module| ((*folder).to_owned(), (*module).to_owned())));
    }
    let mut opened = listed.clone();
    for (folder, uses) in uses_by_folder(tree) {
        for circle in circles_in(&uses) {
            let places = circle.iter().map(|module| (folder.clone(), (*module).clone()));
            if !places.clone().all(|place| listed.contains(&place)) {
                found.push(describe(&folder, &circle, &uses));
            }
            places.for_each(|place| _ = opened.remove(&place));
        }
    }
    found.extend(opened.into_iter().map(|(folder, module)| Finding {
        path: file!().to_owned(),
        line: 1,
        rule: "circle",
        message: format!("`{module}` of {folder} is in no circle any more"),
        fix: "take it out of the list of known circles",
        warning: false,
    }));
    found
}

/// The circles between modules: each once, with all of its modules.
fn circles_in<'a>(uses: &'a Uses<'_>) -> Vec<BTreeSet<&'a String>> {
    let mut reach: BTreeMap<&String, BTreeSet<&String>> = BTreeMap::new();
    for module in uses.keys() {
        let (mut seen, mut next) = (BTreeSet::new(), vec![module]);
        while let Some(module) = next.pop() {
            let used = uses.get(module).into_iter().flat_map(BTreeMap::keys);
            next.extend(used.filter(|to| seen.insert(*to)));
        }
        reach.insert(module, seen);
    }
    let mut circles: Vec<BTreeSet<&String>> = Vec::new();
    for (module, reached) in &reach {
        let comes_back =
            |other: &&&String| reach.get(**other).is_some_and(|it| it.contains(module));
        let circle: BTreeSet<&String> = reached.iter().filter(comes_back).copied().collect();
        if !circle.is_empty() && !circles.contains(&circle) {
            circles.push(circle);
        }
    }
    circles
}

fn describe(folder: &str, circle: &BTreeSet<&String>, uses: &Uses<'_>) -> Finding {
    let mut inside = Vec::new();
    for from in circle {
        let used = uses[*from].iter().filter(|(to, _)| circle.contains(to));
        inside.extend(used.map(|(to, &(file, line))| (from, to, file, line)));
    }
    let told = inside
        .iter()
        .map(|(from, to, file, line)| format!("{from} uses {to} in {}:{}", file.path, line + 1));
    let told = told.collect::<Vec<_>>().join("; ");
    let message = format!("{} modules of {folder} use each other: {told}", circle.len());
    let fix = "move what both need to a module below, or take it as a trait";
    let (_, _, file, line) = inside[0];
    Finding::new(file, line, "circle", message, fix)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn messages(files: &[(&str, &str)], known: &[Known]) -> Vec<String> {
        circles_but(&Tree::of(files), known).into_iter().map(|it| it.message).collect()
    }

    const CIRCLE: [(&str, &str); 5] = [
        ("crates/a/src/lib.rs", "mod client;\nmod node;\nmod wire;\npub use node::Node;\n"),
        ("crates/a/src/client/mod.rs", "mod open;\n"),
        ("crates/a/src/client/open.rs", "use crate::Node;\nuse crate::wire::Frame;\n"),
        ("crates/a/src/node.rs", "use crate::client;\n"),
        ("crates/a/src/wire.rs", "pub struct Frame;\n"),
    ];

    #[test]
    fn a_circle_is_found_through_either_of_two_imports_of_a_name() {
        let other = "mod client;\nmod node;\nmod wire;\n#[cfg(a)]\npub use wire::Node;\n\
                     #[cfg(b)]\npub use node::Node;\n";
        let files = CIRCLE.map(|(path, text)| match path {
            "crates/a/src/lib.rs" => (path, other),
            _ => (path, text),
        });
        assert_eq!(messages(&files, &[]).len(), 1);
    }

    #[test]
    fn a_circle_is_found_through_modules_that_a_path_leads_to() {
        let lib = "#[path = \"no_card.rs\"]\nmod card;\nmod link;\n\
                   #[path = \"../../outside/mod.rs\"]\nmod example;\n";
        let files = [
            ("crates/a/src/lib.rs", lib),
            ("crates/a/src/no_card.rs", "use crate::link::Link;\n"),
            ("crates/a/src/link.rs", "use crate::card::Card;\nuse crate::example::serve;\n"),
            ("crates/outside/mod.rs", "mod serve;\n"),
            ("crates/outside/serve.rs", "fn f() { crate::link::f(); }\n"),
        ];
        let found = messages(&files, &[]);
        let words = "3 modules of crates/a/src/ use each other: card uses link in \
                     crates/a/src/no_card.rs:1; example uses link in crates/outside/serve.rs:1";
        assert_eq!(found.len(), 1, "{found:?}");
        assert!(found[0].starts_with(words), "{found:?}");
    }

    #[test]
    fn a_glob_of_a_module_of_the_crate_is_found() {
        let tree = Tree::of(&[
            ("crates/a/src/lib.rs", "mod node;\nmod kind;\npub use node::*;\nuse std::io::*;\n"),
            ("crates/a/src/kind.rs", "pub enum Kind { A }\nuse Kind::*;\nuse self::Kind::*;\n"),
            (
                "crates/a/src/node.rs",
                "use super::*;\n#[cfg(test)]\nmod tests {\n    use super::*;\n}\n",
            ),
        ]);
        let found = own_modules_are_imported_by_name(&tree);
        let places: Vec<_> = found.iter().map(|it| (it.path.as_str(), it.line)).collect();
        assert_eq!(places, [("crates/a/src/lib.rs", 3), ("crates/a/src/node.rs", 1)]);
    }

    #[test]
    fn a_circle_is_found_through_folders_and_names_that_are_exported_again() {
        let found = messages(&CIRCLE, &[]);
        assert_eq!(found.len(), 1, "{found:?}");
        let words =
            ["2 modules of crates/a/src/ use", "client uses node", "node uses client", "open.rs:1"];
        for word in words {
            assert!(found[0].contains(word), "{word}: {found:?}");
        }
        let harmless = CIRCLE.map(|(path, text)| match path {
            "crates/a/src/node.rs" => {
                (path, "#[cfg(test)]\nmod tests {\n    use crate::client;\n}\n")
            }
            _ => (path, text),
        });
        assert_eq!(messages(&harmless, &[]), [""; 0]);
    }

    #[test]
    fn a_module_and_those_inside_it_may_use_each_other() {
        let inner = "use super::Node;\n";
        let files = [
            ("crates/a/src/lib.rs", "mod node;\n"),
            ("crates/a/src/node/mod.rs", "mod inner;\nuse self::inner::f;\npub struct Node;\n"),
            ("crates/a/src/node/inner.rs", inner),
        ];
        assert_eq!(messages(&files, &[]), [""; 0]);
        let beside = format!("{inner}use super::other;\n");
        let other = ("crates/a/src/node/other.rs", "use super::inner::f;\n");
        let files = [files[0], files[1], ("crates/a/src/node/inner.rs", &beside[..]), other];
        assert!(
            messages(&files, &[])[0].starts_with("2 modules of crates/a/src/node/ use each other")
        );
    }

    #[test]
    fn known_circles_do_not_grow_and_are_not_kept_when_they_are_open() {
        assert_eq!(messages(&CIRCLE, &[("crates/a/src/", &["client", "node"])]), [""; 0]);
        let found = messages(&CIRCLE, &[("crates/a/src/", &["client", "node", "wire"])]);
        assert_eq!(found, ["`wire` of crates/a/src/ is in no circle any more"]);
        assert_eq!(messages(&CIRCLE, &[("crates/a/src/", &["client", "wire"])]).len(), 2);
        let all = messages(&CIRCLE[4..], &[("crates/a/src/", &["client", "node"])]);
        assert_eq!(all.len(), 2);
    }
}
