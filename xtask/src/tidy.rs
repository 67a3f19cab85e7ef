//! The house rules that a program can check, run by `make test`.
//!
//! A rule is a function from the [`Tree`] to its findings. It knows no other rule, and its tests
//! show a good and a bad sample. Clippy checks all that it can: `[workspace.lints]` and
//! `clippy.toml`.

mod arrows;
mod circles;
mod dead_files;
mod imports;
mod layers;
mod links;
mod names;
mod size;
mod unsafety;
mod words;

use std::fmt;
use std::process::ExitCode;

use crate::tree::{File, Tree};

type Rule = fn(&Tree) -> Vec<Finding>;

const RULES: [Rule; 16] = [
    arrows::arrows_point_down,
    layers::modules_use_those_below,
    circles::modules_make_no_circle,
    circles::own_modules_are_imported_by_name,
    imports::engines_call_no_system,
    imports::engines_name_no_backend,
    unsafety::crates_forbid_unsafe,
    size::files_are_short,
    size::lines_are_short,
    names::modules_say_what_they_hold,
    words::no_loose_ends,
    words::no_private_words,
    links::links_resolve,
    links::named_documents_exist,
    dead_files::rust_files_are_built,
    dead_files::documents_and_scripts_are_found,
];

/// Runs every rule and prints the findings; fails on any finding that is not a warning.
pub fn run(tree: &Tree) -> ExitCode {
    let mut found: Vec<Finding> = RULES.iter().flat_map(|rule| rule(tree)).collect();
    found.sort_by(|a, b| (&a.path, a.line).cmp(&(&b.path, b.line)));
    for finding in &found {
        println!("{finding}");
    }
    let errors = found.iter().filter(|finding| !finding.warning).count();
    let warnings = found.len() - errors;
    println!("tidy: {} files, {errors} errors, {warnings} warnings", tree.files.len());
    if errors == 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

/// A place that breaks a rule.
#[derive(Debug)]
pub struct Finding {
    path: String,
    /// Counted from 1.
    line: usize,
    rule: &'static str,
    message: String,
    fix: &'static str,
    warning: bool,
}

impl Finding {
    /// `line` is an index, from 0.
    fn new(
        file: &File,
        line: usize,
        rule: &'static str,
        message: impl Into<String>,
        fix: &'static str,
    ) -> Self {
        let message = message.into();
        Self { path: file.path.clone(), line: line + 1, rule, message, fix, warning: false }
    }
}

impl fmt::Display for Finding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { path, line, rule, message, fix, warning } = self;
        let level = if *warning { "warning: " } else { "" };
        write!(f, "{path}:{line}: {rule}: {level}{message} ({fix})")
    }
}

/// The lines, from 1, at which `rule` finds something in one file with this text.
#[cfg(test)]
fn lines_found(rule: Rule, path: &str, text: &str) -> Vec<usize> {
    rule(&Tree::of(&[(path, text)])).iter().map(|finding| finding.line).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_finding_reads_as_a_compiler_error() {
        let tree = Tree::of(&[("a/b.rs", "")]);
        let finding = Finding::new(&tree.files[0], 6, "rule", "what", "how to fix");
        assert_eq!(finding.to_string(), "a/b.rs:7: rule: what (how to fix)");
    }
}
