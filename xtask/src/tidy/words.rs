//! Words that must not be published.

use super::Finding;
use crate::tree::Tree;

/// Split, so that this file does not contain the words that it looks for.
const MARKERS: [&str; 3] = [concat!("TO", "DO"), concat!("FIX", "ME"), concat!("X", "XX")];
const HOMES: [&str; 2] = [concat!("/ho", "me/"), concat!("/Us", "ers/")];

/// A marker of unfinished work names the issue that tracks it: `(#12)` or ` #12` after the word.
pub fn no_loose_ends(tree: &Tree) -> Vec<Finding> {
    let fix = "do it now, or open an issue and write its number behind the word";
    let mut found = Vec::new();
    for file in &tree.files {
        for (n, line) in file.text.lines().enumerate() {
            for marker in MARKERS.into_iter().filter(|marker| is_loose(line, marker)) {
                let message = format!("{marker} without an issue number");
                found.push(Finding::new(file, n, "loose-end", message, fix));
            }
        }
    }
    found
}

/// No file names the machine on which it was written: neither a user's home, nor the words that
/// this checkout lists for itself in `.git/info/tidy-words`.
pub fn no_private_words(tree: &Tree) -> Vec<Finding> {
    let fix = "use a path relative to the repository, or a variable";
    let mut found = Vec::new();
    for file in &tree.files {
        for (n, line) in file.text.lines().enumerate() {
            let homes = HOMES.into_iter().filter(|home| names_home(line, home));
            let listed = tree.private_words.iter().map(String::as_str);
            for word in homes.chain(listed.filter(|word| line.contains(word))) {
                let message = format!("`{word}` belongs to one machine");
                found.push(Finding::new(file, n, "private-word", message, fix));
            }
        }
    }
    found
}

fn is_loose(line: &str, marker: &str) -> bool {
    let is_ident = |c: char| c.is_alphanumeric() || c == '_';
    line.match_indices(marker).any(|(at, _)| {
        let (before, after) = (&line[..at], &line[at + marker.len()..]);
        let whole = !before.ends_with(is_ident) && !after.starts_with(is_ident);
        let issue = after.trim_start_matches(['(', ' ', ':']).strip_prefix('#');
        whole && !issue.is_some_and(|rest| rest.starts_with(|c: char| c.is_ascii_digit()))
    })
}

/// Whether an absolute path into someone's home stands in `line`, not `/…/home/` in the middle.
fn names_home(line: &str, home: &str) -> bool {
    line.match_indices(home).any(|(at, _)| {
        let inner = |c: char| c.is_alphanumeric() || "._-~*}".contains(c);
        let user = line[at + home.len()..].starts_with(|c: char| c.is_alphanumeric());
        !line[..at].ends_with(inner) && user
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tidy::lines_found;

    #[test]
    fn markers_name_their_issue() {
        let [first, second, third] = MARKERS;
        let good =
            format!("// {first}(#12): a\n# {second} #3\n{first}S\nmktemp /tmp/a.{third}{third}\n");
        assert!(lines_found(no_loose_ends, "scripts/a.sh", &good).is_empty());
        let bad = format!("// {first}: a\n{second}(me) b\n<!-- {third} -->\n{first} #x\n");
        assert_eq!(lines_found(no_loose_ends, "README.md", &bad), [1, 2, 3, 4]);
    }

    #[test]
    fn nothing_names_a_machine() {
        let home = HOMES[0];
        let text =
            format!("see $X{home}a\nhttps://a.org{home}b\ncd {home}joe/loch\nhost: deep-thought\n");
        let mut tree = Tree::of(&[("README.md", &text)]);
        tree.private_words = vec!["deep-thought".into()];
        let lines: Vec<usize> = no_private_words(&tree).iter().map(|f| f.line).collect();
        assert_eq!(lines, [3, 4]);
    }
}
