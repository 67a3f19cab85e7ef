//! Tells code from comments and quoted text.

use std::iter::Peekable;
use std::str::Chars;

/// Replaces comments, and what stands between quotes, by spaces. Lines stay where they are.
pub fn mask(text: &str) -> String {
    let mut masked = Mask { rest: text.chars().peekable(), out: String::with_capacity(text.len()) };
    let mut before = ' ';
    while let Some(c) = masked.rest.next() {
        masked.out.push(c);
        match c {
            '/' if masked.rest.peek() == Some(&'/') => masked.line_comment(),
            '/' if masked.rest.peek() == Some(&'*') => masked.block_comment(),
            '"' => masked.string(),
            'r' if !(before.is_alphanumeric() || before == '_')
                || before == 'b'
                || before == 'c' =>
            {
                masked.raw_string();
            }
            '\'' => masked.char_or_lifetime(),
            _ => {}
        }
        before = c;
    }
    masked.out
}

struct Mask<'a> {
    rest: Peekable<Chars<'a>>,
    out: String,
}

impl Mask<'_> {
    fn blank(&mut self) -> Option<char> {
        let c = self.rest.next()?;
        self.out.push(if c == '\n' { '\n' } else { ' ' });
        Some(c)
    }

    fn line_comment(&mut self) {
        self.out.pop();
        self.out.push(' ');
        while self.rest.peek().is_some_and(|&c| c != '\n') {
            self.blank();
        }
    }

    fn block_comment(&mut self) {
        self.out.pop();
        self.out.push(' ');
        let (mut depth, mut before) = (0, '/');
        while let Some(c) = self.blank() {
            match (before, c) {
                ('/', '*') => depth += 1,
                ('*', '/') => depth -= 1,
                _ => {
                    before = c;
                    continue;
                }
            }
            if depth == 0 {
                return;
            }
            before = ' ';
        }
    }

    fn string(&mut self) {
        while self.rest.peek().is_some_and(|&c| c != '"') {
            if self.blank() == Some('\\') {
                self.blank();
            }
        }
        self.out.extend(self.rest.next());
    }

    /// At the `r` of what may be a raw string.
    fn raw_string(&mut self) {
        let mut ahead = self.rest.clone();
        let mut hashes = 0;
        while ahead.next_if_eq(&'#').is_some() {
            hashes += 1;
        }
        if ahead.next() != Some('"') {
            return;
        }
        for _ in 0..=hashes {
            self.blank();
        }
        while let Some(c) = self.blank() {
            let mut ahead = self.rest.clone();
            if c == '"' && (0..hashes).all(|_| ahead.next() == Some('#')) {
                (0..hashes).for_each(|_| _ = self.blank());
                return;
            }
        }
    }

    /// At a quote: `'a'` and `'\n'` are blanked, the lifetime `'a` is not.
    fn char_or_lifetime(&mut self) {
        let mut ahead = self.rest.clone();
        let first = ahead.next();
        if first != Some('\\') && ahead.next() != Some('\'') {
            return;
        }
        if self.blank() == Some('\\') {
            self.blank();
        }
        while self.rest.peek().is_some_and(|&c| c != '\'' && c != '\n') {
            self.blank();
        }
        self.out.extend(self.rest.next());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn comments_and_quoted_text_are_not_code() {
        let text = r##"let a = "b // {"; // c
let d = '{'; let e: &'static str = r#"f " } "#;
/* g /* h */ { */ let i = '\''; let r#fn = b"\"{";
"##;
        let code: Vec<String> = mask(text)
            .lines()
            .map(|l| l.split_whitespace().collect::<Vec<_>>().join(" "))
            .collect();
        assert_eq!(code[0], r#"let a = " ";"#);
        assert_eq!(code[1], "let d = ' '; let e: &'static str = r ;");
        assert_eq!(code[2], r#"let i = ' '; let r#fn = b" ";"#);
    }
}
