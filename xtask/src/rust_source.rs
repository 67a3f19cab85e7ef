//! The facts of a Rust file for the rules: the paths that it uses, the modules that it declares,
//! and the lines that are built for tests only.
//!
//! It reads the compiler's own tokens, not a syntax tree, so it finds paths in macros too.

use std::collections::BTreeSet;
use std::ops::Range;
use std::str::FromStr;

use proc_macro2::{Delimiter, Group, LexError, Span, TokenStream, TokenTree};

/// The uses and declarations of a Rust file. Lines are counted from 0.
#[derive(Default)]
pub struct RustSource {
    pub paths: Vec<UsedPath>,
    pub modules: Vec<DeclaredModule>,
    /// By line, whether it is built for tests only.
    pub test: Vec<bool>,
    /// Lines of quoted text that is longer than a line.
    pub text: BTreeSet<usize>,
}

/// A path that is imported or written out. `use a::{b, c::d};` gives `a::b` and `a::c::d`.
pub struct UsedPath {
    pub segments: Vec<String>,
    pub line: usize,
    /// The name that it has here, if it is imported.
    pub imported_as: Option<String>,
    /// The modules with a body in this file that it stands in, outermost first.
    pub within: Vec<String>,
}

/// A module that is declared, with its body or without.
pub struct DeclaredModule {
    pub name: String,
    pub line: usize,
    pub has_body: bool,
    /// The path in its `#[path]`.
    pub path: Option<String>,
    pub within: Vec<String>,
}

impl RustSource {
    pub fn parse(text: &str) -> Result<Self, LexError> {
        // A shebang is no token.
        let body =
            if text.starts_with("#!/") { &text[text.find('\n').unwrap_or(0)..] } else { text };
        let mut source = Self { test: vec![false; text.lines().count()], ..Self::default() };
        let tokens: Vec<TokenTree> = TokenStream::from_str(body)?.into_iter().collect();
        source.read(&tokens, &[]);
        Ok(source)
    }

    pub fn mark_all_test(&mut self) {
        self.test.fill(true);
    }

    pub fn is_test(&self, line: usize) -> bool {
        self.test.get(line).copied().unwrap_or(false)
    }

    /// The paths that are also used when no test is built.
    pub fn product_paths(&self) -> impl Iterator<Item = &UsedPath> {
        self.paths.iter().filter(|path| !self.is_test(path.line))
    }

    /// The lines that are also built when no test is built.
    pub fn product_lines(&self) -> usize {
        self.test.iter().filter(|test| !**test).count()
    }

    /// Reads the tokens of a file, or of a group in it.
    fn read(&mut self, tokens: &[TokenTree], within: &[String]) {
        let mut at = 0;
        let mut path = None;
        while at < tokens.len() {
            match &tokens[at..] {
                [TokenTree::Punct(hash), TokenTree::Punct(bang), TokenTree::Group(group), ..]
                    if hash.as_char() == '#' && bang.as_char() == '!' =>
                {
                    if is_test_cfg(group) {
                        self.mark_all_test();
                    }
                    at += 3;
                }
                [TokenTree::Punct(hash), TokenTree::Group(group), ..] if hash.as_char() == '#' => {
                    if is_test_cfg(group) {
                        self.mark_test(hash.span(), &tokens[item(tokens, at)]);
                    }
                    path = text_after(group, "path").or(path);
                    at += 2;
                }
                [TokenTree::Ident(word), rest @ ..] if word == "use" => {
                    let end = rest.iter().position(|token| is_punct(token, ';'));
                    let tree = &rest[..end.unwrap_or(rest.len())];
                    self.read_imports(&[], tree, within);
                    at += 1 + tree.len();
                }
                [TokenTree::Ident(word), TokenTree::Ident(name), body, ..] if word == "mod" => {
                    let line = line_of(name.span());
                    let (name, within) = (name.to_string(), within.to_vec());
                    if let TokenTree::Group(body) = body {
                        let inner = [&within[..], std::slice::from_ref(&name)].concat();
                        self.read(&body.stream().into_iter().collect::<Vec<_>>(), &inner);
                    }
                    let has_body = matches!(body, TokenTree::Group(_));
                    let path = path.take();
                    self.modules.push(DeclaredModule { name, line, has_body, path, within });
                    at += 3;
                }
                [TokenTree::Ident(first), ..] => {
                    let (segments, length) = path_at(&tokens[at..]);
                    if segments.len() > 1 {
                        let line = line_of(first.span());
                        let within = within.to_vec();
                        self.paths.push(UsedPath { segments, line, imported_as: None, within });
                    }
                    at += length;
                }
                [TokenTree::Group(group), ..] => {
                    self.read(&group.stream().into_iter().collect::<Vec<_>>(), within);
                    at += 1;
                }
                [TokenTree::Literal(text), ..] => {
                    let (first, last) = (line_of(text.span()), text.span().end().line);
                    if last - first > 1 {
                        self.text.extend(first..last);
                    }
                    at += 1;
                }
                _ => at += 1,
            }
        }
    }

