//! The certificate that a gateway shows to clients that come over TCP.

use std::path::Path;
use std::sync::Arc;

use rustls::pki_types::pem::{self, PemObject};
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::{ServerConfig, ServerConnection};

use crate::error::Error;

/// A certificate and its key. Clients show none: they give the password.
#[derive(Clone, Debug)]
pub(crate) struct Certificate(Arc<ServerConfig>);

impl Certificate {
    /// Reads the files, in PEM.
    pub fn read(certificate: &Path, key: &Path) -> Result<Self, Error> {
        let wrong = |path: &Path, problem: String| Error::Tls { path: path.to_owned(), problem };
        let chain = CertificateDer::pem_file_iter(certificate).and_then(Iterator::collect);
        let chain: Vec<_> = chain.map_err(|error| wrong(certificate, error.to_string()))?;
        if chain.is_empty() {
            return Err(wrong(certificate, "it has no certificate in PEM".to_owned()));
        }
        let file = loch::open_secret(key).map_err(|problem| wrong(key, problem))?;
        let key_of = PrivateKeyDer::from_pem_reader(file).map_err(|error| match error {
            pem::Error::Io(error) => wrong(key, error.to_string()),
            pem::Error::NoItemsFound => wrong(key, "it has no private key in PEM".to_owned()),
            error => {
                let way = "if it is encrypted, `openssl pkey -in FILE -out OTHER` decrypts it";
                wrong(key, format!("its key cannot be read ({error}): {way}"))
            }
        })?;
        let config =
            ServerConfig::builder_with_provider(rustls::crypto::ring::default_provider().into())
                .with_protocol_versions(&[&rustls::version::TLS13])
                .and_then(|config| config.with_no_client_auth().with_single_cert(chain, key_of));
        let config = config.map_err(|error| match error {
            rustls::Error::InconsistentKeys(_) => {
                let problem =
                    format!("it is not the key of the certificate in {}", certificate.display());
                wrong(key, problem)
            }
            error => wrong(certificate, error.to_string()),
        })?;
        Ok(Self(Arc::new(config)))
    }

    /// The server's side of a connection.
    pub fn accept(&self) -> Result<ServerConnection, rustls::Error> {
        ServerConnection::new(Arc::clone(&self.0))
    }
}
