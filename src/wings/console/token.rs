//! Tokens of pages: an action is accepted only from a page that this process made for this user,
//! not long ago.
use std::time::Duration;

use hmac::{Hmac, KeyInit, Mac};
use sha2::Sha256;

use crate::{entropy, time::Instant};

/// Time for which a page's token is accepted.
const LIFE: Duration = Duration::from_secs(3600);

/// Makes and checks tokens. The key is of this process and this console: tokens of another one are
/// refused.
pub(super) struct Tokens([u8; 64]);

impl Tokens {
    pub(super) fn new() -> Self {
        Self(entropy::secret())
    }

    /// Returns the token of a page that this user is shown now.
    pub(super) fn make(&self, user: &str, now: Instant) -> String {
        let made = now.as_nanos();
        let signature = self.signed(user, made).finalize().into_bytes();
        let digits: String = signature.iter().map(|byte| format!("{byte:02x}")).collect();
        format!("{made:x}.{digits}")
    }

    /// Returns `true` if the token was made for this user within the last hour.
    pub(super) fn is_valid(&self, token: &str, user: &str, now: Instant) -> bool {
        let Some((made, digits)) = token.split_once('.') else { return false };
        let Ok(made) = u64::from_str_radix(made, 16) else { return false };
        let Some(signature) = bytes(digits) else { return false };
        let age = now.saturating_since(Instant::from_nanos(made));
        made <= now.as_nanos() && age <= LIFE && self.signed(user, made).verify_slice(&signature).is_ok()
    }

    fn signed(&self, user: &str, made: u64) -> Hmac<Sha256> {
        let mut signed = Hmac::<Sha256>::new(&self.0.into());
        signed.update(&made.to_be_bytes());
        signed.update(user.as_bytes());
        signed
    }
}

/// Returns the bytes of pairs of hexadecimal digits.
fn bytes(digits: &str) -> Option<Vec<u8>> {
    let digits: Vec<u8> = digits.chars().map(|digit| Some(digit.to_digit(16)? as u8)).collect::<Option<_>>()?;
    let (pairs, rest) = digits.as_chunks::<2>();
    rest.is_empty().then(|| pairs.iter().map(|[high, low]| high << 4 | low).collect())
}

#[cfg(all(test, not(steadfast_loom)))]
mod tests {
    use super::*;

    #[test]
    fn a_token_holds_for_its_user_and_an_hour() {
        let (tokens, now) = (Tokens::new(), Instant::from_nanos(1_000_000_000));
        let token = tokens.make("ann", now);
        assert!(tokens.is_valid(&token, "ann", now + LIFE));
        assert!(!tokens.is_valid(&token, "ann", now + LIFE + Duration::from_nanos(1)));
        assert!(!tokens.is_valid(&token, "bob", now));
        assert!(!tokens.is_valid(&token, "ann", Instant::from_nanos(999_999_999)));
        assert!(!Tokens::new().is_valid(&token, "ann", now));
        for wrong in ["", ".", "3b9aca00.", &token[..token.len() - 1], &format!("{token}0")] {
            assert!(!tokens.is_valid(wrong, "ann", now), "{wrong}");
        }
    }
}