    /// Reads one `use` tree, or the branches of a group in it.
    fn read_imports(&mut self, prefix: &[String], tree: &[TokenTree], within: &[String]) {
        for branch in tree.split(|token| is_punct(token, ',')) {
            let mut segments = prefix.to_vec();
            let mut words = branch.iter();
            let mut last = None;
            for token in words.by_ref() {
                match token {
                    TokenTree::Ident(word) if word == "as" => break,
                    TokenTree::Group(group) => {
                        let inner: Vec<TokenTree> = group.stream().into_iter().collect();
                        self.read_imports(&segments, &inner, within);
                        last = None;
                    }
                    TokenTree::Ident(word) => {
                        segments.push(word.to_string());
                        last = Some(word.span());
                    }
                    token if is_punct(token, '*') => {
                        segments.push("*".to_owned());
                        last = Some(token.span());
                    }
                    _ => {}
                }
            }
            let Some(last) = last else { continue };
            let name = words.next().map(ToString::to_string).or_else(|| segments.last().cloned());
            let (line, within) = (line_of(last), within.to_vec());
            self.paths.push(UsedPath { segments, line, imported_as: name, within });
        }
    }

    fn mark_test(&mut self, first: Span, item: &[TokenTree]) {
        let last = item.last().map_or(first, TokenTree::span);
        self.test[line_of(first)..last.end().line].fill(true);
    }
}

fn line_of(span: Span) -> usize {
    span.start().line - 1
}

fn is_punct(token: &TokenTree, wanted: char) -> bool {
    matches!(token, TokenTree::Punct(punct) if punct.as_char() == wanted)
}

fn is_word(token: &TokenTree, words: &[&str]) -> bool {
    matches!(token, TokenTree::Ident(ident) if words.iter().any(|word| ident == word))
}

/// The tokens of the item, field, arm or statement whose attributes start at `first`.
fn item(tokens: &[TokenTree], first: usize) -> Range<usize> {
    const ITEM_WORDS: [&str; 10] =
        ["fn", "mod", "use", "impl", "struct", "enum", "trait", "const", "static", "type"];
    let mut at = first;
    while tokens.get(at).is_some_and(|token| is_punct(token, '#')) {
        at += 2;
    }
    // A field or an arm ends with its comma; the commas of an item's type parameters do not end it.
    let mut words = tokens[at..].iter().take_while(|token| !is_punct(token, ','));
    let is_item = words.any(|token| is_word(token, &ITEM_WORDS));
    let is_last = |token: &TokenTree| match token {
        TokenTree::Group(group) => group.delimiter() == Delimiter::Brace,
        token => is_punct(token, ';') || (!is_item && is_punct(token, ',')),
    };
    let last = tokens[at..].iter().position(is_last);
    first..last.map_or(tokens.len(), |offset| at + offset + 1)
}

