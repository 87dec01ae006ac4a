//! The keys by which this service signs and verifies its own tokens.
use std::{fmt, sync::Arc, time::Duration};

use serde::{Deserialize, Serialize, de::DeserializeOwned};

use super::{
    Algorithm, Compact, NumericDate, OneOrMany, TokenReason, TokenRefused,
    crypto::{SignKey, VerifyKey, to_base64},
    object,
};
use crate::{
    config::{ConfigError, require},
    sync::Mutex,
    time::Timestamp,
};

/// Largest token that a ring reads, in bytes.
const MAX_TOKEN: usize = 16 << 10;

/// Difference of two machines' clocks that a ring allows for.
const LEEWAY: Duration = Duration::from_secs(30);

/// Length of the shortest secret, in bytes: as long as the digest.
const SECRET: usize = 32;

/// Length of the longest id of a key, in bytes.
const MAX_KID: usize = 128;

/// A key with its id: a secret, a private key, or a public key that only verifies.
#[derive(Clone)]
pub struct Key {
    kid: Arc<str>,
    algorithm: Algorithm,
    verify: VerifyKey,
    sign: Option<SignKey>,
    /// The public half of a key of Ed25519.
    public: Option<[u8; 32]>,
}

impl Key {
    /// Creates a key of a secret, by which tokens are signed and verified (HS256). Each holder of
    /// the secret can sign.
    ///
    /// # Errors
    /// If the secret has fewer than 32 bytes, or the id is empty or has more than 128 bytes.
    pub fn secret(kid: impl AsRef<str>, secret: &[u8]) -> Result<Self, ConfigError> {
        require(secret.len() >= SECRET, "secret", "must have at least 32 bytes")?;
        let (verify, sign) = (VerifyKey::secret(secret), Some(SignKey::secret(secret)));
        Self { kid: kid.as_ref().into(), algorithm: Algorithm::Hs256, verify, sign, public: None }.check()
    }

    /// Reads a private key of Ed25519 in PKCS #8, as PEM or DER; `openssl genpkey -algorithm
    /// ed25519` makes one.
    ///
    /// # Errors
    /// If the bytes are no such key, or the id is empty or has more than 128 bytes.
    pub fn private(kid: impl AsRef<str>, pkcs8: &[u8]) -> Result<Self, ConfigError> {
        let read = SignKey::ed25519(pkcs8);
        let (sign, verify, public) =
            read.ok_or_else(|| ConfigError::new("key", "must be a private key of Ed25519 in PKCS #8"))?;
        let (sign, public) = (Some(sign), Some(public));
        Self { kid: kid.as_ref().into(), algorithm: Algorithm::EdDsa, verify, sign, public }.check()
    }

    /// Reads a public key of Ed25519: its 32 bytes, as [`public_bytes`](Self::public_bytes) returns
    /// them.
    ///
    /// # Errors
    /// If the bytes are no such key, or the id is empty or has more than 128 bytes.
    pub fn public(kid: impl AsRef<str>, bytes: &[u8]) -> Result<Self, ConfigError> {
        let read = VerifyKey::ed25519(bytes).zip(bytes.try_into().ok());
        let (verify, public) =
            read.ok_or_else(|| ConfigError::new("key", "must be the 32 bytes of a public key of Ed25519"))?;
        let public = Some(public);
        Self { kid: kid.as_ref().into(), algorithm: Algorithm::EdDsa, verify, sign: None, public }.check()
    }

    /// Generates a private key of Ed25519, for tests and for keys that end with their process.
    ///
    /// # Errors
    /// If the system has no randomness, or the id is empty or has more than 128 bytes.
    pub fn generate(kid: impl AsRef<str>) -> Result<Self, ConfigError> {
        let pkcs8 = SignKey::generate_ed25519();
        Self::private(kid, &pkcs8.ok_or_else(|| ConfigError::new("key", "cannot be generated: no randomness"))?)
    }

    /// Returns the public half of a key of Ed25519, which only verifies; `None` for a secret.
    pub fn to_public(&self) -> Option<Self> {
        self.public.map(|_| Self { sign: None, ..self.clone() })
    }

    /// Returns the 32 bytes of the public half of a key of Ed25519; `None` for a secret.
    pub const fn public_bytes(&self) -> Option<&[u8; 32]> {
        self.public.as_ref()
    }

    /// Returns the id.
    pub fn kid(&self) -> &str {
        &self.kid
    }

    /// Returns the algorithm.
    pub const fn algorithm(&self) -> Algorithm {
        self.algorithm
    }

    /// Returns `true` if the key signs, and not only verifies.
    pub const fn signs(&self) -> bool {
        self.sign.is_some()
    }

    fn check(self) -> Result<Self, ConfigError> {
        require((1..=MAX_KID).contains(&self.kid.len()), "kid", "must have 1 to 128 bytes")?;
        Ok(self)
    }
}

impl fmt::Debug for Key {
    /// Shows no part of the key but its id.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Key({}, {}, signs: {})", self.kid, self.algorithm, self.signs())
    }
}

/// The keys of a service: the first signs, all verify. The [module's page](super) has an example.
///
/// Clones share their keys. To rotate, [replace](Self::replace) them: first add the new key to the
/// rings that verify, then put it first in the ring that signs, and remove the old key when its
/// last token has expired.
#[derive(Clone)]
pub struct KeyRing(Arc<Mutex<Arc<[Key]>>>);

/// The claims of a token of this service.
#[derive(Serialize)]
struct Claims<'a, C> {
    aud: &'a str,
    exp: u64,
    content: &'a C,
}

/// The same, as they are read.
#[derive(Deserialize)]
struct Registered {
    aud: OneOrMany,
    exp: NumericDate,
    content: serde_json::Value,
}

