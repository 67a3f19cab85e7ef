//! Just enough of Rust's syntax for the rules: what is code, what is test code, where items end.
//!
//! Sources are formatted by rustfmt, which the scans rely on: an item starts its line.

mod mask;

use self::mask::mask;

/// One line of a source file.
pub struct Line {
    /// The line with comments, and what stands between quotes, replaced by spaces.
    pub code: String,
    /// The line as it is written.
    pub raw: String,
    /// Only built for tests.
    pub test: bool,
}

/// A Rust file, line by line. Lines are counted from 0 here.
pub struct RustSource {
    pub lines: Vec<Line>,
}

/// A function with a body, from its signature's first line to its closing brace's.
pub struct Function {
    pub name: String,
    pub first: usize,
    pub last: usize,
}

/// How an item ends, and on which line.
enum ItemEnd {
    Body(usize),
    NoBody(usize),
}

impl RustSource {
    pub fn parse(text: &str) -> Self {
        let code = mask(text);
        let line = |(code, raw): (&str, &str)| Line {
            code: code.to_owned(),
            raw: raw.to_owned(),
            test: false,
        };
        let mut source = Self { lines: code.lines().zip(text.lines()).map(line).collect() };
        for (first, last) in source.test_items() {
            source.lines[first..=last].iter_mut().for_each(|line| line.test = true);
        }
        source
    }

    pub fn mark_all_test(&mut self) {
        self.lines.iter_mut().for_each(|line| line.test = true);
    }

    /// The lines that are also built when no test is.
    pub fn product(&self) -> impl Iterator<Item = (usize, &Line)> {
        self.lines.iter().enumerate().filter(|(_, line)| !line.test)
    }

    pub fn functions(&self) -> Vec<Function> {
        let mut functions = Vec::new();
        for (first, line) in self.lines.iter().enumerate() {
            if let Some(name) = fn_name(&line.code)
                && let Some(ItemEnd::Body(last)) = self.item_end(first)
            {
                functions.push(Function { name, first, last });
            }
        }
        functions
    }

    /// The modules that are declared for tests only, by name: `#[cfg(test)] mod model;`.
    pub fn test_modules(&self) -> Vec<&str> {
        let declared = self.lines.iter().filter(|line| line.test && line.code.ends_with(';'));
        declared.filter_map(|line| module_name(&line.code)).collect()
    }

    /// Every path that is imported or written out, with its line. `use a::{b, c::d};` gives
    /// `a::b` and `a::c::d`.
    pub fn paths(&self) -> Vec<(usize, String)> {
        let mut paths = Vec::new();
        let mut lines = self.lines.iter().enumerate();
        while let Some((first, line)) = lines.next() {
            let Some(tree) = without_visibility(&line.code).strip_prefix("use ") else {
                paths.extend(written_paths(&line.code).map(|path| (first, path.to_owned())));
                continue;
            };
            let mut tree = tree.to_owned();
            while !tree.contains(';') {
                let Some((_, line)) = lines.next() else { break };
                tree.push_str(line.code.trim());
            }
            let mut flat = Vec::new();
            flatten_use("", tree.trim_end_matches(';'), &mut flat);
            paths.extend(flat.into_iter().map(|path| (first, path)));
        }
        paths
    }

    /// The items under `#[cfg(test)]` and its like, by first and last line.
    fn test_items(&self) -> Vec<(usize, usize)> {
        let mut items = Vec::new();
        for (first, line) in self.lines.iter().enumerate() {
            let code = line.code.trim();
            if code.starts_with("#![cfg(") && is_test_cfg(code) {
                items.push((first, self.lines.len() - 1));
            } else if code.starts_with("#[cfg(") && is_test_cfg(code) {
                let last = match self.item_end(self.after_attributes(first)) {
                    Some(ItemEnd::Body(last) | ItemEnd::NoBody(last)) => last,
                    None => self.lines.len() - 1,
                };
                items.push((first, last));
            }
        }
        items
    }

    /// The first line of the item whose attributes and comments start on line `first`.
    fn after_attributes(&self, first: usize) -> usize {
        let is_item =
            |line: &Line| !line.code.trim().is_empty() && !line.code.trim().starts_with('#');
        let rest = self.lines[first..].iter().position(is_item);
        rest.map_or(first, |offset| first + offset)
    }

    fn item_end(&self, first: usize) -> Option<ItemEnd> {
        let (mut round, mut curly) = (0_usize, 0_usize);
        for (n, line) in self.lines.iter().enumerate().skip(first) {
            for c in line.code.chars() {
                match c {
                    '(' | '[' => round += 1,
                    ')' | ']' => round = round.saturating_sub(1),
                    '{' => curly += 1,
                    '}' if curly <= 1 && round == 0 => return Some(ItemEnd::Body(n)),
                    '}' => curly = curly.saturating_sub(1),
                    ';' if curly == 0 && round == 0 => return Some(ItemEnd::NoBody(n)),
                    _ => {}
                }
            }
            // A field or an arm ends with its line's comma; a signature's commas are in brackets.
            let is_item = ITEM_WORDS.iter().any(|word| has_word(&self.lines[first].code, word));
            if !is_item && curly == 0 && round == 0 && line.code.trim_end().ends_with(',') {
                return Some(ItemEnd::NoBody(n));
            }
        }
        None
    }
}

const ITEM_WORDS: [&str; 10] =
    ["fn", "mod", "use", "impl", "struct", "enum", "trait", "const", "static", "type"];

