//! How long files and functions may be. Tests do not count: scenarios are long and shallow.

use super::Finding;
use crate::rust_source::RustSource;
use crate::tree::Tree;

const FILE_LINES_GOOD: usize = 400;
const FILE_LINES_MAX: usize = 600;
const FUNCTION_LINES_MAX: usize = 100;
/// Lifts the limit: of a file in its head, of a function in the comment above it.
const EXCUSE: &str = "// tidy: long because ";

/// A file holds one protocol action or one data structure.
pub fn files_are_short(tree: &Tree) -> Vec<Finding> {
    let mut found = Vec::new();
    for (file, rust) in tree.rust("") {
        let lines = rust.product().count();
        if lines <= FILE_LINES_GOOD || excused_in_head(rust) {
            continue;
        }
        let message = format!("{lines} lines of non-test code, over {FILE_LINES_GOOD}");
        let fix = "split by protocol action, or say `// tidy: long because …` at the top";
        let finding = Finding::new(file, 0, "file-length", message, fix);
        found.push(Finding { warning: lines <= FILE_LINES_MAX, ..finding });
    }
    found
}

/// A function is read without scrolling: branching in the parent, pure leaves below.
pub fn functions_are_short(tree: &Tree) -> Vec<Finding> {
    let mut found = Vec::new();
    for (file, rust) in tree.rust("") {
        for function in rust.functions() {
            let lines = function.last - function.first + 1;
            if lines <= FUNCTION_LINES_MAX
                || rust.lines[function.first].test
                || excused_above(rust, function.first)
            {
                continue;
            }
            let name = function.name;
            let message = format!("`{name}` has {lines} lines, over {FUNCTION_LINES_MAX}");
            let fix = "move leaves out, or say `// tidy: long because …` above it";
            found.push(Finding::new(file, function.first, "function-length", message, fix));
        }
    }
    found
}

fn excused_in_head(rust: &RustSource) -> bool {
    let head = rust.lines.iter().take_while(|line| line.code.trim().is_empty());
    head.into_iter().any(|line| line.raw.starts_with(EXCUSE))
}

fn excused_above(rust: &RustSource, first: usize) -> bool {
    let above = rust.lines[..first].iter().rev().map(|line| line.raw.trim());
    let mut attached = above.take_while(|raw| raw.starts_with("//") || raw.starts_with('#'));
    attached.any(|raw| raw.starts_with(EXCUSE))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn found(rule: fn(&Tree) -> Vec<Finding>, text: &str) -> Vec<(usize, bool)> {
        let tree = Tree::of(&[("crates/loch/src/a.rs", text)]);
        rule(&tree).iter().map(|finding| (finding.line, finding.warning)).collect()
    }

    fn body(lines: usize) -> String {
        "    x();\n".repeat(lines)
    }

    #[test]
    fn long_files_warn_then_fail_unless_excused() {
        let tests = format!("#[cfg(test)]\nmod tests {{\n{}}}\n", body(900));
        assert_eq!(found(files_are_short, &format!("{}{tests}", body(400))), []);
        assert_eq!(found(files_are_short, &body(401)), [(1, true)]);
        assert_eq!(found(files_are_short, &body(601)), [(1, false)]);
        let excused = format!("//! Doc.\n// tidy: long because it is a table.\n\n{}", body(601));
        assert_eq!(found(files_are_short, &excused), []);
    }

    #[test]
    fn long_functions_fail_unless_excused() {
        let function = |lines: usize| format!("fn f() {{\n{}}}\n", body(lines - 2));
        assert_eq!(found(functions_are_short, &function(100)), []);
        assert_eq!(found(functions_are_short, &function(101)), [(1, false)]);
        let excuse = "/// Doc.\n// tidy: long because it is one state machine.\n#[inline]\n";
        assert_eq!(found(functions_are_short, &format!("{excuse}{}", function(101))), []);
    }
}
