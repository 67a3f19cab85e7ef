//! A link between two nodes, as one side has it: a channel and the messages on it.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream, ToSocketAddrs};
use std::time::{Duration, Instant};

use serde::Serialize;
use serde::de::DeserializeOwned;

use super::channel::{Channel, LinkError};
use super::credentials::Credentials;
use super::messages::{ControlReply, ControlRequest};
use super::preface;
use super::tls::of_tls;
use crate::limits::READ_BYTES;
use crate::session::wire::{self, Decoder};

/// One end of a link.
pub(super) struct Link {
    channel: Box<dyn Channel>,
    decoder: Decoder,
}

/// The host of an address, `host:port`.
pub(super) fn host_of(address: &str) -> &str {
    let host = address.rsplit_once(':').map_or(address, |(host, _)| host);
    host.trim_start_matches('[').trim_end_matches(']')
}

/// Looks an address up.
pub(super) fn resolve(address: &str) -> Result<Vec<SocketAddr>, LinkError> {
    Ok(address.to_socket_addrs()?.collect())
}

impl Link {
    /// Dials `host`, which is at one of these addresses.
    pub fn dial(
        host: &str,
        at: &[SocketAddr],
        credentials: &Credentials,
        deadline: Instant,
    ) -> Result<Self, LinkError> {
        let stream = connect(at, deadline)?;
        Self::over_stream(stream, host, credentials, deadline)
    }

    /// Opens a link on a stream to `host`.
    pub fn over_stream(
        stream: TcpStream,
        host: &str,
        credentials: &Credentials,
        deadline: Instant,
    ) -> Result<Self, LinkError> {
        stream.set_nodelay(true)?;
        Ok(Self::over(preface::dial(stream, host, credentials, deadline)?))
    }

    /// Accepts a connection.
    pub fn accept(
        stream: TcpStream,
        credentials: &Credentials,
        deadline: Instant,
    ) -> Result<Self, LinkError> {
        stream.set_nodelay(true)?;
        Ok(Self::over(preface::accept(stream, credentials, deadline)?))
    }

    fn over(channel: Box<dyn Channel>) -> Self {
        Self { channel, decoder: Decoder::default() }
    }

    /// Checks that the other side has proven that it is `host`, as far as its credentials can.
    ///
    /// # Errors
    /// The name that it has proven, in words.
    pub fn vouch_for(&self, host: &str) -> Result<(), String> {
        self.channel.vouch_for(host)
    }

    /// Asks, and waits for the answer.
    pub fn ask(
        &mut self,
        ask: &ControlRequest,
        within: Duration,
    ) -> Result<ControlReply, LinkError> {
        let deadline = Instant::now() + within;
        self.send(ask, deadline)?;
        self.receive(deadline)
    }

    /// Sends a message.
    pub fn send<M: Serialize>(&mut self, message: &M, deadline: Instant) -> Result<(), LinkError> {
        self.channel.set_deadline(deadline);
        self.channel.write_all(&wire::encode(message)).map_err(of_tls)?;
        self.channel.flush().map_err(of_tls)
    }

    /// Sends bytes that are not a message.
    #[cfg(test)]
    pub fn send_raw(&mut self, bytes: &[u8]) {
        self.channel.write_all(bytes).expect("the other side listens");
    }

    /// Receives the next message.
    pub fn receive<M: DeserializeOwned>(&mut self, deadline: Instant) -> Result<M, LinkError> {
        self.channel.set_deadline(deadline);
        loop {
            if let Some(frame) = self.decoder.next().map_err(garbage)? {
                return serde_json::from_slice(&frame).map_err(garbage);
            }
            let mut bytes = [0; READ_BYTES];
            match self.channel.read(&mut bytes).map_err(of_tls)? {
                0 => return Err(LinkError::Closed),
                n => self.decoder.push(&bytes[..n]),
            }
        }
    }
}

fn garbage(error: impl std::fmt::Display) -> LinkError {
    LinkError::Garbage(error.to_string())
}

/// Connects to the first address that answers.
fn connect(at: &[SocketAddr], deadline: Instant) -> Result<TcpStream, LinkError> {
    let mut last = LinkError::Io("its name has no address".into());
    for at in at {
        let left = deadline.saturating_duration_since(Instant::now());
        match TcpStream::connect_timeout(at, left.max(Duration::from_millis(1))) {
            Ok(stream) => return Ok(stream),
            Err(error) => last = error.into(),
        }
    }
    Err(last)
}
