//! SHA-256, for names and checks of public files alone. Keys, tokens and secrets use libraries for
//! them: that of `token`, and `hmac` for the forms of `console`.
use base64::{Engine, engine::general_purpose::STANDARD};
use sha2::{Digest as _, Sha256};

/// A digest.
pub(crate) type Digest = [u8; 32];

/// Returns the SHA-256 of the bytes.
pub(crate) fn sha256(bytes: &[u8]) -> Digest {
    Sha256::digest(bytes).into()
}

/// Returns the bytes in base64 with padding, as `integrity` attributes and headers have
/// them.
pub(crate) fn base64(bytes: &[u8]) -> String {
    STANDARD.encode(bytes)
}
