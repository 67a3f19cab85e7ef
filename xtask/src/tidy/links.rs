//! Links of the documentation.

use super::Finding;
use crate::tree::Tree;

/// A relative link in a Markdown file leads to a file or folder of the repository.
pub fn links_resolve(tree: &Tree) -> Vec<Finding> {
    let mut found = Vec::new();
    for file in tree.files.iter().filter(|file| file.path.ends_with(".md")) {
        for (n, target) in targets(&file.text) {
            if !exists(tree, &file.path, &target) {
                let message = format!("nothing at `{target}`");
                let fix = "correct the path, or add the file it promises";
                found.push(Finding::new(file, n, "dead-link", message, fix));
            }
        }
    }
    found
}

/// What the text links to inside the repository, by line. Code is skipped.
fn targets(text: &str) -> Vec<(usize, String)> {
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

fn exists(tree: &Tree, from: &str, target: &str) -> bool {
    let mut folders: Vec<&str> = if target.starts_with('/') {
        Vec::new()
    } else {
        from.rsplit_once('/').map_or(Vec::new(), |(folder, _)| folder.split('/').collect())
    };
    for part in target.split('/') {
        match part {
            "" | "." => {}
            ".." => {
                if folders.pop().is_none() {
                    return false;
                }
            }
            part => folders.push(part),
        }
    }
    let path = folders.join("/");
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
}
