//! A channel between nodes that have certificates: TLS 1.3, in which both sides show a certificate.
//!
//! A node has a certificate of the cluster's authority, for the host by which the cluster's list
//! names the node. The dialing side asks for that host in the handshake. The accepting side learns
//! only afterwards which node the other side says it is, and then compares: the authority may be a
//! whole company's. Certificates do not tell nodes of the same host apart. The version of the
//! protocol is negotiated too, so the handshake protects it.

use std::io;
use std::ops::DerefMut;
use std::path::Path;
use std::sync::Arc;
use std::time::Instant;

use rustls::client::verify_server_name;
use rustls::crypto::CryptoProvider;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName};
use rustls::server::{ParsedCertificate, WebPkiClientVerifier};
use rustls::{
    CertificateError, ClientConfig, ClientConnection, ConnectionCommon, RootCertStore,
    ServerConfig, ServerConnection, SideData, StreamOwned,
};

use super::channel::{Channel, LinkError, PROTOCOL, TimedStream};
use crate::layout::config::TlsConfig;
use crate::secret_file::open_secret;
use crate::{Error, Result};

/// A node's certificate, and the authorities that it trusts.
pub(crate) struct Certificates {
    client: Arc<ClientConfig>,
    server: Arc<ServerConfig>,
}

impl Certificates {
    /// Reads the files that a configuration names.
    ///
    /// # Errors
    /// [`Error::Config`] names the field.
    pub fn load(config: &TlsConfig) -> Result<Self> {
        let wrong = |field: &str, path: &Path, cause: &dyn std::fmt::Display| {
            Error::config(format!("tls.{field}"), format!("{}: {cause}", path.display()))
        };
        let chain = certificates(&config.certificate)
            .map_err(|e| wrong("certificate", &config.certificate, &e))?;
        let file = open_secret(&config.key).map_err(|why| Error::config("tls.key", why))?;
        let key =
            PrivateKeyDer::from_pem_reader(file).map_err(|e| wrong("key", &config.key, &e))?;
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
    let all: Vec<_> = CertificateDer::pem_reader_iter(crate::private::open_named(path)?)
        .collect::<Result<_, _>>()?;
    if all.is_empty() {
        return Err("it has no certificate in PEM".into());
    }
    Ok(all)
}

/// Does the handshake of the dialing side; the certificate of the other side must be for `host`.
pub(super) fn dial(
    stream: TimedStream,
    certificates: &Certificates,
    host: &str,
) -> Result<Box<dyn Channel>, LinkError> {
    let name = name_of(host).map_err(LinkError::Certificate)?;
    let connection = ClientConnection::new(certificates.client.clone(), name).map_err(refused)?;
    established(StreamOwned::new(connection, stream))
}

/// Does the handshake of the accepting side.
pub(super) fn accept(
    stream: TimedStream,
    certificates: &Certificates,
) -> Result<Box<dyn Channel>, LinkError> {
    let connection = ServerConnection::new(certificates.server.clone()).map_err(refused)?;
    established(StreamOwned::new(connection, stream))
}

fn name_of(host: &str) -> Result<ServerName<'static>, String> {
    ServerName::try_from(host.to_owned()).map_err(|error| format!("{host:?}: {error}"))
}

/// Checks that a certificate whose signatures were checked is for a host.
fn check_name(certificate: &CertificateDer<'_>, host: &str) -> Result<(), String> {
    let name = name_of(host)?;
    let parsed = ParsedCertificate::try_from(certificate).map_err(|error| error.to_string())?;
    verify_server_name(&parsed, &name).map_err(|error| match error {
        rustls::Error::InvalidCertificate(CertificateError::NotValidForNameContext {
            presented,
            ..
        }) => format!("it is for {}", presented.join(", ")),
        other => other.to_string(),
    })
}

fn refused(error: rustls::Error) -> LinkError {
    LinkError::Certificate(error.to_string())
}

fn established<C, S>(mut stream: StreamOwned<C, TimedStream>) -> Result<Box<dyn Channel>, LinkError>
where
    C: DerefMut<Target = ConnectionCommon<S>> + Send + 'static,
    S: SideData + 'static,
{
    while stream.conn.is_handshaking() {
        stream.conn.complete_io(&mut stream.sock).map_err(of_tls)?;
    }
    Ok(Box::new(stream))
}

/// Errors of TLS come wrapped in errors of the stream.
pub(super) fn of_tls(error: io::Error) -> LinkError {
    let inner = error.get_ref().and_then(|inner| inner.downcast_ref::<rustls::Error>());
    match inner {
        Some(inner) => refused(inner.clone()),
        None => error.into(),
    }
}

/// Either side of a connection.
impl<C, S> Channel for StreamOwned<C, TimedStream>
where
    C: DerefMut<Target = ConnectionCommon<S>> + Send,
    S: SideData,
{
    fn set_deadline(&mut self, deadline: Instant) {
        self.sock.set_deadline(deadline);
    }

    fn vouch_for(&self, host: &str) -> Result<(), String> {
        match self.conn.peer_certificates() {
            Some([certificate, ..]) => check_name(certificate, host),
            _ => Err("it has shown none".into()),
        }
    }
}
