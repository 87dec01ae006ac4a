//! The cryptography: the one file that names its libraries.
//!
//! Signers and verifiers come from the factories of aws-lc, never from the process-wide provider of
//! `jsonwebtoken`: that one panics at its first use if two back ends are compiled in.
use std::fmt;

use aws_lc_rs::{
    digest::{self, SHA256},
    signature::{self, Ed25519KeyPair, KeyPair, ParsedPublicKey, VerificationAlgorithm},
};
use base64::{
    Engine,
    engine::general_purpose::{STANDARD, URL_SAFE_NO_PAD},
};
use jsonwebtoken::{DecodingKey, EncodingKey, crypto::aws_lc::DEFAULT_PROVIDER as AWS_LC};

use super::Algorithm;

/// A type of keys.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum KeyType {
    Secret,
    P256,
    P384,
    Rsa,
    Ed25519,
}

/// A key that verifies.
#[derive(Clone)]
pub(crate) struct VerifyKey {
    key_type: KeyType,
    key: DecodingKey,
}

/// A key that signs.
#[derive(Clone)]
pub(crate) struct SignKey(EncodingKey);

/// Limits of the modulus of an RSA key, in bits.
const RSA_BITS: std::ops::RangeInclusive<usize> = 2048..=8192;

impl VerifyKey {
    /// Returns the key with this secret.
    pub(crate) fn secret(secret: &[u8]) -> Self {
        Self { key_type: KeyType::Secret, key: DecodingKey::from_secret(secret) }
    }

    /// Returns the key with this point, or `None` if it is not on the curve.
    pub(crate) fn ecdsa(key_type: KeyType, x: &[u8], y: &[u8]) -> Option<Self> {
        let (algorithm, length): (&'static dyn VerificationAlgorithm, _) = match key_type {
            KeyType::P256 => (&signature::ECDSA_P256_SHA256_FIXED, 32),
            KeyType::P384 => (&signature::ECDSA_P384_SHA384_FIXED, 48),
            _ => return None,
        };
        let point = [&[4], x, y].concat();
        let is_one = x.len() == length && y.len() == length && ParsedPublicKey::new(algorithm, &point).is_ok();
        is_one.then(|| Self { key_type, key: DecodingKey::from_ec_der(&point) })
    }

    /// Returns the key with this modulus and exponent, or `None` if it is too short or too long.
    pub(crate) fn rsa(modulus: &[u8], exponent: &[u8]) -> Option<Self> {
        let [modulus, exponent] = [modulus, exponent].map(|number| {
            let zeros = number.iter().take_while(|byte| **byte == 0).count();
            &number[zeros..]
        });
        let bits = modulus.len() * 8 - modulus.first()?.leading_zeros() as usize;
        // The library refuses larger exponents and even moduli, and does so only when it verifies.
        let is_odd = modulus.last()? % 2 == 1 && exponent.last()? % 2 == 1 && exponent != [1] && exponent.len() <= 4;
        (RSA_BITS.contains(&bits) && is_odd)
            .then(|| Self { key_type: KeyType::Rsa, key: DecodingKey::from_rsa_raw_components(modulus, exponent) })
    }

    /// Returns the key with these 32 bytes, or `None` if they are none.
    pub(crate) fn ed25519(public: &[u8]) -> Option<Self> {
        let is_one = public.len() == 32 && ParsedPublicKey::new(&signature::ED25519, public).is_ok();
        is_one.then(|| Self { key_type: KeyType::Ed25519, key: DecodingKey::from_ed_der(public) })
    }

    /// Returns the type of the key.
    pub(crate) const fn key_type(&self) -> KeyType {
        self.key_type
    }

    /// Returns `true` if the signature of the message is right. An algorithm for another type of
    /// key never is.
    pub(crate) fn verify(&self, algorithm: Algorithm, message: &[u8], signature: &Vec<u8>) -> bool {
        algorithm.key_type() == self.key_type
            && (AWS_LC.verifier_factory)(&name(algorithm), &self.key)
                .is_ok_and(|verifier| verifier.verify(message, signature).is_ok())
    }
}

impl SignKey {
    /// Returns the key with this secret.
    pub(crate) fn secret(secret: &[u8]) -> Self {
        Self(EncodingKey::from_secret(secret))
    }

    /// Reads a private key of Ed25519 in PKCS #8, as DER or PEM. Returns it and its public half.
    pub(crate) fn ed25519(pkcs8: &[u8]) -> Option<(Self, VerifyKey, [u8; 32])> {
        let of_pem;
        let der = match std::str::from_utf8(pkcs8).ok().map(str::trim).filter(|text| text.starts_with("-----BEGIN ")) {
            Some(pem) => {
                let body: String = pem.lines().filter(|line| !line.starts_with("-----")).map(str::trim).collect();
                of_pem = STANDARD.decode(body).ok()?;
                &of_pem
            }
            None => pkcs8,
        };
        let pair = Ed25519KeyPair::from_pkcs8(der).ok()?;
        let public: [u8; 32] = pair.public_key().as_ref().try_into().ok()?;
        Some((Self(EncodingKey::from_ed_der(der)), VerifyKey::ed25519(&public)?, public))
    }