impl KeyRing {
    /// Creates a ring of these keys, the newest first.
    ///
    /// # Errors
    /// If there is no key, or two have one id.
    pub fn new(keys: impl IntoIterator<Item = Key>) -> Result<Self, ConfigError> {
        Ok(Self(Arc::new(Mutex::new(checked(keys)?))))
    }

    /// Replaces the keys, also of all clones of the ring.
    ///
    /// # Errors
    /// As [`new`](Self::new); then nothing has changed.
    pub fn replace(&self, keys: impl IntoIterator<Item = Key>) -> Result<(), ConfigError> {
        let keys = checked(keys)?;
        let old = std::mem::replace(&mut *self.0.lock(), keys);
        drop(old);
        Ok(())
    }

    /// Returns the key with this id.
    pub fn key(&self, kid: &str) -> Option<Key> {
        self.keys().iter().find(|key| key.kid() == kid).cloned()
    }

    /// Returns the keys, the newest first.
    pub fn keys(&self) -> Arc<[Key]> {
        self.0.lock().clone()
    }

    /// Signs a token of this type for this audience, with the newest key. The content is any value
    /// that serializes to JSON. It is signed, not encrypted: each holder of the token can read it.
    ///
    /// # Errors
    /// If the newest key only verifies, or the content has no form in JSON.
    pub fn sign<C: Serialize>(
        &self,
        typ: &str,
        audience: &str,
        expires_at: Timestamp,
        content: &C,
    ) -> Result<String, SignError> {
        let keys = self.keys();
        let Some((key, sign)) = keys.first().and_then(|key| Some((key, key.sign.as_ref()?))) else {
            return Err(SignError::NoPrivateKey);
        };
        // Rounded up: a token never ends before its time.
        let exp = expires_at.as_millis().div_ceil(1000);
        let header = serde_json::json!({ "alg": key.algorithm, "kid": &*key.kid, "typ": typ });
        let json = |e: serde_json::Error| SignError::Content(e.to_string());
        let header = serde_json::to_vec(&header).map_err(json)?;
        let claims = serde_json::to_vec(&Claims { aud: audience, exp, content }).map_err(json)?;
        let message = format!("{}.{}", to_base64(&header), to_base64(&claims));
        let signature = sign.sign(key.algorithm, message.as_bytes()).ok_or(SignError::NoPrivateKey)?;
        Ok(format!("{message}.{}", to_base64(&signature)))
    }

    /// Verifies a token of this type for this audience, and returns its content. `now` is the
    /// [wall time](crate::time::Clock::wall); 30 s of difference between two machines' clocks are
    /// allowed for.
    ///
    /// # Errors
    /// The reason for which the token is refused. A token of another type, or with a content of
    /// another form, is malformed.
    pub fn verify<C: DeserializeOwned>(
        &self,
        typ: &str,
        audience: &str,
        now: Timestamp,
        token: &str,
    ) -> Result<C, TokenRefused> {
        self.verify_with_end(typ, audience, now, token).map(|(content, _)| content)
    }

    /// Same as [`verify`](Self::verify), with the end of the token.
    pub(crate) fn verify_with_end<C: DeserializeOwned>(
        &self,
        typ: &str,
        audience: &str,
        now: Timestamp,
        token: &str,
    ) -> Result<(C, Timestamp), TokenRefused> {
        let read = Compact::read(token, MAX_TOKEN)?;
        if read.typ.as_deref() != Some(typ) {
            return Err(TokenReason::Malformed.into());
        }
        let keys = self.keys();
        let key = keys.iter().find(|key| Some(key.kid()) == read.kid.as_deref()).ok_or(TokenReason::Key)?;
        if key.algorithm != read.algorithm {
            return Err(TokenReason::Algorithm.into());
        }
        read.verify(&key.verify)?;
        let claims: Registered = object(&read.payload)?;
        if !claims.aud.iter().any(|one| one == audience) {
            return Err(TokenReason::Audience.into());
        }
        if has_expired(claims.exp, now, LEEWAY) {
            return Err(TokenReason::Expired.into());
        }
        let content = serde_json::from_value(claims.content).map_err(|_| TokenReason::Malformed)?;
        Ok((content, Timestamp::from_millis(claims.exp.as_millis())))
    }
}

/// Returns `true` if this end is past, by a clock that may be ahead of the issuer's by `leeway`.
pub(crate) fn has_expired(end: NumericDate, now: Timestamp, leeway: Duration) -> bool {
    let leeway = u64::try_from(leeway.as_millis()).unwrap_or(u64::MAX);
    end.as_millis().saturating_add(leeway) <= now.as_millis()
}

/// Returns the keys if they are a ring.
fn checked(keys: impl IntoIterator<Item = Key>) -> Result<Arc<[Key]>, ConfigError> {
    let keys: Arc<[Key]> = keys.into_iter().collect();
    require(!keys.is_empty(), "keys", "must not be empty")?;
    let repeated = keys.iter().enumerate().any(|(at, key)| keys[..at].iter().any(|other| other.kid == key.kid));
    require(!repeated, "keys", "must not have two keys of one id")?;
    Ok(keys)
}

impl fmt::Debug for KeyRing {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("KeyRing").field(&self.keys()).finish()
    }
}

/// The error of a token that cannot be signed.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum SignError {
    /// The newest key of the ring only verifies.
    #[error("the newest key of the ring only verifies")]
    NoPrivateKey,
    /// The system has no randomness.
    #[error("the system has no randomness")]
    NoRandomness,
    /// The content has no form in JSON.
    #[error("the content has no form in JSON: {0}")]
    Content(String),
}
