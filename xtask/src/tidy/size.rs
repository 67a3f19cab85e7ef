//! How long files and lines may be. (Clippy checks how long functions are.)

use super::Finding;
use crate::tree::Tree;

const FILE_LINES_GOOD: usize = 400;
const FILE_LINES_MAX: usize = 600;
const COLUMNS_MAX: usize = 100;

/// A file holds one protocol action or one data structure. Tests do not count: scenarios are long
/// and shallow.
pub fn files_are_short(tree: &Tree) -> Vec<Finding> {
    let mut found = Vec::new();
    for (file, rust) in tree.rust("") {
        let lines = rust.product_lines();
        if lines > FILE_LINES_GOOD {
            let message = format!("{lines} lines of non-test code, over {FILE_LINES_GOOD}");
            let finding = Finding::new(file, 0, "file-length", message, "split by protocol action");
            found.push(Finding { warning: lines <= FILE_LINES_MAX, ..finding });
        }
    }
    found
}

/// Code and comments fit beside each other on a screen. (rustfmt wraps code alone.) Tables do not
/// fit, and text is as it has to be.
pub fn lines_are_short(tree: &Tree) -> Vec<Finding> {
    let mut found = Vec::new();
    for (file, rust) in tree.rust("") {
        for (n, line) in file.text.lines().enumerate() {
            let columns = line.chars().count();
            let is_table = line.trim_start().trim_start_matches(['/', '!']).starts_with(" |");
            let is_text = line.contains('"') || rust.text.contains(&n);
            if columns > COLUMNS_MAX && !is_table && !is_text {
                let message = format!("{columns} columns, over {COLUMNS_MAX}");
                found.push(Finding::new(file, n, "line-length", message, "wrap it"));
            }
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tidy::lines_found;

    fn found(text: &str) -> Vec<(usize, bool)> {
        let tree = Tree::of(&[("crates/loch/src/a.rs", text)]);
        files_are_short(&tree).iter().map(|finding| (finding.line, finding.warning)).collect()
    }

    fn body(lines: usize) -> String {
        "    x();\n".repeat(lines)
    }

    #[test]
    fn long_files_warn_then_fail() {
        let tests = format!("#[cfg(test)]\nmod tests {{\n{}}}\n", body(900));
        assert_eq!(found(&format!("{}{tests}", body(400))), []);
        assert_eq!(found(&body(401)), [(1, true)]);
        assert_eq!(found(&body(601)), [(1, false)]);
    }

    #[test]
    fn lines_of_more_columns_than_a_screen_has_fail() {
        let path = "crates/fabric/src/lib.rs";
        assert!(lines_found(lines_are_short, path, &format!("// {}\n", "é".repeat(97))).is_empty());
        let text = format!("let a = \"\\\n{}\";\n//! | {} |\n", "b".repeat(101), "c".repeat(101));
        assert!(lines_found(lines_are_short, path, &text).is_empty());
        let bad = format!("\n// {}\n", "é".repeat(98));
        assert_eq!(lines_found(lines_are_short, path, &bad), [2]);
    }
}
