//! A token as text: three parts in base64url, with dots between them.
use serde::{
    Deserialize, Deserializer,
    de::{DeserializeOwned, IgnoredAny},
};

use super::{
    Algorithm, TokenReason, TokenRefused,
    crypto::{VerifyKey, from_base64},
};

/// A token that was read, and not yet verified.
pub(crate) struct Compact<'a> {
    pub(crate) algorithm: Algorithm,
    pub(crate) kid: Option<String>,
    pub(crate) typ: Option<String>,
    /// The claims, as JSON.
    pub(crate) payload: Vec<u8>,
    /// The signed part of the text.
    message: &'a str,
    signature: Vec<u8>,
}

/// Members of a header. Those that may name a key of the sender's choice are not read at all.
#[derive(Deserialize)]
struct Header {
    alg: String,
    kid: Option<String>,
    typ: Option<String>,
    cty: Option<String>,
    #[serde(default, deserialize_with = "present")]
    crit: bool,
    #[serde(default, deserialize_with = "present")]
    enc: bool,
    #[serde(default, deserialize_with = "present")]
    zip: bool,
    #[serde(default, deserialize_with = "present")]
    b64: bool,
}

fn present<'de, D: Deserializer<'de>>(from: D) -> Result<bool, D::Error> {
    IgnoredAny::deserialize(from).map(|_| true)
}

/// Reads a JSON object. A list of the members' values is none, and a repeated member is an error.
pub(crate) fn object<T: DeserializeOwned>(json: &[u8]) -> Result<T, TokenRefused> {
    let is_object = json.iter().find(|byte| !byte.is_ascii_whitespace()) == Some(&b'{');
    let read = is_object.then(|| serde_json::from_slice(json).ok()).flatten();
    read.ok_or(TokenRefused::new(TokenReason::Malformed))
}

impl<'a> Compact<'a> {
    /// Reads a token of at most `max` bytes.
    pub(crate) fn read(token: &'a str, max: usize) -> Result<Self, TokenRefused> {
        const MALFORMED: TokenRefused = TokenRefused::new(TokenReason::Malformed);
        if token.is_empty() {
            return Err(TokenReason::Missing.into());
        }
        if token.len() > max {
            return Err(MALFORMED);
        }
        // An encrypted token has five parts.
        let mut parts = token.split('.');
        let (Some(header), Some(payload), Some(signature), None) =
            (parts.next(), parts.next(), parts.next(), parts.next())
        else {
            return Err(MALFORMED);
        };
        let read = |part| from_base64(part).ok_or(MALFORMED);
        let header: Header = object(&read(header)?)?;
        // A nested token, or an extension that is not understood.
        if header.cty.is_some() || header.crit || header.enc || header.zip || header.b64 {
            return Err(MALFORMED);
        }
        let algorithm = Algorithm::from_name(&header.alg).ok_or(TokenReason::Algorithm)?;
        let (payload, signature) = (read(payload)?, read(signature)?);
        let signed = token.rfind('.').unwrap_or_default();
        let Header { kid, typ, .. } = header;
        Ok(Self { algorithm, kid, typ, payload, message: &token[..signed], signature })
    }

    /// Returns an error if the signature is not that of this key.
    pub(crate) fn verify(&self, key: &VerifyKey) -> Result<(), TokenRefused> {
        let is_right = key.verify(self.algorithm, self.message.as_bytes(), &self.signature);
        if is_right { Ok(()) } else { Err(TokenReason::Signature.into()) }
    }
}

/// A text or a list of texts, as `aud` may be.
#[derive(Deserialize)]
#[serde(untagged)]
pub(crate) enum OneOrMany {
    One(String),
    Many(Vec<String>),
}

impl OneOrMany {
    pub(crate) fn iter(&self) -> impl Iterator<Item = &str> {
        match self {
            Self::One(one) => std::slice::from_ref(one),
            Self::Many(many) => many,
        }
        .iter()
        .map(String::as_str)
    }
}

/// A time in seconds since 1970, possibly with a fraction.
#[derive(Deserialize, Clone, Copy, PartialEq, PartialOrd)]
pub(crate) struct NumericDate(f64);

impl NumericDate {
    /// Returns the time in milliseconds; one before 1970 becomes 1970.
    pub(crate) fn as_millis(self) -> u64 {
        // Saturates.
        (self.0 * 1000.0) as u64
    }
}
