//! Where `unsafe` may stand. (Clippy checks that it is argued there.)

use super::Finding;
use crate::tree::Tree;

/// The only folder with unsafe code.
const FABRIC: &str = "crates/fabric/";
const FORBID: &str = "#![forbid(unsafe_code)]";

/// Every crate but the fabric forbids unsafe code in its root.
pub fn crates_forbid_unsafe(tree: &Tree) -> Vec<Finding> {
    let roots = tree.rust("").filter(|(file, _)| {
        let is_root = file.path.ends_with("src/lib.rs") || file.path.ends_with("src/main.rs");
        is_root && !file.path.starts_with(FABRIC)
    });
    let unguarded = roots.filter(|(file, _)| !file.text.lines().any(|line| line == FORBID));
    let finding = |(file, _)| {
        let message = format!("no `{FORBID}` in the root of a safe crate");
        Finding::new(file, 0, "forbid-unsafe", message, "add it below the crate's documentation")
    };
    unguarded.map(finding).collect()
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
}
