//! Where a gateway listens: `HOST:PORT` or `unix:PATH`.

use std::fmt;
use std::net::{SocketAddr, ToSocketAddrs};
use std::path::PathBuf;
use std::str::FromStr;

/// An address that cannot be used.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("address {text:?}: {problem}; an address is HOST:PORT or unix:PATH")]
pub struct ParseAddressError {
    text: String,
    problem: String,
}

/// An address that a gateway listens at.
///
/// ```
/// use loch_gateway::Address;
/// let address: Address = "unix:/run/loch/redis.sock".parse()?;
/// assert!(address.is_local());
/// # Ok::<(), loch_gateway::ParseAddressError>(())
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Address {
    /// A port of this host.
    Tcp(SocketAddr),
    /// A socket in the file system.
    Unix(PathBuf),
}

impl Address {
    /// Whether only processes of this host reach it.
    pub fn is_local(&self) -> bool {
        match self {
            Self::Tcp(address) => address.ip().is_loopback(),
            Self::Unix(_) => true,
        }
    }
}

impl FromStr for Address {
    type Err = ParseAddressError;

    fn from_str(text: &str) -> Result<Self, ParseAddressError> {
        let wrong = |problem: String| ParseAddressError { text: text.to_owned(), problem };
        if let Some(path) = text.strip_prefix("unix:") {
            return match path.is_empty() {
                true => Err(wrong("the path is empty".to_owned())),
                false => Ok(Self::Unix(path.into())),
            };
        }
        let mut addresses = text.to_socket_addrs().map_err(|error| wrong(error.to_string()))?;
        addresses.next().map(Self::Tcp).ok_or_else(|| wrong("the host has no address".to_owned()))
    }
}

impl fmt::Display for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Tcp(address) => address.fmt(f),
            Self::Unix(path) => write!(f, "unix:{}", path.display()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_address_is_a_host_with_a_port_or_the_path_of_a_socket() {
        for (text, is_local) in [
            ("127.0.0.1:6379", true),
            ("[::1]:6379", true),
            ("0.0.0.0:1", false),
            ("192.0.2.1:1", false),
            ("unix:/tmp/x", true),
        ] {
            let address: Address = text.parse().unwrap();
            assert_eq!((address.to_string().as_str(), address.is_local()), (text, is_local));
        }
        for text in ["", "127.0.0.1", "127.0.0.1:x", "unix:", ":0:0"] {
            let error = text.parse::<Address>().unwrap_err().to_string();
            assert!(error.contains(&format!("{text:?}")), "{error}");
        }
    }
}
