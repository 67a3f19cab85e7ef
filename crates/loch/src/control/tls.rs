//! A channel between nodes that have certificates: TLS 1.3, in which both sides show theirs.
//!
//! Whoever has a certificate of the cluster's authority is a node; a node that is dialed must also
//! have the name by which the cluster knows it. The version of the protocol is negotiated too, so
//! that it is bound by the handshake.

use std::io::{self, Read, Write};
use std::path::Path;
use std::sync::Arc;
use std::time::Instant;

use rustls::crypto::CryptoProvider;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName};
use rustls::server::WebPkiClientVerifier;
use rustls::{ClientConfig, ClientConnection, RootCertStore, ServerConfig, ServerConnection};

use super::channel::{Channel, LinkError, PROTOCOL, Timed};
use crate::Error;
use crate::config::TlsConfig;

/// A node's certificate and whom it trusts.
pub(crate) struct Certificates {
    client: Arc<ClientConfig>,
    server: Arc<ServerConfig>,
}

impl Certificates {
    /// Reads what a configuration names.
    ///
    /// # Errors
    /// [`Error::Config`] names the field.
    pub fn load(config: &TlsConfig) -> Result<Self, Error> {
        let wrong = |field: &str, path: &Path, cause: &dyn std::fmt::Display| {
            Error::config(format!("tls.{field}"), format!("{}: {cause}", path.display()))
        };
        let chain = certificates(&config.certificate)
            .map_err(|e| wrong("certificate", &config.certificate, &e))?;
        super::credentials::check_private("tls.key", &config.key)?;
        let key =
            PrivateKeyDer::from_pem_file(&config.key).map_err(|e| wrong("key", &config.key, &e))?;
        let mut roots = RootCertStore::empty();
        for root in certificates(&config.ca).map_err(|e| wrong("ca", &config.ca, &e))? {
            roots.add(root).map_err(|e| wrong("ca", &config.ca, &e))?;
        }
        let build = || Self::build(chain, key, Arc::new(roots));
        build().map_err(|e| wrong("certificate", &config.certificate, &e))
    }

    fn build(
        chain: Vec<CertificateDer<'static>>,
        key: PrivateKeyDer<'static>,
        roots: Arc<RootCertStore>,
    ) -> Result<Self, Box<dyn std::error::Error>> {
        let provider: Arc<CryptoProvider> = rustls::crypto::ring::default_provider().into();
        let versions = &[&rustls::version::TLS13];
        let trusts =
            WebPkiClientVerifier::builder_with_provider(roots.clone(), provider.clone()).build()?;
        let mut server = ServerConfig::builder_with_provider(provider.clone())
            .with_protocol_versions(versions)?
            .with_client_cert_verifier(trusts)
            .with_single_cert(chain.clone(), key.clone_key())?;
        let mut client = ClientConfig::builder_with_provider(provider)
            .with_protocol_versions(versions)?
            .with_root_certificates(roots)
            .with_client_auth_cert(chain, key)?;
        let version = vec![format!("loch-control/{PROTOCOL}").into_bytes()];
        (server.alpn_protocols, client.alpn_protocols) = (version.clone(), version);
        Ok(Self { client: client.into(), server: server.into() })
    }
}

fn certificates(path: &Path) -> Result<Vec<CertificateDer<'static>>, Box<dyn std::error::Error>> {
    let all: Vec<_> = CertificateDer::pem_file_iter(path)?.collect::<Result<_, _>>()?;
    if all.is_empty() {
        return Err("it has no certificate in PEM".into());
    }
    Ok(all)
}

/// The dialing side; the other one's certificate must be for `host`.
pub(super) fn dial(
    stream: Timed,
    certificates: &Certificates,
    host: &str,
) -> Result<Box<dyn Channel>, LinkError> {
    let name = ServerName::try_from(host.to_owned());
    let name = name.map_err(|e| LinkError::Certificate(format!("{host:?}: {e}")))?;
    let connection = ClientConnection::new(certificates.client.clone(), name).map_err(refused)?;
    established(rustls::StreamOwned::new(connection, stream))
}

/// The accepting side.
pub(super) fn accept(
    stream: Timed,
    certificates: &Certificates,
) -> Result<Box<dyn Channel>, LinkError> {
    let connection = ServerConnection::new(certificates.server.clone()).map_err(refused)?;
    established(rustls::StreamOwned::new(connection, stream))
}

fn refused(error: rustls::Error) -> LinkError {
    LinkError::Certificate(error.to_string())
}

/// A TLS stream over whichever side of a connection.
struct Tls<C>(rustls::StreamOwned<C, Timed>);

fn established<C, S>(
    mut stream: rustls::StreamOwned<C, Timed>,
) -> Result<Box<dyn Channel>, LinkError>
where
    C: std::ops::DerefMut<Target = rustls::ConnectionCommon<S>> + Send + 'static,
    S: rustls::SideData + 'static,
{
    while stream.conn.is_handshaking() {
        stream.conn.complete_io(&mut stream.sock).map_err(of_tls)?;
    }
    Ok(Box::new(Tls(stream)))
}

/// What TLS has to say comes wrapped in errors of the stream.
pub(super) fn of_tls(error: io::Error) -> LinkError {
    let inner = error.get_ref().and_then(|inner| inner.downcast_ref::<rustls::Error>());
    match inner {
        Some(inner) => refused(inner.clone()),
        None => error.into(),
    }
}

impl<C, S> Read for Tls<C>
where
    C: std::ops::DerefMut<Target = rustls::ConnectionCommon<S>>,
    S: rustls::SideData,
{
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        self.0.read(into)
    }
}

impl<C, S> Write for Tls<C>
where
    C: std::ops::DerefMut<Target = rustls::ConnectionCommon<S>>,
    S: rustls::SideData,
{
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.write(bytes)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.0.flush()
    }
}

impl<C, S> Channel for Tls<C>
where
    C: std::ops::DerefMut<Target = rustls::ConnectionCommon<S>> + Send,
    S: rustls::SideData,
{
    fn set_deadline(&mut self, deadline: Instant) {
        self.0.sock.set_deadline(deadline);
    }
}
