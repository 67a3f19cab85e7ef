//! Where a gateway listens: `HOST:PORT` or `unix:PATH`.

use std::collections::BTreeSet;
use std::fmt;
use std::net::{SocketAddr, ToSocketAddrs, UdpSocket};
use std::path::PathBuf;
use std::str::FromStr;

/// An address that cannot be used.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("address {text:?}: {problem}; an address is {forms}")]
pub struct ParseAddressError {
    text: String,
    problem: String,
    /// The forms of an address that are allowed there.
    forms: &'static str,
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
    /// All addresses of a host with a port, or the path of a socket; at least one. The name of a
    /// host may stand for several addresses: `localhost` is one of each version of IP. If a machine
    /// has only some of them, these are all.
    ///
    /// # Errors
    /// [`ParseAddressError`] names what is wrong, and the forms of an address.
    pub fn all(text: &str) -> Result<Vec<Self>, ParseAddressError> {
        let forms = "HOST:PORT or unix:PATH";
        match text.strip_prefix("unix:") {
            Some("") => Err(wrong(text, forms)(&"the path is empty")),
            Some(path) => Ok(vec![Self::Unix(path.into())]),
            None => Ok(of_host(text, forms)?.into_iter().map(Self::Tcp).collect()),
        }
    }

    /// All addresses of a host with a port, as [`Address::all`], for those who cannot use a socket
    /// in the file system.
    ///
    /// # Errors
    /// [`ParseAddressError`] names what is wrong, and the form of an address.
    pub fn all_tcp(text: &str) -> Result<Vec<SocketAddr>, ParseAddressError> {
        let form = "HOST:PORT";
        match text.starts_with("unix:") {
            true => Err(wrong(text, form)(&"it is a unix socket")),
            false => of_host(text, form),
        }
    }

    /// Whether only processes of this host reach it.
    pub fn is_local(&self) -> bool {
        match self {
            Self::Tcp(address) => address.ip().is_loopback(),
            Self::Unix(_) => true,
        }
    }
}

/// The addresses of a host with a port that this machine has; at least one.
fn of_host(text: &str, forms: &'static str) -> Result<Vec<SocketAddr>, ParseAddressError> {
    let wrong = wrong(text, forms);
    // A resolver may name an address twice.
    let found: BTreeSet<_> = text.to_socket_addrs().map_err(|error| wrong(&error))?.collect();
    if found.is_empty() {
        return Err(wrong(&"the host has no address"));
    }
    let is_own = |address: &&SocketAddr| UdpSocket::bind((address.ip(), 0)).is_ok();
    let own: Vec<_> = found.iter().filter(is_own).copied().collect();
    // To listen at one of the others says why it cannot be used.
    Ok(if own.is_empty() { found.into_iter().collect() } else { own })
}

fn wrong(text: &str, forms: &'static str) -> impl Fn(&dyn fmt::Display) -> ParseAddressError {
    move |problem| ParseAddressError { text: text.to_owned(), problem: problem.to_string(), forms }
}

/// One of the addresses of [`Address::all`].
impl FromStr for Address {
    type Err = ParseAddressError;

    fn from_str(text: &str) -> Result<Self, ParseAddressError> {
        Ok(Self::all(text)?.swap_remove(0))
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

    #[test]
    fn an_address_that_cannot_be_a_unix_socket_does_not_offer_one() {
        let local = Address::all_tcp("127.0.0.1:9100").unwrap();
        assert_eq!(local, ["127.0.0.1:9100".parse().unwrap()]);
        for text in ["9100", "unix:/tmp/x", ""] {
            let error = Address::all_tcp(text).unwrap_err().to_string();
            assert!(error.ends_with("an address is HOST:PORT"), "{error}");
        }
    }

    #[test]
    fn a_host_has_each_of_its_addresses_once() {
        let found = "localhost:1".to_socket_addrs().unwrap();
        let own = found.filter(|address| UdpSocket::bind((address.ip(), 0)).is_ok());
        let own: BTreeSet<_> = own.map(|address| Address::Tcp(address).to_string()).collect();
        let all: Vec<_> = Address::all("localhost:1").unwrap();
        let all: BTreeSet<_> = all.iter().map(Address::to_string).collect();
        assert!(all == own && own.contains("127.0.0.1:1"), "{all:?}");
    }
}
