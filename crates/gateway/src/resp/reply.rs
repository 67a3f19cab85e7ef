//! Answers, in RESP2 and RESP3.

use std::fmt::{self, Write as _};

/// Where the answers of a connection are written.
pub(crate) struct Reply<'a> {
    pub bytes: &'a mut Vec<u8>,
    /// 2 or 3.
    pub resp: u8,
}

impl Reply<'_> {
    fn line(&mut self, line: fmt::Arguments<'_>) {
        struct Bytes<'a>(&'a mut Vec<u8>);
        impl fmt::Write for Bytes<'_> {
            fn write_str(&mut self, text: &str) -> fmt::Result {
                self.0.extend_from_slice(text.as_bytes());
                Ok(())
            }
        }
        Bytes(self.bytes).write_fmt(line).expect("memory takes every byte");
        self.bytes.extend_from_slice(b"\r\n");
    }

    pub fn ok(&mut self) {
        self.bytes.extend_from_slice(b"+OK\r\n");
    }

    pub fn simple(&mut self, text: &str) {
        self.line(format_args!("+{text}"));
    }

    /// An error, with its code.
    pub fn error(&mut self, text: &str) {
        let is_end = |c: char| c == '\r' || c == '\n';
        match text.contains(is_end) {
            true => self.line(format_args!("-{}", text.replace(is_end, " "))),
            false => self.line(format_args!("-{text}")),
        }
    }

    pub fn integer(&mut self, number: i64) {
        self.line(format_args!(":{number}"));
    }

    /// So many bytes follow, and the end of a line.
    pub fn bulk_head(&mut self, len: usize) {
        self.line(format_args!("${len}"));
    }

    pub fn bulk(&mut self, bytes: &[u8]) {
        self.bulk_head(bytes.len());
        self.bytes.extend_from_slice(bytes);
        self.bytes.extend_from_slice(b"\r\n");
    }

    pub fn null(&mut self) {
        self.bytes.extend_from_slice(if self.resp == 3 { b"_\r\n" } else { b"$-1\r\n" });
    }

    /// No array, where one was asked for.
    pub fn null_array(&mut self) {
        self.bytes.extend_from_slice(if self.resp == 3 { b"_\r\n" } else { b"*-1\r\n" });
    }

    pub fn value(&mut self, bytes: Option<&[u8]>) {
        match bytes {
            Some(bytes) => self.bulk(bytes),
            None => self.null(),
        }
    }

    /// So many answers follow.
    pub fn array(&mut self, count: usize) {
        self.line(format_args!("*{count}"));
    }

    /// So many pairs follow.
    pub fn map(&mut self, count: usize) {
        match self.resp {
            3 => self.line(format_args!("%{count}")),
            _ => self.array(2 * count),
        }
    }

    pub fn set(&mut self, count: usize) {
        match self.resp {
            3 => self.line(format_args!("~{count}")),
            _ => self.array(count),
        }
    }

    /// Text for people.
    pub fn verbatim(&mut self, text: &str) {
        match self.resp {
            3 => self.line(format_args!("={}\r\ntxt:{text}", text.len() + 4)),
            _ => self.bulk(text.as_bytes()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn answers_are_as_each_version_of_the_protocol_has_them() {
        let write = |resp| {
            let mut bytes = Vec::new();
            let mut reply = Reply { bytes: &mut bytes, resp };
            reply.null();
            reply.null_array();
            reply.map(1);
            reply.bulk(b"a\r\nb");
            reply.integer(-7);
            reply.verbatim("hello");
            reply.error("ERR two\r\nlines");
            String::from_utf8(bytes).unwrap()
        };
        let ends = "-ERR two  lines\r\n";
        let bulk = "$4\r\na\r\nb\r\n:-7\r\n";
        assert_eq!(write(2), format!("$-1\r\n*-1\r\n*2\r\n{bulk}$5\r\nhello\r\n{ends}"));
        assert_eq!(write(3), format!("_\r\n_\r\n%1\r\n{bulk}=9\r\ntxt:hello\r\n{ends}"));
    }
}
