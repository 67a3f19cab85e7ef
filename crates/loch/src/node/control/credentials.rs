//! The credentials by which nodes prove to each other that they are of one cluster.
//!
//! A certificate says which node it is. A shared secret does not: a process that has it can say
//! that it is any node, and is believed. The cluster is therefore as safe as the worst kept copy of
//! the secret.

use std::fmt;
use std::io::Read;
use std::path::Path;

use super::tls::Certificates;
use crate::layout::config::TlsConfig;
use crate::limits::{SECRET_BYTES_MAX, SECRET_BYTES_MIN};
use crate::secret_file::open_secret;
use crate::{Error, Result};

/// The credentials of a node.
pub(crate) enum Credentials {
    /// A key that was derived from a secret that all nodes share.
    Secret([u8; 32]),
    /// A certificate.
    Certificates(Box<Certificates>),
}

/// The iterations that one guess at the secret costs. A node derives its key once, when it starts.
const ITERATIONS: std::num::NonZeroU32 = std::num::NonZeroU32::new(600_000).expect("not zero");
/// The salt makes this key differ from keys for other uses of the same secret.
const SALT: &[u8] = b"loch control port, key of NNpsk0, 1";

impl fmt::Debug for Credentials {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // A secret must not go into a log.
        f.write_str(Self::name_of_kind(self.kind()))
    }
}

impl Credentials {
    /// Reads the files that a configuration names. A node that is alone and names none makes a
    /// secret for itself, which no other process has.
    ///
    /// # Errors
    /// [`Error::Config`] names the field and the file. Several nodes need credentials, even on
    /// loopback addresses, since every local user can connect to those.
    pub fn load(secret: Option<&Path>, tls: Option<&TlsConfig>, nodes: usize) -> Result<Self> {
        match (secret, tls) {
            (None, None) if nodes == 1 => Self::of_its_own(),
            (None, None) => Err(Error::config(
                "secret",
                format!(
                    "{nodes} nodes need one to know each other by, on loopback addresses too: make \
                     it with `(umask 077; head -c 32 /dev/urandom | base64 > FILE)` and give all \
                     nodes `--secret FILE`, or certificates with [tls]"
                ),
            )),
            (Some(path), None) => Ok(Self::Secret(derive(&read_secret(path)?))),
            (None, Some(tls)) => Ok(Self::Certificates(Box::new(Certificates::load(tls)?))),
            (Some(_), Some(_)) => {
                Err(Error::config("secret", "there is also [tls]: one of the two is enough"))
            }
        }
    }

    /// Makes a secret that only this process knows.
    fn of_its_own() -> Result<Self> {
        let mut key = [0; 32];
        rustix::rand::getrandom(&mut key, rustix::rand::GetRandomFlags::empty())
            .map_err(Error::os("draw random bytes for", "the control port".as_ref()))?;
        Ok(Self::Secret(key))
    }

    /// The number of the kind in a preface.
    pub(super) fn kind(&self) -> u8 {
        match self {
            Self::Secret(_) => 1,
            Self::Certificates(_) => 2,
        }
    }

    /// The name of a kind, for messages. Nodes of former releases could have no credentials.
    pub(super) fn name_of_kind(kind: u8) -> &'static str {
        match kind {
            0 => "nothing",
            1 => "a secret",
            2 => "certificates",
            _ => "something unknown",
        }
    }
}

/// Derives a key from a secret. It is slow on purpose, since a secret that a person made up can be
/// guessed.
pub(super) fn derive(secret: &[u8]) -> [u8; 32] {
    let mut key = [0; 32];
    ring::pbkdf2::derive(ring::pbkdf2::PBKDF2_HMAC_SHA256, ITERATIONS, SALT, secret, &mut key);
    key
}

fn read_secret(path: &Path) -> Result<Vec<u8>> {
    let file = open_secret(path).map_err(|problem| Error::config("secret", problem))?;
    let mut secret = Vec::new();
    let read = file.take(SECRET_BYTES_MAX as u64 + 1).read_to_end(&mut secret);
    read.map_err(Error::os("read", path))?;
    while secret.last().is_some_and(u8::is_ascii_whitespace) {
        secret.pop();
    }
    if !(SECRET_BYTES_MIN..=SECRET_BYTES_MAX).contains(&secret.len()) {
        return Err(Error::config(
            "secret",
            format!(
                "{} has {} bytes, a secret has {SECRET_BYTES_MIN} to {SECRET_BYTES_MAX}: make one \
                 with `head -c 32 /dev/urandom | base64`",
                path.display(),
                secret.len()
            ),
        ));
    }
    Ok(secret)
}
