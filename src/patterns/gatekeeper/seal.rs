//! The form of what is handed over: a signed seal, a line break, and the content.
use std::time::Duration;

use bytes::Bytes;
use serde::{Deserialize, Serialize};

use crate::{
    time::Timestamp,
    token::{Algorithm, KeyRing, SignError, TokenReason, TokenRefused, crypto},
};

/// The way on which a seal is valid: one for a call is refused in a message, and the reverse.
#[derive(Debug, Clone, Copy)]
pub(super) enum Way {
    Call,
    Message,
}

impl Way {
    /// Returns the type of the token, which no other token has.
    const fn typ(self) -> &'static str {
        match self {
            Self::Call => "handover-call+jwt",
            Self::Message => "handover-message+jwt",
        }
    }
}

/// Longest seal that is read, in bytes.
const MAX_SEAL: usize = 2048;

/// Time by which the clock of a host may be behind that of another one, with the leeway of tokens.
const BEHIND: Duration = Duration::from_secs(120);

/// The content of a seal.
#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Seal {
    /// 128 random bits, by which a second use is recognized.
    pub(super) id: String,
    /// Digest of the content.
    sha256: String,
    /// End of the seal, in milliseconds since 1970.
    until: u64,
}

/// Returns the content with a seal in front of it.
pub(super) fn sealed(
    ring: &KeyRing,
    host: &str,
    way: Way,
    expires_at: Timestamp,
    content: &[u8],
) -> Result<Bytes, SignError> {
    // The keys may have been replaced.
    if ring.keys().first().is_none_or(|key| key.algorithm() != Algorithm::EdDsa) {
        return Err(SignError::NoPrivateKey);
    }
    let id = crypto::random_id().ok_or(SignError::NoRandomness)?;
    let seal = Seal { id, sha256: crypto::sha256(content), until: expires_at.as_millis() };
    let mut bytes = ring.sign(way.typ(), host, expires_at, &seal)?.into_bytes();
    bytes.push(b'\n');
    bytes.extend_from_slice(content);
    Ok(bytes.into())
}

/// Returns the seal and the content, if the seal is valid and that of the content.
pub(super) fn opened<'a>(
    ring: &KeyRing,
    host: &str,
    way: Way,
    now: Timestamp,
    bytes: &'a [u8],
) -> Result<(Seal, &'a [u8]), TokenRefused> {
    // The keys may have been replaced by some that sign, which a gate could share.
    if ring.keys().iter().any(|key| key.signs() || key.algorithm() != Algorithm::EdDsa) {
        return Err(TokenReason::Key.into());
    }
    let end = bytes.iter().take(MAX_SEAL + 1).position(|byte| *byte == b'\n').ok_or(TokenReason::Malformed)?;
    let (seal, content) = (&bytes[..end], &bytes[end + 1..]);
    let token = std::str::from_utf8(seal).map_err(|_| TokenReason::Malformed)?;
    let seal: Seal = ring.verify(way.typ(), host, now, token)?;
    // The digest is no secret, so that its comparison may tell where it differs.
    if seal.sha256 != crypto::sha256(content) {
        return Err(TokenReason::Signature.into());
    }
    Ok((seal, content))
}

impl Seal {
    /// Returns the time for which the seal must be remembered once it is used: until no host
    /// accepts it any more, whose clock may be behind this one's.
    pub(super) fn remembered_for(&self, now: Timestamp) -> Duration {
        Duration::from_millis(self.until.saturating_sub(now.as_millis())).saturating_add(BEHIND)
    }
}
