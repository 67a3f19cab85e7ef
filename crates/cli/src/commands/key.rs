//! Keys on the command line: any bytes that an argument can hold.

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;

use loch::engines::kv::check_key;

use crate::outcome::Usage;

/// Characters of a key that a message shows.
const SHOWN_CHARS: usize = 60;

/// The key's bytes. A key that no table accepts is refused here, before the command contacts a
/// node.
pub fn bytes(key: &OsStr) -> Result<&[u8], Usage> {
    let key = key.as_bytes();
    check_key(key).map_err(|error| Usage(error.to_string()))?;
    Ok(key)
}

/// The key for a message: quoted, and cut when it is long.
pub fn shown(key: &OsStr) -> String {
    let text = String::from_utf8_lossy(key.as_bytes());
    let mut cut: String = text.chars().take(SHOWN_CHARS).collect();
    if cut.len() < text.len() {
        cut.push('…');
    }
    format!("{cut:?}")
}

/// The answer of a command that found no key of a table.
pub fn none_found(table: &str, prefix: &OsStr) -> String {
    match prefix.is_empty() {
        true => format!("table {table:?} has no keys"),
        false => format!("table {table:?} has no key that begins with {}", shown(prefix)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_message_shows_any_key_on_a_short_line() {
        assert_eq!(shown(OsStr::new("colour")), "\"colour\"");
        assert_eq!(shown(OsStr::from_bytes(b"a\nb\xff")), "\"a\\nb\u{fffd}\"");
        let long = shown(OsStr::new(&"k".repeat(70_000)));
        assert_eq!(long.chars().count(), SHOWN_CHARS + 3);
    }
}
