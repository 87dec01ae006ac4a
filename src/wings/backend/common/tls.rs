//! TLS of connections to servers, by rustls with aws-lc.
use std::{fmt, sync::Arc};

use rustls::{
    CertificateError, ClientConfig, DigitallySignedStruct, RootCertStore, SignatureScheme,
    client::{
        WebPkiServerVerifier,
        danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier},
    },
    crypto::{CryptoProvider, verify_tls12_signature, verify_tls13_signature},
    pki_types::{CertificateDer, PrivateKeyDer, ServerName, UnixTime, pem::PemObject},
};
use serde::{Deserialize, Serialize};

use super::settings::{Secret, text_or_file};
use crate::config::{ConfigError, setters};

/// Settings of TLS. The server's certificate and its host name are verified. (The parameter
/// `sslmode=verify-ca` of a PostgreSQL URL leaves out the host name.)
///
/// Each text is PEM itself, or the path of a PEM file. The files are read when the backend
/// connects.
///
/// ```
/// use steadfast::backend::TlsConfig;
///
/// let tls: TlsConfig = toml::from_str(r#"roots = "/etc/ssl/our-authority.pem""#).unwrap();
/// assert_eq!(tls.roots.as_deref(), Some("/etc/ssl/our-authority.pem"));
/// assert_eq!(TlsConfig::default().certificate, None);
/// ```
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize, Default)]
#[serde(default, deny_unknown_fields)]
#[non_exhaustive]
pub struct TlsConfig {
    /// Root certificates that sign the server's. Those of the operating system by default.
    pub roots: Option<String>,
    /// Certificate by which this client identifies itself, followed by its intermediate ones. None
    /// by default.
    pub certificate: Option<String>,
    /// Private key of the client's certificate.
    pub key: Option<String>,
}

setters! {
    impl TlsConfig {
        roots: impl Into<Option<String>>,
        certificate: impl Into<Option<String>>,
        key: impl Into<Option<String>>,
    }
}

/// The part of a server's certificate that is verified.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Verify {
    Full,
    /// That the authority signed it, for whatever host.
    Authority,
    Nothing,
}

impl TlsConfig {
    /// Returns rustls' settings.
    pub(crate) fn client(&self) -> Result<ClientConfig, ConfigError> {
        self.client_with(Verify::Full)
    }

    /// Returns rustls' settings with another verification.
    pub(crate) fn client_with(&self, verify: Verify) -> Result<ClientConfig, ConfigError> {
        // The provider is explicit: a process may contain two, and rustls then panics without it.
        let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
        let versions = ClientConfig::builder_with_provider(provider.clone()).with_safe_default_protocol_versions();
        let versions = versions.map_err(|error| ConfigError::new("tls", error.to_string()))?;
        let builder = match verify {
            Verify::Full => versions.with_root_certificates(self.root_store()?),
            Verify::Authority => {
                let roots = Arc::new(self.root_store()?);
                let authority = WebPkiServerVerifier::builder_with_provider(roots, provider.clone()).build();
                let authority = authority.map_err(|error| ConfigError::new("tls.roots", error.to_string()))?;
                let lenient = Lenient { authority: Some(authority), provider };
                versions.dangerous().with_custom_certificate_verifier(Arc::new(lenient))
            }
            Verify::Nothing => {
                let lenient = Lenient { authority: None, provider };
                versions.dangerous().with_custom_certificate_verifier(Arc::new(lenient))
            }
        };
        match (&self.certificate, &self.key) {
            (None, None) => Ok(builder.with_no_client_auth()),
            (Some(certificate), Some(key)) => {
                let chain = certificates("tls.certificate", certificate)?;
                let key = PrivateKeyDer::from_pem_slice(&pem("tls.key", key)?);
                let key = key.map_err(|_| ConfigError::new("tls.key", "must be a private key in PEM"))?;
                let client = builder.with_client_auth_cert(chain, key);
                client.map_err(|error| ConfigError::new("tls.certificate", format!("must fit `tls.key`: {error}")))
            }
            (Some(_), None) => Err(ConfigError::new("tls.key", "must be set along with `tls.certificate`")),
            (None, Some(_)) => Err(ConfigError::new("tls.certificate", "must be set along with `tls.key`")),
        }
    }

    fn root_store(&self) -> Result<RootCertStore, ConfigError> {
        let mut store = RootCertStore::empty();
        match &self.roots {
            Some(roots) => {
                for root in certificates("tls.roots", roots)? {
                    let added = store.add(root);
                    added.map_err(|error| ConfigError::new("tls.roots", format!("must be certificates: {error}")))?;
                }
            }
            None => {
                let found = rustls_native_certs::load_native_certs();
                store.add_parsable_certificates(found.certs);
            }
        }
        if store.is_empty() {
            return Err(ConfigError::new("tls.roots", "must be set: this system has no root certificates"));
        }
        Ok(store)
    }
}

/// Accepts certificates for any host, and without an authority of anybody.
#[derive(Debug)]
struct Lenient {
    authority: Option<Arc<WebPkiServerVerifier>>,
    provider: Arc<CryptoProvider>,
}

impl ServerCertVerifier for Lenient {
    fn verify_server_cert(
        &self,
        certificate: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        name: &ServerName<'_>,
        ocsp: &[u8],
        now: UnixTime,
    ) -> Result<ServerCertVerified, rustls::Error> {
        let Some(authority) = &self.authority else { return Ok(ServerCertVerified::assertion()) };
        match authority.verify_server_cert(certificate, intermediates, name, ocsp, now) {
            // The name is looked at last.
            Err(rustls::Error::InvalidCertificate(
                CertificateError::NotValidForName | CertificateError::NotValidForNameContext { .. },
            )) => Ok(ServerCertVerified::assertion()),
            verified => verified,
        }
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        let algorithms = &self.provider.signature_verification_algorithms;
        verify_tls12_signature(message, certificate, signature, algorithms)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        let algorithms = &self.provider.signature_verification_algorithms;
        verify_tls13_signature(message, certificate, signature, algorithms)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.provider.signature_verification_algorithms.supported_schemes()
    }
}

/// Returns all certificates of a PEM text or file, at least one.
fn certificates(field: &'static str, source: &str) -> Result<Vec<CertificateDer<'static>>, ConfigError> {
    let text = pem(field, source)?;
    let parsed: Result<Vec<_>, _> = CertificateDer::pem_slice_iter(&text).collect();
    match parsed {
        Ok(certificates) if !certificates.is_empty() => Ok(certificates),
        _ => Err(ConfigError::new(field, "must be certificates in PEM")),
    }
}

/// Returns the PEM text, or the content of the file at this path.
fn pem(field: &'static str, source: &str) -> Result<Vec<u8>, ConfigError> {
    text_or_file(field, source, source.contains("-----BEGIN"))
}

/// Shows a path as it is, and a PEM text not at all.
struct Source<'a>(&'a Option<String>);

impl fmt::Debug for Source<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {
            Some(text) if text.contains("-----BEGIN") => f.write_str("PEM"),
            Some(path) => Secret(path).fmt(f),
            None => f.write_str("None"),
        }
    }
}

impl fmt::Debug for TlsConfig {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut out = f.debug_struct("TlsConfig");
        out.field("roots", &Source(&self.roots)).field("certificate", &Source(&self.certificate));
        out.field("key", &Source(&self.key)).finish()
    }
}
