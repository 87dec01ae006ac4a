//! Signed tokens (JWT): the keys of this service, and the reasons for which a token is refused.
//! Enabled by feature `jwt`.
//!
//! Tokens of other issuers are verified by
//! [`federated_identity`](crate::federated_identity::TokenVerifier). A [`KeyRing`] is for tokens
//! that this service gives to itself or to another service of the same owner.
//!
//! ```
//! use std::time::Duration;
//! use steadfast::{time::Clock, token::{Key, KeyRing, TokenReason}};
//!
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let clock = Clock::tokio();
//! let ring = KeyRing::new([Key::generate("2027-01")?])?;
//! let token = ring.sign("invite+jwt", "shop", clock.wall() + Duration::from_secs(600), &["ada"])?;
//!
//! let names: Vec<String> = ring.verify("invite+jwt", "shop", clock.wall(), &token)?;
//! assert_eq!(names, ["ada"]);
//! // Of another type, for another audience, or too late:
//! let refused = |typ, audience, now| ring.verify::<Vec<String>>(typ, audience, now, &token);
//! let reason = |typ, audience, now| refused(typ, audience, now).unwrap_err().reason();
//! assert_eq!(reason("reset+jwt", "shop", clock.wall()), TokenReason::Malformed);
//! assert_eq!(reason("invite+jwt", "bank", clock.wall()), TokenReason::Audience);
//! let later = clock.wall() + Duration::from_secs(700);
//! assert_eq!(reason("invite+jwt", "shop", later), TokenReason::Expired);
//!
//! // The newest key is the first, and signs. Tokens under the others stay valid.
//! ring.replace([Key::generate("2027-02")?, ring.key("2027-01").unwrap()])?;
//! assert!(ring.verify::<Vec<String>>("invite+jwt", "shop", clock.wall(), &token).is_ok());
//! # Ok(())
//! # }
//! ```
//!
//! # Rules
//!
//! - A token has an explicit type (`typ`), an audience, an end and the id of its key. Each is
//!   compared, and the content is read only behind a valid signature.
//! - Times are those of the caller's [clock](crate::time::Clock::wall), never of the system.
//! - A key has one algorithm. The header of a token cannot choose another one.
//! - `jku`, `jwk`, `x5u` and `x5c` are ignored. `crit`, `zip`, `enc`, a nested token, and a
//!   repeated member or claim of those that are read make a token malformed.
//! - The cryptography is that of aws-lc. The process-wide provider of `jsonwebtoken` is neither
//!   read nor set.
//!
//! # Guarantees
//!
//! 1. A ring is refused without keys, with two keys of one id, and with a secret shorter than 32
//!    bytes.
//! 2. The first key signs and all verify; [`replace`](KeyRing::replace) takes effect for all
//!    clones at once.
//! 3. The vectors of RFC 7515 and RFC 8037 are accepted; with any bit changed they are refused.
//!
//! # Source
//!
//! RFC 7515 (JWS), RFC 7519 (JWT), RFC 8037 (Ed25519), RFC 8725 (best current practices).
mod algorithm;
mod compact; // a token as text
pub(crate) mod crypto; // the one file that names the libraries
pub(crate) mod jwk; // keys of a fetched set
mod refused;
mod ring;
#[cfg(all(test, not(steadfast_loom)))]
mod tests;

pub use algorithm::Algorithm;
pub(crate) use compact::{Compact, NumericDate, OneOrMany, object};
pub use refused::{TokenReason, TokenRefused};
pub use ring::{Key, KeyRing, SignError};
