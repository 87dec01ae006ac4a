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

/// Longest name of a host, in bytes: with the longest id of a key a seal stays readable.
pub(super) const MAX_NAME: usize = 128;

/// Longest seal that is read, in bytes.
const MAX_SEAL: usize = 4096;

/// Time by which the clock of a gate may be ahead of a host's, with a second to which an end is
/// rounded up.
const AHEAD: Duration = Duration::from_secs(31);

/// Length of an id in bytes.
const ID: usize = 16;

/// Time by which the clock of a host may be behind that of another one, with the leeway of tokens.
const BEHIND: Duration = Duration::from_secs(120);

/// The content of a seal.
#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Seal {
    /// 128 random bits.
    id: String,
    /// Digest of the content.
    sha256: String,
}

/// A seal that is valid.
pub(super) struct Opened<'a> {
    /// 128 bits, by which a second use is recognized.
    pub(super) id: String,
    pub(super) content: &'a [u8],
    /// End of the seal.
    until: Timestamp,
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
    let seal = Seal { id, sha256: crypto::sha256(content) };
    let mut bytes = ring.sign(way.typ(), host, expires_at, &seal)?.into_bytes();
    bytes.push(b'\n');
    bytes.extend_from_slice(content);
    Ok(bytes.into())
}

/// Returns the id and the content, if the seal is valid for at most `longest` and that of the
/// content.
pub(super) fn opened<'a>(
    ring: &KeyRing,
    host: &str,
    way: Way,
    (now, longest): (Timestamp, Duration),
    bytes: &'a [u8],
) -> Result<Opened<'a>, TokenRefused> {
    // The keys may have been replaced by some that sign, which a gate could share.
    if ring.keys().iter().any(|key| key.signs() || key.algorithm() != Algorithm::EdDsa) {
        return Err(TokenReason::Key.into());
    }
    let end = bytes.iter().take(MAX_SEAL + 1).position(|byte| *byte == b'\n').ok_or(TokenReason::Malformed)?;
    let (seal, content) = (&bytes[..end], &bytes[end + 1..]);
    let token = std::str::from_utf8(seal).map_err(|_| TokenReason::Malformed)?;
    let (Seal { id, sha256 }, until) = ring.verify_with_end::<Seal>(way.typ(), host, now, token)?;
    // A gate that lost its key must not have left a stock of seals for later.
    if until > now + longest + AHEAD {
        return Err(TokenReason::NotYetValid.into());
    }
    if crypto::from_base64(&id).is_none_or(|bits| bits.len() != ID) {
        return Err(TokenReason::Malformed.into());
    }
    // The digest is no secret, so that its comparison may tell where it differs.
    if sha256 != crypto::sha256(content) {
        return Err(TokenReason::Signature.into());
    }
    Ok(Opened { id, content, until })
}

impl Opened<'_> {
    /// Returns the time for which the seal must be remembered once it is used: until no host
    /// accepts it any more, whose clock may be behind this one's.
    pub(super) fn remembered_for(&self, now: Timestamp) -> Duration {
        let rest = self.until.as_millis().saturating_sub(now.as_millis());
        Duration::from_millis(rest).saturating_add(BEHIND)
    }
}