    /// Generates a private key of Ed25519 in PKCS #8.
    pub(crate) fn generate_ed25519() -> Option<Vec<u8>> {
        Some(Ed25519KeyPair::generate().ok()?.to_pkcs8v1().ok()?.as_ref().to_vec())
    }

    /// Generates a key of ECDSA on P-256. Returns it and the two coordinates of its point.
    #[cfg(feature = "testing")]
    pub(crate) fn generate_es256() -> Option<(Self, [Vec<u8>; 2])> {
        let pair = signature::EcdsaKeyPair::generate(&signature::ECDSA_P256_SHA256_FIXED_SIGNING).ok()?;
        let (x, y) = pair.public_key().as_ref().get(1..)?.split_at(32);
        Some((Self(EncodingKey::from_ec_der(pair.to_pkcs8v1().ok()?.as_ref())), [x.to_vec(), y.to_vec()]))
    }

    /// Generates a key of RSA with 2,048 bits. Returns it, its modulus and its exponent.
    #[cfg(feature = "testing")]
    pub(crate) fn generate_rs256() -> Option<(Self, [Vec<u8>; 2])> {
        use aws_lc_rs::encoding::AsDer;
        let pair = signature::RsaKeyPair::generate(aws_lc_rs::rsa::KeySize::Rsa2048).ok()?;
        let components = signature::RsaPublicKeyComponents::<Vec<u8>>::from(pair.public_key());
        let pkcs8 = pair.as_der().ok()?;
        // Inside PKCS #8, behind the version and the name of the algorithm, lies the key as PKCS #1.
        let key = EncodingKey::from_rsa_der(pkcs8.as_ref().get(26..)?);
        Some((Self(key), [components.n, components.e]))
    }

    /// Signs the message, or returns `None` if the key is not for this algorithm.
    pub(crate) fn sign(&self, algorithm: Algorithm, message: &[u8]) -> Option<Vec<u8>> {
        (AWS_LC.signer_factory)(&name(algorithm), &self.0).ok()?.try_sign(message).ok()
    }
}

/// Returns the library's name of an algorithm.
const fn name(algorithm: Algorithm) -> jsonwebtoken::Algorithm {
    match algorithm {
        Algorithm::Hs256 => jsonwebtoken::Algorithm::HS256,
        Algorithm::Es256 => jsonwebtoken::Algorithm::ES256,
        Algorithm::Es384 => jsonwebtoken::Algorithm::ES384,
        Algorithm::Rs256 => jsonwebtoken::Algorithm::RS256,
        Algorithm::Rs384 => jsonwebtoken::Algorithm::RS384,
        Algorithm::Rs512 => jsonwebtoken::Algorithm::RS512,
        Algorithm::Ps256 => jsonwebtoken::Algorithm::PS256,
        Algorithm::Ps384 => jsonwebtoken::Algorithm::PS384,
        Algorithm::Ps512 => jsonwebtoken::Algorithm::PS512,
        Algorithm::EdDsa => jsonwebtoken::Algorithm::EdDSA,
    }
}

/// Returns the bytes of a base64url text without padding, or `None` for any other form of it.
pub(crate) fn from_base64(text: &str) -> Option<Vec<u8>> {
    URL_SAFE_NO_PAD.decode(text).ok()
}

/// Returns the bytes as base64url without padding.
pub(crate) fn to_base64(bytes: &[u8]) -> String {
    URL_SAFE_NO_PAD.encode(bytes)
}

/// Returns the SHA-256 of the bytes, as base64url.
pub(crate) fn sha256(bytes: &[u8]) -> String {
    to_base64(digest::digest(&SHA256, bytes).as_ref())
}

/// A SHA-256 of bytes that come one after another.
#[cfg(feature = "object_store")]
pub(crate) struct Sha256(digest::Context);

#[cfg(feature = "object_store")]
impl Sha256 {
    pub(crate) fn new() -> Self {
        Self(digest::Context::new(&SHA256))
    }

    pub(crate) fn update(&mut self, bytes: &[u8]) {
        self.0.update(bytes);
    }

    pub(crate) fn finish(self) -> Vec<u8> {
        self.0.finish().as_ref().to_vec()
    }
}

/// Returns 128 bits that nobody can guess, as base64url; `None` if the system has none.
pub(crate) fn random_id() -> Option<String> {
    let mut bits = [0; 16];
    aws_lc_rs::rand::fill(&mut bits).ok()?;
    Some(to_base64(&bits))
}

impl fmt::Debug for VerifyKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "VerifyKey({:?})", self.key_type)
    }
}
