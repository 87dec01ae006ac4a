//! The rooms at the edge of a service, through the public API: `token`, `federated_identity`, `gatekeeper`, `valet_key` and, by feature
//! `object_store`, its uploads.
#![allow(missing_docs, clippy::unwrap_used, clippy::expect_used, reason = "tests")]
mod federated_identity;
mod fuzz;
mod gatekeeper;
mod http;
mod metrics;
mod token;
#[cfg(feature = "object_store")]
mod uploads;
mod valet_key;

/// Returns the bytes as base64url without padding.
fn base64(bytes: impl AsRef<[u8]>) -> String {
    const ALPHABET: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_";
    let mut text = String::new();
    for chunk in bytes.as_ref().chunks(3) {
        let at = |i: usize| u32::from(chunk.get(i).copied().unwrap_or(0));
        let bits = at(0) << 16 | at(1) << 8 | at(2);
        for i in 0..=chunk.len() {
            text.push(char::from(ALPHABET[(bits >> (18 - 6 * i) & 63) as usize]));
        }
    }
    text
}
