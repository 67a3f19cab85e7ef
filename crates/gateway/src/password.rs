//! The password of a gateway.

use std::fmt;
use std::path::Path;

use crate::error::Error;

/// A password, of which nothing can be learned by how long a comparison takes.
#[derive(Clone)]
pub(crate) struct Password(Vec<u8>);

impl Password {
    /// Reads the first line of a file.
    pub fn read(path: &Path) -> Result<Self, Error> {
        let wrong = |problem: String| Error::Password { path: path.to_owned(), problem };
        let mut bytes = std::fs::read(path).map_err(|error| wrong(error.to_string()))?;
        let end = bytes.iter().position(|byte| b"\r\n".contains(byte)).unwrap_or(bytes.len());
        bytes.truncate(end);
        match bytes.is_empty() {
            true => Err(wrong("its first line, the password, is empty".to_owned())),
            false => Ok(Self(bytes)),
        }
    }

    pub fn is(&self, given: &[u8]) -> bool {
        let mut differs = self.0.len() ^ given.len();
        for (at, byte) in self.0.iter().enumerate() {
            differs |= usize::from(byte ^ given.get(at).copied().unwrap_or(!byte));
        }
        std::hint::black_box(differs) == 0
    }
}

impl fmt::Debug for Password {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Password")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_password_is_the_first_line_of_its_file_and_nothing_else() {
        let file = tempfile::NamedTempFile::new().unwrap();
        std::fs::write(&file, "swordfish\nmore").unwrap();
        let password = Password::read(file.path()).unwrap();
        assert!(password.is(b"swordfish"));
        for wrong in ["", "swordfis", "swordfish1", "Swordfish", "more"] {
            assert!(!password.is(wrong.as_bytes()), "{wrong}");
        }
        assert_eq!(format!("{password:?}"), "Password");
        std::fs::write(&file, "\nx").unwrap();
        assert!(Password::read(file.path()).unwrap_err().to_string().contains("empty"));
    }
}
