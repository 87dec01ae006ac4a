//! TLS as `tokio_postgres` uses it, by rustls, and what binds a password to it.
use std::{
    future::Future,
    io,
    net::{IpAddr, Ipv4Addr},
    pin::Pin,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    task::{Context, Poll},
};

use aws_lc_rs::digest::{Algorithm, SHA256, SHA384, SHA512, digest};
use rustls::pki_types::ServerName;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio_postgres::{
    Socket,
    tls::{ChannelBinding, MakeTlsConnect, TlsConnect, TlsStream},
};
use tokio_rustls::TlsConnector;

/// rustls as `tokio_postgres` uses it.
#[derive(Clone)]
pub(crate) struct Tls {
    config: Option<Arc<rustls::ClientConfig>>,
    /// `true` if the server's certificate is verified, which needs a name.
    verifies: bool,
    /// Set by a hand-shake that succeeded. A flag alone: it publishes nothing.
    was_used: Arc<AtomicBool>,
}

pub(crate) struct TlsHandshake {
    tls: Tls,
    name: Option<ServerName<'static>>,
}

impl Tls {
    pub(crate) fn new(config: Option<Arc<rustls::ClientConfig>>, verifies: bool) -> Self {
        Self { config, verifies, was_used: Arc::default() }
    }

    /// Returns the same settings for another connection.
    pub(crate) fn again(&self) -> Self {
        Self::new(self.config.clone(), self.verifies)
    }

    /// Returns `true` if the connection is encrypted.
    pub(crate) fn was_used(&self) -> bool {
        self.was_used.load(Ordering::Relaxed)
    }
}

impl MakeTlsConnect<Socket> for Tls {
    type Stream = Encrypted;
    type TlsConnect = TlsHandshake;
    type Error = io::Error;

    fn make_tls_connect(&mut self, domain: &str) -> io::Result<TlsHandshake> {
        // An address is not sent, so it stands for a name that the server need not know.
        let nobody = || (!self.verifies).then_some(ServerName::from(IpAddr::V4(Ipv4Addr::UNSPECIFIED)));
        let name = ServerName::try_from(domain.to_owned()).ok().or_else(nobody);
        Ok(TlsHandshake { tls: self.clone(), name })
    }
}

impl TlsConnect<Socket> for TlsHandshake {
    type Stream = Encrypted;
    type Error = io::Error;
    type Future = Pin<Box<dyn Future<Output = io::Result<Encrypted>> + Send>>;

    fn connect(self, socket: Socket) -> Self::Future {
        Box::pin(async move {
            let config = self.tls.config.ok_or_else(|| io::Error::other("TLS is not configured"))?;
            let name = self.name.ok_or_else(|| io::Error::other("TLS needs a host name in `url`"))?;
            let stream = TlsConnector::from(config).connect(name, socket).await?;
            self.tls.was_used.store(true, Ordering::Relaxed);
            Ok(Encrypted(stream))
        })
    }
}

/// An encrypted connection.
pub(crate) struct Encrypted(tokio_rustls::client::TlsStream<Socket>);

impl TlsStream for Encrypted {
    fn channel_binding(&self) -> ChannelBinding {
        let certificates = self.0.get_ref().1.peer_certificates();
        match certificates.and_then(|all| server_end_point(all.first()?)) {
            Some(hash) => ChannelBinding::tls_server_end_point(hash),
            None => ChannelBinding::none(),
        }
    }
}

impl AsyncRead for Encrypted {
    fn poll_read(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.0).poll_read(cx, buf)
    }
}

impl AsyncWrite for Encrypted {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.0).poll_write(cx, bytes)
    }
    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.0).poll_flush(cx)
    }
    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.0).poll_shutdown(cx)
    }
}

/// Returns the hash of a certificate by which a password is bound to it (`tls-server-end-point`,
/// RFC 5929): that of its signature's algorithm, or SHA-256 in place of MD5 and SHA-1. `None` if
/// the algorithm names no hash, as Ed25519 does.
fn server_end_point(certificate: &[u8]) -> Option<Vec<u8>> {
    // Certificate ::= SEQUENCE { tbsCertificate, signatureAlgorithm SEQUENCE { OID, .. }, .. }
    let (certificate_parts, _) = element(certificate)?;
    let (_, behind) = element(certificate_parts)?;
    let (algorithm, _) = element(behind)?;
    let (oid, parameters) = element(algorithm)?;
    let algorithm = if oid == RSA_PSS { hash_of_pss(parameters) } else { hash_of(oid)? };
    Some(digest(algorithm, certificate).as_ref().to_vec())
}

const RSA_PSS: &[u8] = &[0x2a, 0x86, 0x48, 0x86, 0xf7, 0x0d, 1, 1, 10];