/// Whether an attribute holds in tests only: `cfg(test)`, or `cfg(all(test, …))`.
fn is_test_cfg(attribute: &Group) -> bool {
    fn in_tests_only(predicates: &Group) -> bool {
        let tokens: Vec<TokenTree> = predicates.stream().into_iter().collect();
        tokens.split(|token| is_punct(token, ',')).any(|predicate| match predicate {
            [word] => is_word(word, &["test"]),
            [word, TokenTree::Group(all)] => is_word(word, &["all"]) && in_tests_only(all),
            _ => false,
        })
    }
    let tokens: Vec<TokenTree> = attribute.stream().into_iter().collect();
    matches!(&tokens[..], [word, TokenTree::Group(predicates)]
        if is_word(word, &["cfg"]) && in_tests_only(predicates))
}

/// The text of an attribute `name = "text"`.
fn text_after(attribute: &Group, name: &str) -> Option<String> {
    let tokens: Vec<TokenTree> = attribute.stream().into_iter().collect();
    match &tokens[..] {
        [word, _, TokenTree::Literal(text)] if is_word(word, &[name]) => {
            Some(text.to_string().trim_matches('"').to_owned())
        }
        _ => None,
    }
}

/// The path that starts at the first token, and how many tokens it takes.
fn path_at(tokens: &[TokenTree]) -> (Vec<String>, usize) {
    let mut segments = Vec::new();
    let mut at = 0;
    while let Some(TokenTree::Ident(segment)) = tokens.get(at) {
        segments.push(segment.to_string());
        at += 1;
        let separator = tokens.get(at..at + 2);
        let goes_on = separator.is_some_and(|two| two.iter().all(|token| is_punct(token, ':')));
        if !goes_on || !matches!(tokens.get(at + 2), Some(TokenTree::Ident(_))) {
            break;
        }
        at += 2;
    }
    (segments, at)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(text: &str) -> RustSource {
        RustSource::parse(text).expect("tokens")
    }

    #[test]
    fn test_items_are_found_wherever_they_stand() {
        let source = parse(
            "#[cfg(test)]\nmod model;\nfn a() {}\n#[cfg(all(test, not(loom)))]\n/// Doc.\n\
             mod tests {\n    fn b() {}\n}\nstruct C {\n    #[cfg(test)]\n    d: u8,\n    e: u8,\n}\n\
             #[cfg(not(test))]\nfn f() {}\n",
        );
        let expected = [1, 1, 0, 1, 1, 1, 1, 1, 0, 1, 1, 0, 0, 0, 0].map(|bit| bit == 1);
        assert_eq!(source.test, expected);
        assert_eq!(source.product_lines(), 6);
        assert!(parse("#![cfg(all(test, feature = \"verbs\"))]\nfn a() {}\n").is_test(1));
    }

    #[test]
    fn modules_are_found_with_their_paths() {
        let source =
            parse("#[path = \"../b.rs\"]\nmod a;\npub(crate) mod c {\n    mod d;\n}\n// mod e;\n");
        let found: Vec<_> = source
            .modules
            .iter()
            .map(|m| (&m.name[..], m.line, m.has_body, m.path.as_deref(), m.within.join("::")))
            .collect();
        let expected = [
            ("a", 1, false, Some("../b.rs"), String::new()),
            ("d", 3, false, None, "c".into()),
            ("c", 2, true, None, String::new()),
        ];
        assert_eq!(found, expected);
    }

    #[test]
    fn paths_are_found_in_imports_code_and_macros_but_not_in_text() {
        let source = parse(
            "pub use std::{\n    fs,\n    time::{Duration, Instant as Now},\n};\n/// [`x::y`]\n\
             fn f() { a::b::<u8>(::c::d, \"x::y\"); } // x::y\nassert!(matches!(e, E::F(_)));\n",
        );
        let found: Vec<_> =
            source.paths.iter().map(|path| (path.line, path.segments.join("::"))).collect();
        let expected = [
            (1, "std::fs"),
            (2, "std::time::Duration"),
            (2, "std::time::Instant"),
            (5, "a::b"),
            (5, "c::d"),
            (6, "E::F"),
        ];
        assert_eq!(found, expected.map(|(n, path)| (n, path.to_owned())));
        assert_eq!(source.paths[2].imported_as.as_deref(), Some("Now"));
        assert_eq!(source.paths[3].imported_as, None);
    }
}
