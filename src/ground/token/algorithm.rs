//! The algorithms of signatures.
use std::fmt;

use serde::{Deserialize, Serialize};

use super::crypto::KeyType;

/// An algorithm of signatures, by its name in RFC 7518 and RFC 8037.
///
/// There is no `none`, and none with a curve or a digest that is weaker than these.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[non_exhaustive]
pub enum Algorithm {
    /// HMAC with SHA-256: one secret signs and verifies. Not for keys that are fetched.
    #[serde(rename = "HS256")]
    Hs256,
    /// ECDSA on P-256 with SHA-256.
    #[serde(rename = "ES256")]
    Es256,
    /// ECDSA on P-384 with SHA-384.
    #[serde(rename = "ES384")]
    Es384,
    /// RSA, PKCS #1 v1.5, with SHA-256.
    #[serde(rename = "RS256")]
    Rs256,
    /// RSA, PKCS #1 v1.5, with SHA-384.
    #[serde(rename = "RS384")]
    Rs384,
    /// RSA, PKCS #1 v1.5, with SHA-512.
    #[serde(rename = "RS512")]
    Rs512,
    /// RSA, PSS, with SHA-256.
    #[serde(rename = "PS256")]
    Ps256,
    /// RSA, PSS, with SHA-384.
    #[serde(rename = "PS384")]
    Ps384,
    /// RSA, PSS, with SHA-512.
    #[serde(rename = "PS512")]
    Ps512,
    /// Ed25519.
    #[serde(rename = "EdDSA")]
    EdDsa,
}

impl Algorithm {
    const ALL: [Self; 10] = [
        Self::Hs256,
        Self::Es256,
        Self::Es384,
        Self::Rs256,
        Self::Rs384,
        Self::Rs512,
        Self::Ps256,
        Self::Ps384,
        Self::Ps512,
        Self::EdDsa,
    ];

    /// Returns the name, as the header of a token has it.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Hs256 => "HS256",
            Self::Es256 => "ES256",
            Self::Es384 => "ES384",
            Self::Rs256 => "RS256",
            Self::Rs384 => "RS384",
            Self::Rs512 => "RS512",
            Self::Ps256 => "PS256",
            Self::Ps384 => "PS384",
            Self::Ps512 => "PS512",
            Self::EdDsa => "EdDSA",
        }
    }

    /// Returns the algorithm of this name; `None` also for `none`. Names are case-sensitive.
    pub(crate) fn from_name(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|algorithm| algorithm.as_str() == name)
    }

    /// Returns the type of its keys.
    pub(crate) const fn key_type(self) -> KeyType {
        match self {
            Self::Hs256 => KeyType::Secret,
            Self::Es256 => KeyType::P256,
            Self::Es384 => KeyType::P384,
            Self::Rs256 | Self::Rs384 | Self::Rs512 | Self::Ps256 | Self::Ps384 | Self::Ps512 => KeyType::Rsa,
            Self::EdDsa => KeyType::Ed25519,
        }
    }
}

impl fmt::Display for Algorithm {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}
