//! The password of a gateway.

use std::fmt;
use std::fs::File;
use std::io::Read;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;

use crate::error::Error;
use crate::limits::OTHERS;

/// A password, of which nothing can be learned by how long a comparison takes.
#[derive(Clone)]
pub(crate) struct Password(Vec<u8>);

impl Password {
    /// Reads the first line of a file.
    pub fn read(path: &Path) -> Result<Self, Error> {
        let wrong = |problem: String| Error::Password { path: path.to_owned(), problem };
        let mut file = File::open(path).map_err(|error| wrong(error.to_string()))?;
        let found = file.metadata().map_err(|error| wrong(error.to_string()))?;
        if found.is_dir() {
            return Err(wrong("it is a directory".to_owned()));
        }
        if found.permissions().mode() & OTHERS != 0 {
            let way = format!("`chmod go= {}`", path.display());
            return Err(wrong(format!("other users may use it: {way}")));
        }
        let mut bytes = Vec::new();
        file.read_to_end(&mut bytes).map_err(|error| wrong(error.to_string()))?;
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
    use std::fs::Permissions;

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
        for mode in [0o640, 0o604, 0o660] {
            std::fs::set_permissions(file.path(), Permissions::from_mode(mode)).unwrap();
            let error = Password::read(file.path()).unwrap_err().to_string();
            assert!(error.contains("chmod go="), "{error}");
        }
        std::fs::set_permissions(file.path(), Permissions::from_mode(0o400)).unwrap();
        assert!(Password::read(file.path()).unwrap().is(b"swordfish"));
        std::fs::set_permissions(file.path(), Permissions::from_mode(0o600)).unwrap();
        std::fs::write(&file, "\nx").unwrap();
        assert!(Password::read(file.path()).unwrap_err().to_string().contains("empty"));
    }
}
