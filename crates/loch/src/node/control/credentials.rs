//! By what a node proves to the others that it is one of them.
//!
//! A certificate says which node it is. A shared secret does not: whoever has it can say that it is
//! any node, and is believed. So it is as good as the worst kept copy of it.

use std::fmt;
use std::io::Read;
use std::path::Path;

use super::key_file::check_private;
use super::tls::Certificates;
use crate::Error;
use crate::layout::config::TlsConfig;
use crate::limits::{SECRET_BYTES_MAX, SECRET_BYTES_MIN};

/// What a node proves itself by.
pub(crate) enum Credentials {
    /// By a secret that all nodes share: a key that was made of it.
    Secret([u8; 32]),
    /// By a certificate.
    Certificates(Box<Certificates>),
}

/// Tries that a guess at the secret costs. It is made once, when a node starts.
const ITERATIONS: std::num::NonZeroU32 = std::num::NonZeroU32::new(600_000).expect("not zero");
/// Keys of other uses of the same secret are others.
const SALT: &[u8] = b"loch control port, key of NNpsk0, 1";

impl fmt::Debug for Credentials {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // Nothing of a secret goes into a log.
        f.write_str(Self::name_of_kind(self.kind()))
    }
}

impl Credentials {
    /// Reads what a configuration names. A node that is alone and was given nothing makes a secret
    /// of its own: nobody else has it, so nobody else is a node.
    ///
    /// # Errors
    /// [`Error::Config`] names the field and the file. Several nodes must be given something, on
    /// loopback addresses too: every local user can connect to those.
    pub fn load(
        secret: Option<&Path>,
        tls: Option<&TlsConfig>,
        nodes: usize,
    ) -> Result<Self, Error> {
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

    /// A secret that this process makes and keeps to itself.
    fn of_its_own() -> Result<Self, Error> {
        let mut key = [0; 32];
        rustix::rand::getrandom(&mut key, rustix::rand::GetRandomFlags::empty())
            .map_err(Error::os("draw random bytes for", "the control port".as_ref()))?;
        Ok(Self::Secret(key))
    }

    /// As it is in a preface.
    pub(super) fn kind(&self) -> u8 {
        match self {
            Self::Secret(_) => 1,
            Self::Certificates(_) => 2,
        }
    }

    /// A kind, for people. Nodes of former releases could have nothing.
    pub(super) fn name_of_kind(kind: u8) -> &'static str {
        match kind {
            0 => "nothing",
            1 => "a secret",
            2 => "certificates",
            _ => "something unknown",
        }
    }
}

/// Makes a key of a secret, so slowly that guessing is dear should people have thought it up.
pub(super) fn derive(secret: &[u8]) -> [u8; 32] {
    let mut key = [0; 32];
    ring::pbkdf2::derive(ring::pbkdf2::PBKDF2_HMAC_SHA256, ITERATIONS, SALT, secret, &mut key);
    key
}

fn read_secret(path: &Path) -> Result<Vec<u8>, Error> {
    let file = check_private("secret", path)?;
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