/// Returns the hash of a signature's algorithm, by its object identifier.
fn hash_of(oid: &[u8]) -> Option<&'static Algorithm> {
    // `sha256WithRSAEncryption` and its kin, `ecdsa-with-SHA256` and its kin.
    const RSA: &[u8] = &[0x2a, 0x86, 0x48, 0x86, 0xf7, 0x0d, 1, 1];
    const ECDSA: &[u8] = &[0x2a, 0x86, 0x48, 0xce, 0x3d, 4];
    match (oid.strip_prefix(RSA), oid.strip_prefix(ECDSA)) {
        (Some([4 | 5 | 11]), _) | (_, Some([1] | [3, 2])) => Some(&SHA256),
        (Some([12]), _) | (_, Some([3, 3])) => Some(&SHA384),
        (Some([13]), _) | (_, Some([3, 4])) => Some(&SHA512),
        _ => None,
    }
}

/// Returns the hash in the parameters of RSASSA-PSS: `SEQUENCE { [0] { SEQUENCE { OID } } .. }`.
/// By default it is SHA-1.
fn hash_of_pss(parameters: &[u8]) -> &'static Algorithm {
    const SHA2: &[u8] = &[0x60, 0x86, 0x48, 1, 0x65, 3, 4, 2];
    let oid = || {
        let (parts, _) = element(parameters)?;
        let (hash, _) = element(parts).filter(|_| parts.first() == Some(&0xa0))?;
        Some(element(element(hash)?.0)?.0)
    };
    match oid().and_then(|oid| oid.strip_prefix(SHA2)) {
        Some([2]) => &SHA384,
        Some([3]) => &SHA512,
        _ => &SHA256,
    }
}

/// Splits the content of the first element of DER from what follows the element.
fn element(der: &[u8]) -> Option<(&[u8], &[u8])> {
    let (_tag, rest) = der.split_first()?;
    let (first, rest) = rest.split_first()?;
    let (length, rest) = match first {
        0..=0x7f => (usize::from(*first), rest),
        0x81..=0x84 => {
            let (bytes, rest) = rest.split_at_checked(usize::from(first - 0x80))?;
            (bytes.iter().fold(0, |length, byte| length << 8 | usize::from(*byte)), rest)
        }
        _ => return None,
    };
    rest.split_at_checked(length)
}

#[cfg(all(test, not(steadfast_loom)))]
mod tests {
    use super::*;

    /// Returns an element of DER.
    fn der(tag: u8, content: &[u8]) -> Vec<u8> {
        let length = content.len().to_be_bytes();
        [&[tag, 0x82], &length[length.len() - 2..], content].concat()
    }

    fn certificate(algorithm: &[u8]) -> Vec<u8> {
        let parts = [der(0x30, &[7; 300]), der(0x30, algorithm), der(3, &[0; 70])].concat();
        der(0x30, &parts)
    }

    #[test]
    fn a_certificate_is_hashed_by_the_hash_of_its_signature() {
        let oid = |bytes: &[u8]| der(6, bytes);
        let pss = |hash: u8| {
            let hash = der(0x30, &oid(&[0x60, 0x86, 0x48, 1, 0x65, 3, 4, 2, hash]));
            [oid(RSA_PSS), der(0x30, &der(0xa0, &hash))].concat()
        };
        let cases = [
            (oid(&[0x2a, 0x86, 0x48, 0x86, 0xf7, 0x0d, 1, 1, 5]), Some(32)),
            (oid(&[0x2a, 0x86, 0x48, 0x86, 0xf7, 0x0d, 1, 1, 11]), Some(32)),
            (oid(&[0x2a, 0x86, 0x48, 0x86, 0xf7, 0x0d, 1, 1, 12]), Some(48)),
            (oid(&[0x2a, 0x86, 0x48, 0x86, 0xf7, 0x0d, 1, 1, 13]), Some(64)),
            (oid(&[0x2a, 0x86, 0x48, 0xce, 0x3d, 4, 1]), Some(32)),
            (oid(&[0x2a, 0x86, 0x48, 0xce, 0x3d, 4, 3, 2]), Some(32)),
            (oid(&[0x2a, 0x86, 0x48, 0xce, 0x3d, 4, 3, 3]), Some(48)),
            (oid(&[0x2a, 0x86, 0x48, 0xce, 0x3d, 4, 3, 4]), Some(64)),
            (pss(1), Some(32)),
            (pss(2), Some(48)),
            (pss(3), Some(64)),
            // Ed25519.
            (oid(&[0x2b, 0x65, 0x70]), None),
        ];
        for (algorithm, length) in cases {
            let certificate = certificate(&algorithm);
            assert_eq!(server_end_point(&certificate).map(|hash| hash.len()), length, "{algorithm:x?}");
            for cut in [0, 1, 5, 310, 320] {
                assert_eq!(server_end_point(&certificate[..cut]), None, "a damaged certificate");
            }
        }
    }
}
