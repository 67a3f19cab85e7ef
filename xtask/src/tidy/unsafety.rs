//! Where `unsafe` may stand, and what it owes the reader.

use super::Finding;
use crate::rust_source::{RustSource, has_word};
use crate::tree::Tree;

/// The only folder with unsafe code.
const FABRIC: &str = "crates/fabric/";
const FORBID: &str = "#![forbid(unsafe_code)]";
/// Fewer words than this argue nothing: "is valid", "checked above".
const ARGUMENT_WORDS_MIN: usize = 5;
/// How far above its `unsafe` a statement that rustfmt has broken up may start.
const STATEMENT_LINES_MAX: usize = 8;

/// Every crate but the fabric forbids unsafe code in its root.
pub fn crates_forbid_unsafe(tree: &Tree) -> Vec<Finding> {
    let roots = tree.rust("").filter(|(file, _)| {
        let is_root = file.path.ends_with("src/lib.rs") || file.path.ends_with("src/main.rs");
        is_root && !file.path.starts_with(FABRIC)
    });
    let unguarded =
        roots.filter(|(_, rust)| !rust.lines.iter().any(|line| line.code.trim() == FORBID));
    let finding = |(file, _)| {
        let message = format!("no `{FORBID}` in the root of a safe crate");
        Finding::new(file, 0, "forbid-unsafe", message, "add it below the crate's documentation")
    };
    unguarded.map(finding).collect()
}

/// Every unsafe block and unsafe impl has a `// SAFETY:` comment above its statement that says why
/// it holds. (Clippy asks for the comment; that there is an argument in it is asked here.)
pub fn unsafe_is_argued(tree: &Tree) -> Vec<Finding> {
    let mut found = Vec::new();
    for (file, rust) in tree.rust(FABRIC) {
        for (n, line) in rust.lines.iter().enumerate() {
            if !opens_unsafe(&line.code) {
                continue;
            }
            let message = match argument_above(rust, n) {
                None => "unsafe without a `// SAFETY:` comment above".to_owned(),
                Some(words) if words < ARGUMENT_WORDS_MIN => {
                    format!("the `// SAFETY:` argument has {words} words")
                }
                Some(_) => continue,
            };
            let fix = "say which invariant makes it sound, and who keeps it";
            found.push(Finding::new(file, n, "safety-comment", message, fix));
        }
    }
    found
}

fn opens_unsafe(code: &str) -> bool {
    let opens = |rest: &str| rest.trim_start().starts_with('{') || rest.starts_with(" impl");
    has_word(code, "unsafe") && code.split("unsafe").skip(1).any(opens)
}

/// The words of the SAFETY comment that belongs to line `n`; `None` if there is none.
fn argument_above(rust: &RustSource, n: usize) -> Option<usize> {
    let is_comment = |line: usize| rust.lines[line].raw.trim_start().starts_with("//");
    let is_attribute = |line: usize| rust.lines[line].code.trim_start().starts_with('#');
    let mut first = n;
    // Up to the statement's first line: the line above it ends another.
    while first > 0 && n - first < STATEMENT_LINES_MAX {
        let above = rust.lines[first - 1].code.trim();
        let other = above.is_empty() || above.ends_with([';', '{', '}', ',']);
        if (other && !is_attribute(first - 1)) || is_comment(first - 1) {
            break;
        }
        first -= 1;
    }
    let comment = (0..first).rev().take_while(|&line| is_comment(line));
    let mut words = 0;
    for line in comment {
        let text = rust.lines[line].raw.trim_start().trim_start_matches('/');
        if let Some(argument) = text.trim_start().strip_prefix("SAFETY:") {
            return Some(words + argument.split_whitespace().count());
        }
        words += text.split_whitespace().count();
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tidy::lines_found;

    #[test]
    fn only_the_fabric_may_leave_unsafe_open() {
        let good = "//! Doc.\n\n#![forbid(unsafe_code)]\n";
        assert!(lines_found(crates_forbid_unsafe, "crates/loch/src/lib.rs", good).is_empty());
        assert!(lines_found(crates_forbid_unsafe, "crates/fabric/src/lib.rs", "").is_empty());
        let bad = "// #![forbid(unsafe_code)]\n";
        assert_eq!(lines_found(crates_forbid_unsafe, "crates/cli/src/main.rs", bad), [1]);
    }

    #[test]
    fn unsafe_says_why_it_holds() {
        let good = "
// SAFETY: `Region::map` keeps the mapping alive
// for as long as `self`.
let word = region
    .word(unsafe { &*pointer })
    .load();
// SAFETY: all fields are atomics that any thread may reach.
#[cfg(unix)]
unsafe impl Sync for Region {}
/// # Safety
unsafe fn f(g: unsafe fn()) {}
";
        let path = "crates/fabric/src/shm/region.rs";
        assert!(lines_found(unsafe_is_argued, path, good).is_empty());
        let bad = "
// SAFETY: checked above.
unsafe { f() };
unsafe impl Send for Region {}
// SAFETY: this argument is that of another statement.
let a = 1;
let b = unsafe { g() };
";
        assert_eq!(lines_found(unsafe_is_argued, path, bad), [3, 4, 7]);
    }
}