/// Whether `word` stands in `code` as a whole identifier.
pub fn has_word(code: &str, word: &str) -> bool {
    let is_ident = |c: char| c.is_alphanumeric() || c == '_';
    code.match_indices(word).any(|(at, _)| {
        let before = code[..at].chars().next_back();
        let after = code[at + word.len()..].chars().next();
        !before.is_some_and(is_ident) && !after.is_some_and(is_ident)
    })
}

/// The module that this line declares.
pub fn module_name(code: &str) -> Option<&str> {
    let name = without_visibility(code).strip_prefix("mod ")?;
    Some(name.trim_end_matches(['{', '}', ';', ' ']))
}

/// Whether a `cfg` attribute holds in tests only: `test`, or `all(test, …)`.
fn is_test_cfg(attribute: &str) -> bool {
    let Some((_, predicate)) = attribute.split_once("cfg(") else {
        return false;
    };
    let only = predicate.starts_with("test)") || predicate.starts_with("all(");
    only && has_word(predicate, "test") && !predicate.contains("not(test")
}

fn fn_name(code: &str) -> Option<String> {
    let mut rest = without_visibility(code);
    let qualifiers = ["default ", "const ", "async ", "unsafe ", "extern "];
    while let Some(short) = qualifiers.iter().find_map(|qualifier| rest.strip_prefix(qualifier)) {
        // The ABI's name is masked: what is left of it is quotes and spaces.
        rest = short.trim_start_matches(['"', ' ']);
    }
    let name = rest.strip_prefix("fn ")?;
    Some(name.chars().take_while(|c| c.is_alphanumeric() || *c == '_').collect())
}

fn without_visibility(code: &str) -> &str {
    let code = code.trim();
    let Some(rest) = code.strip_prefix("pub") else {
        return code;
    };
    if rest.starts_with('(') {
        return rest.split_once(')').map_or(code, |(_, rest)| rest.trim_start());
    }
    rest.strip_prefix(' ').unwrap_or(code)
}

/// The runs of `ident::ident` in a line of code.
fn written_paths(code: &str) -> impl Iterator<Item = &str> {
    let words = code.split(|c: char| !(c.is_alphanumeric() || c == '_' || c == ':'));
    words.filter(|word| word.contains("::"))
}

fn flatten_use(prefix: &str, tree: &str, out: &mut Vec<String>) {
    let tree = tree.trim();
    if let Some((head, group)) = tree.split_once('{') {
        let group = group.trim_end().strip_suffix('}').unwrap_or(group);
        for branch in split_at_top(group) {
            flatten_use(&format!("{prefix}{}", head.trim()), branch, out);
        }
    } else if !tree.is_empty() {
        let path = tree.split(" as ").next().unwrap_or(tree);
        out.push(format!("{prefix}{}", path.trim()).trim_start_matches("::").to_owned());
    }
}

/// Splits a use group at the commas that are not in an inner group.
fn split_at_top(group: &str) -> Vec<&str> {
    let (mut depth, mut start, mut parts) = (0_i32, 0, Vec::new());
    for (at, c) in group.char_indices() {
        match c {
            '{' => depth += 1,
            '}' => depth -= 1,
            ',' if depth == 0 => {
                parts.push(&group[start..at]);
                start = at + 1;
            }
            _ => {}
        }
    }
    parts.push(&group[start..]);
    parts
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn test_items_are_found_wherever_they_stand() {
        let source = RustSource::parse(
            "#[cfg(test)]\nmod model;\nfn a() {}\n#[cfg(all(test, not(loom)))]\n/// Doc.\nmod tests {\n    \
             fn b() {}\n}\nstruct C {\n    #[cfg(test)]\n    d: u8,\n    e: u8,\n}\n#[cfg(not(test))]\nfn f() {}\n",
        );
        let test: Vec<bool> = source.lines.iter().map(|line| line.test).collect();
        let expected = [1, 1, 0, 1, 1, 1, 1, 1, 0, 1, 1, 0, 0, 0, 0].map(|bit| bit == 1);
        assert_eq!(test, expected);
        assert_eq!(source.test_modules(), ["model"]);
    }

    #[test]
    fn functions_end_at_their_own_brace() {
        let source = RustSource::parse(
            "pub(crate) const unsafe extern \"C\" fn a(x: [u8; 2]) {\n    if x { '}' }\n}\ntrait T {\n    \
             fn no_body(&self) -> [u8; 2];\n    fn b<T>(\n        x: u8,\n    ) where\n        T: X,\n    {\n    }\n}\n",
        );
        let found: Vec<_> =
            source.functions().into_iter().map(|f| (f.name, f.first, f.last)).collect();
        assert_eq!(found, [("a".to_owned(), 0, 2), ("b".to_owned(), 5, 10)]);
    }

    #[test]
    fn use_trees_are_flattened() {
        let source = RustSource::parse(
            "pub use std::{\n    fs,\n    time::{Duration, Instant as Now},\n};\nlet x = a::b::<u8>(::c::d);\n",
        );
        let found = source.paths();
        let expected = [
            (0, "std::fs"),
            (0, "std::time::Duration"),
            (0, "std::time::Instant"),
            (4, "a::b::"),
            (4, "::c::d"),
        ];
        assert_eq!(found, expected.map(|(n, path)| (n, path.to_owned())));
    }
}
