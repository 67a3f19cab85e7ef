//! Links of the documentation.

use super::Finding;
use crate::tree::{File, Tree, resolve};

/// A relative link in a Markdown file leads to a file or folder of the repository.
pub fn links_resolve(tree: &Tree) -> Vec<Finding> {
    let mut found = Vec::new();
    for file in tree.files.iter().filter(|file| file.path.ends_with(".md")) {
        for (n, target) in targets(&file.text) {
            if !resolve(&file.path, &target).is_some_and(|path| exists(tree, &path)) {
                let message = format!("nothing at `{target}`");
                let fix = "correct the path, or add the file it promises";
                found.push(Finding::new(file, n, "dead-link", message, fix));
            }
        }
    }
    found
}

/// A document that a comment or another document names exists: beside the file that names it, at
/// the root, or anywhere under its bare name.
pub fn named_documents_exist(tree: &Tree) -> Vec<Finding> {
    let mut found = Vec::new();
    for file in &tree.files {
        for (n, line) in file.text.lines().enumerate() {
            // In Rust, text between quotes belongs to a program.
            if file.rust.is_some() && !line.trim_start().starts_with("//") {
                continue;
            }
            for name in documents(line).filter(|name| !is_there(tree, file, name)) {
                let message = format!("there is no document `{name}`");
                let fix = "name the one that says it, or add it";
                found.push(Finding::new(file, n, "named-document", message, fix));
            }
        }
    }
    found
}

/// The names in a line that end in `.md`, except addresses and patterns; `FOLDER/a.md` stands for
/// any folder.
fn documents(line: &str) -> impl Iterator<Item = &str> {
    let words = line.split(|c: char| !(c.is_alphanumeric() || "_-./:*$".contains(c)));
    let words = words.map(|word| word.trim_end_matches(['.', ':', '/']));
    words.filter(|word| {
        let stem = word.strip_suffix(".md");
        let stem = stem.filter(|stem| !stem.is_empty() && !stem.contains([':', '*', '$']));
        let folder = stem.map(|stem| stem.rsplit_once('/').map_or("", |(folder, _)| folder));
        folder.is_some_and(|folder| !folder.contains(char::is_uppercase))
    })
}

fn is_there(tree: &Tree, file: &File, name: &str) -> bool {
    let is_file = |path: String| tree.files.iter().any(|file| file.path == path);
    let below = format!("/{name}");
    resolve(&file.path, name).is_some_and(is_file)
        || tree.files.iter().any(|file| file.path == name || file.path.ends_with(&below))
}

/// The targets inside the repository to which the text links, by line. Code is skipped.
pub fn targets(text: &str) -> Vec<(usize, String)> {
    let mut targets = Vec::new();
    let mut fence: Option<&str> = None;
    for (n, line) in text.lines().enumerate() {
        let start = line.trim_start();
        if let Some(mark) = ["```", "~~~"].into_iter().find(|mark| start.starts_with(mark)) {
            fence = match fence {
                None => Some(mark),
                Some(open) if open == mark => None,
                still => still,
            };
            continue;
        }
        if fence.is_some() {
            continue;
        }
        let prose: String = line.split('`').step_by(2).collect::<Vec<_>>().join("`");
        let inline = prose.match_indices("](").map(|(at, mark)| &prose[at + mark.len()..]);
        let html = ["src=\"", "href=\""].into_iter().flat_map(|attribute| {
            prose.match_indices(attribute).map(|(at, mark)| &prose[at + mark.len()..])
        });
        // `[name]: target`
        let definition = start.strip_prefix('[').and_then(|rest| rest.split_once("]: "));
        let all = inline.chain(html).chain(definition.map(|(_, target)| target));
        let paths = all.map(path_of).filter(|path| !path.is_empty());
        targets.extend(paths.map(|path| (n, path.to_owned())));
    }
    targets
}

/// The path at the start of `rest`; empty for an address outside and for an anchor of this page.
fn path_of(rest: &str) -> &str {
    let rest = rest.trim_start_matches('<');
    let target = rest.split([')', '>', '"', ' ', '#', '?']).next().unwrap_or("");
    let is_address = target.split_once(':').is_some_and(|(scheme, _)| !scheme.contains('/'));
    if is_address { "" } else { target }
}

fn exists(tree: &Tree, path: &str) -> bool {
    let below = format!("{path}/");
    path.is_empty() || tree.files.iter().any(|f| f.path == path || f.path.starts_with(&below))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn dead(text: &str) -> Vec<String> {
        let tree = Tree::of(&[("docs/a.md", text), ("docs/b.md", ""), ("results/c.png", "")]);
        links_resolve(&tree).into_iter().map(|finding| finding.message).collect()
    }

    #[test]
    fn links_lead_somewhere() {
        let good = "[b](b.md#part), ![c](../results/c.png \"title\"), [r](/results/), [x](#here)\n\
                    <https://a.org> [y](https://a.org/z.md) [m](mailto:a@b.org) `[no](no.md)`\n\
                    ```\n[no](no.md)\n```\n[d]: ../results\n<img src=\"../results/c.png\">\n";
        assert_eq!(dead(good), Vec::<String>::new());
        let bad = "[b](../b.md)\n[out](../../b.md)\n[e]: none.md\n<img src=\"c.png\">\n";
        let paths = ["../b.md", "../../b.md", "none.md", "c.png"];
        assert_eq!(dead(bad), paths.map(|path| format!("nothing at `{path}`")));
    }

    #[test]
    fn named_documents_are_there() {
        let found = |path: &str, text: &str| -> Vec<String> {
            let tree = Tree::of(&[(path, text), ("docs/a.md", ""), ("TOP.md", "")]);
            named_documents_exist(&tree).into_iter().map(|finding| finding.message).collect()
        };
        let good = "// See a.md, `docs/a.md`, TOP.md. Not https://a.org/b.md, *.md, $NAME.md,\n\
                    // DIR/a.md.\n\
                    const A: &str = \"gone.md\";\n";
        assert_eq!(found("crates/a/src/lib.rs", good), [""; 0]);
        let bad = "//! As GONE.md says.\n";
        assert_eq!(found("crates/a/src/lib.rs", bad), ["there is no document `GONE.md`"]);
        assert_eq!(found("docs/b.md", "in `docs/gone.md`").len(), 1);
    }
}
