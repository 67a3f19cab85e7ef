//! The password of a gateway.

use std::fmt;
use std::io::Read;
use std::path::PathBuf;

use crate::error::Error;
use crate::limits::{PASSWORD_BYTES_MAX, PASSWORD_BYTES_MIN};

/// Where a gateway's password is.
#[derive(Clone, PartialEq, Eq)]
pub enum PasswordSource {
    /// It is the first line of this file.
    File(PathBuf),
    /// It was given: by the variable `LOCH_PASSWORD` at the command line.
    Given(Vec<u8>),
}

/// A password, of which nothing can be learned by how long a comparison takes.
#[derive(Clone)]
pub(crate) struct Password(Vec<u8>);

impl Password {
    /// Reads a password.
    pub fn read(source: &PasswordSource) -> Result<Self, Error> {
        let wrong = |problem: String| Error::Password { problem };
        let mut bytes = match source {
            PasswordSource::Given(bytes) => {
                // The variable may have been set from a file, whose line ends.
                let line = bytes.strip_suffix(b"\n").unwrap_or(bytes);
                let line = line.strip_suffix(b"\r").unwrap_or(line);
                if line.iter().any(is_line_end) {
                    return Err(wrong(format!("{source} has a line end in its middle")));
                }
                line.to_vec()
            }
            PasswordSource::File(path) => {
                let mut bytes = Vec::new();
                // The longest password, and the end of its line.
                let file = loch::open_secret(path).map_err(wrong)?;
                let read = file.take(PASSWORD_BYTES_MAX as u64 + 1).read_to_end(&mut bytes);
                read.map_err(|error| wrong(format!("{}: {error}", path.display())))?;
                bytes
            }
        };
        let end = bytes.iter().position(is_line_end).unwrap_or(bytes.len());
        bytes.truncate(end);
        let allowed = PASSWORD_BYTES_MIN..=PASSWORD_BYTES_MAX;
        if !allowed.contains(&bytes.len()) {
            let (has, least, most) = (bytes.len(), allowed.start(), allowed.end());
            return Err(wrong(format!(
                "{source} has {has} bytes, a password has {least} to {most}: make one with \
                 `openssl rand -hex 24`"
            )));
        }
        Ok(Self(bytes))
    }

    pub fn is(&self, given: &[u8]) -> bool {
        let mut differs = self.0.len() ^ given.len();
        for (at, byte) in self.0.iter().enumerate() {
            differs |= usize::from(byte ^ given.get(at).copied().unwrap_or(!byte));
        }
        std::hint::black_box(differs) == 0
    }
}

fn is_line_end(byte: &u8) -> bool {
    b"\r\n".contains(byte)
}

/// The place of the password, for messages.
impl fmt::Display for PasswordSource {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::File(path) => write!(f, "the first line of {}", path.display()),
            Self::Given(_) => f.write_str("the variable LOCH_PASSWORD"),
        }
    }
}

impl fmt::Debug for Password {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Password")
    }
}

impl fmt::Debug for PasswordSource {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::File(path) => f.debug_tuple("File").field(path).finish(),
            // It must not go into a log.
            Self::Given(_) => f.write_str("Given"),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::fs::Permissions;
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    fn given(text: &str) -> Result<Password, Error> {
        Password::read(&PasswordSource::Given(text.as_bytes().to_vec()))
    }

    #[test]
    fn a_password_is_the_first_line_of_its_file_and_nothing_else() {
        let file = tempfile::NamedTempFile::new().unwrap();
        let source = PasswordSource::File(file.path().to_owned());
        std::fs::write(&file, "swordfish\nmore").unwrap();
        let password = Password::read(&source).unwrap();
        assert!(password.is(b"swordfish"));
        for wrong in ["", "swordfis", "swordfish1", "Swordfish", "more"] {
            assert!(!password.is(wrong.as_bytes()), "{wrong}");
        }
        for mode in [0o604, 0o644, 0o660] {
            std::fs::set_permissions(file.path(), Permissions::from_mode(mode)).unwrap();
            let error = Password::read(&source).unwrap_err().to_string();
            assert!(error.contains("chmod 600"), "{error}");
        }
        std::fs::set_permissions(file.path(), Permissions::from_mode(0o400)).unwrap();
        assert!(Password::read(&source).unwrap().is(b"swordfish"));
    }

    /// A gateway compares more than a million guesses in a second.
    #[test]
    fn a_password_is_not_guessed_at_once_and_not_endless() {
        for short in ["", "\n", "a", "1234567"] {
            let error = given(short).unwrap_err().to_string();
            for word in ["LOCH_PASSWORD", "8 to 1024", "openssl"] {
                assert!(error.contains(word), "{error}");
            }
        }
        let file = tempfile::NamedTempFile::new().unwrap();
        std::fs::write(&file, "\nswordfish").unwrap();
        let named = file.path().display().to_string();
        let error = Password::read(&PasswordSource::File(file.path().to_owned())).unwrap_err();
        assert!(error.to_string().contains(&named), "{error}");
        assert!(given("foobared").unwrap().is(b"foobared"));
        assert!(given(&"x".repeat(PASSWORD_BYTES_MAX)).is_ok());
        assert!(given(&"x".repeat(PASSWORD_BYTES_MAX + 1)).is_err());
    }

    /// The first of several lines was the password, and the rest was left out without a word.
    #[test]
    fn a_variable_is_one_line() {
        for ended in ["swordfish\n", "swordfish\r\n"] {
            assert!(given(ended).unwrap().is(b"swordfish"), "{ended:?}");
        }
        for lines in ["swordfish\nswordfish", "swordfish\n\n", "\nswordfish", "sword\rfish"] {
            let error = given(lines).unwrap_err().to_string();
            assert!(error.contains("LOCH_PASSWORD") && error.contains("line end"), "{error}");
        }
    }

    #[test]
    fn a_password_is_in_no_log() {
        assert_eq!(format!("{:?}", given("swordfish").unwrap()), "Password");
        assert_eq!(format!("{:?}", PasswordSource::Given(b"swordfish".to_vec())), "Given");
    }
}
