//! Federated identity: verifies tokens that other issuers have signed, also while an issuer rotates
//! its keys, is away, or is flooded with tokens under unknown keys.
//!
//! Enabled by feature `jwt`.
//!
//! # When, and when not
//!
//! Use it in a service that receives tokens of identity providers: of one for single sign-on, of
//! partners, or of one for each tenant. Do not use it for tokens that the service gives to itself:
//! those need a [`KeyRing`](crate::token::KeyRing) and no fetch. It is not for sessions, nor for a
//! token without a signature that must be introspected.
//!
//! Logging a user in is the work of the crate `openidconnect`: the redirect, PKCE, `state` and
//! `nonce`. Choosing the provider of a user (home realm discovery) is a table from the domain of an
//! e-mail address to an issuer, in the page that redirects.
//!
//! # Defaults
//!
//! | setting | default | |
//! |---|---|---|
//! | `issuers` | none | each with its audiences and algorithms |
//! | `refresh_interval` | 10 min | age of keys to which `refresh_ahead` applies |
//! | `refresh_ahead` | 0.8 | share of it after which a token starts a fetch in the background |
//! | `max_stale` | 1 h | time for which keys serve while their issuer is away, or no token comes |
//! | `cooldown` | 30 s | minimum time between the starts of two fetches from an issuer |
//! | `fetch_timeout` | 5 s | time limit of discovery and key set together |
//! | `max_keys`, `max_document`, `max_token` | 64, 256 KiB, 16 KiB | limits of what is read |
//! | `leeway` | 30 s | difference of two machines' clocks |
//!
//! Refused: an issuer without an audience or an algorithm, HMAC, an issuer that is named twice, and
//! an address without TLS, except on loopback.
//!
//! # Example
//!
//! ```
//! use serde::Deserialize;
//! use steadfast::{
//!     federated_identity::{Issuer, TokenVerifier, TokenVerifierConfig},
//!     token::{Algorithm, TokenRefused},
//! };
//!
//! # async fn get(_: &(), url: &str) -> std::io::Result<Vec<u8>> {
//! #     Err(std::io::Error::other(url.to_owned()))
//! # }
//! #[derive(Deserialize)]
//! struct Claims { email: Option<String> }
//!
//! async fn place_order(verifier: &TokenVerifier, token: &str) -> Result<String, TokenRefused> {
//!     let who = verifier.verify::<Claims>(token).await?;
//!     who.require_scope("orders:write")?;
//!     let (issuer, subject) = who.subject(); // both together name the user
//!     Ok(format!("order of {subject} at {issuer}"))
//! }
//!
//! # #[tokio::main(flavor = "current_thread")]
//! # async fn main() -> Result<(), steadfast::ConfigError> {
//! # let client = ();
//! // A request by your client, through a pipeline with its retries.
//! let fetch = move |url: String| async move { get(&client, &url).await };
//! let config = TokenVerifierConfig::default().issuer(
//!     Issuer::oidc("https://id.example").audience("shop").algorithms([Algorithm::Es256]),
//! );
//! let verifier = TokenVerifier::builder(fetch, config).name("shop").build()?;
//! assert!(place_order(&verifier, "no token").await.is_err());
//! # Ok(())
//! # }
//! ```
//!
//! # The five commonest uses
//!
//! ```
//! use serde_json::Value;
//! use steadfast::{
//!     federated_identity::{Issuer, TokenVerifier, TokenVerifierConfig, TokenVerifierEvent},
//!     observe::Event,
//!     token::Algorithm,
//! };
//!
//! # #[tokio::main(flavor = "current_thread")]
//! # async fn main() -> Result<(), steadfast::ConfigError> {
//! # let fetch = |url: String| async move { Err::<Vec<u8>, _>(url) };
//! # let token = "";
//! // 1. One issuer, with the addresses from its discovery document.
//! let es256 = [Algorithm::Es256];
//! let own = Issuer::oidc("https://id.example").audience("shop").algorithms(es256);
//! let verifier = TokenVerifier::new(fetch, TokenVerifierConfig::default().issuer(own))?;
//!
//! // 2. The claims that the service reads, in a type of its own or as JSON.
//! let who = verifier.verify::<Value>(token).await.ok();
//! let tenant = who.as_ref().and_then(|who| who.claims()["tenant"].as_str());
//!
//! // 3. A right, as a scope.
//! let may_write = who.as_ref().is_some_and(|who| who.require_scope("orders:write").is_ok());
//!
//! // 4. A tenant with an issuer of its own, which comes in use.
//! let theirs = Issuer::with_keys_at("https://acme.example", "https://acme.example/keys")
//!     .audience("shop")
//!     .algorithms([Algorithm::Rs256]);
//! verifier.update(|config| config.issuer(theirs.clone()))?;
//!
//! // 5. An alarm when the keys of an issuer cannot be fetched.
//! let config = verifier.config();
//! let watched = TokenVerifier::builder(fetch, config)
//!     .on_event(|event: &Event<TokenVerifierEvent>| {
//!         if let TokenVerifierEvent::FetchFailed { issuer, serves_for, .. } = &event.what {
//!             eprintln!("{issuer}: its keys serve for {serves_for:?}");
//!         }
//!     })
//!     .build()?;
//! # Ok(())
//! # }
//! ```
//!
//! # How it works
//!
//! The issuer that a token names decides whose keys are tried, and nothing else. If it is
//! configured, the algorithm is compared, and the key is looked up among the keys of this issuer
//! alone. Only behind a valid signature are the claims read.
//!
//! The keys of an issuer are fetched at its first token, by one fetch that all callers share. From
//! then on a known key never waits: older keys are fetched again in the background, on the current
//! tokio runtime or by the [spawner](TokenVerifier::builder). An unknown key waits for one fetch
//! per `cooldown`, which counts from the start of the last attempt, whatever its result. So a flood
//! of invented keys costs the issuer one fetch per `cooldown`, of one or two documents, and its
//! callers a quick refusal.
//!
//! Let an issuer publish a key some minutes before it signs with it, as providers do. A key that is
//! used at once is refused for up to one `cooldown` after the last fetch.
//!
//! # Composing
//!
//! The function that fetches is a good place for a pipeline: a time-out below `fetch_timeout`, and
//! a retry. Let its client follow no redirects, and end a body above `max_document`.
//!
//! With feature `http`, `http::bearer` takes the token of a request, and `http::token_answer` makes
//! the response of a refusal: 401, 403 or 503 by RFC 6750. A table of your own from the subject to
//! rights and profile is read by [`cache_aside`](crate::cache_aside). Roles from claims are mapped
//! in your code; of a chain of token services only the last one is trusted.
//!
//! # Guarantees
//!
//! 1. A token is accepted if and only if its key belongs to its issuer, its algorithm is configured
//!    and fits the key, and `iss`, `aud`, `exp` and `sub` are there and valid, and `nbf` if it is
//!    there. Without `kid` exactly one key may fit.
//! 2. `none`, `crit`, encrypted and nested tokens are refused, tokens of other types and those that
//!    are bound to a key (`cnf`), and a request with two `authorization` headers. `jku`, `jwk`,
//!    `x5u` and `x5c` are ignored.
//! 3. Unknown keys cause at most one fetch per issuer and `cooldown`, also while the issuer fails,
//!    hangs, or serves an empty set. The first token of a new key is accepted if no fetch began
//!    within a `cooldown` before, and otherwise after it.
//! 4. Neither a wrong signature under a known key nor an unknown issuer causes a fetch.
//! 5. A known key never waits for a fetch, and no call longer than `fetch_timeout`. Keys serve
//!    until `max_stale` while their issuer is away. Its tokens are refused as unavailable, with a
//!    time to return, under unknown keys while its last fetch failed, and under all after
//!    `max_stale`. Other issuers do not notice.
//! 6. A fetched set replaces the old one, so a removed key ends. A set that is empty, too large,
//!    unreadable, or of another issuer is an event, and the old one stays. RSA keys below 2,048
//!    bits, different keys with one id, private halves and unknown types are left out.
//! 7. An issuer that is removed is refused from the next call on, and one that is added is fetched
//!    at its first token.
//! 8. A caller learns no more than that a token is invalid. Events have the reason, and never a
//!    part of the token.
//!
//! # Cancel safety
//!
//! A dropped [`verify`](TokenVerifier::verify) has no effect. A fetch that no caller waits for any
//! more is finished in the background.
//!
//! # Events
//!
//! The variants of [`TokenVerifierEvent`]: refused, keys fetched, fetch failed. The metrics count
//! the same; [`state`](TokenVerifier::state) has the keys of each issuer.
//!
//! # Pitfalls
//!
//! - The audience is the name of *this* service. One that is shared by services lets each of them
//!   use a token at the others.
//! - A subject or an e-mail address alone names nobody: use both parts of
//!   [`subject`](Verified::subject). Social providers assert little beyond it.
//! - An ID token is not an access token, and often has no type of its own: give the API another
//!   audience than the client id, or demand a [type](Issuer::token_type).
//! - Where few tokens come, a key that was removed is accepted for up to `max_stale`.
//! - Many issuers may be fetched at once: limit the concurrency of the function that fetches. An
//!   issuer is trusted with the address of its key set; the function may refuse private ones.
//! - A token is valid until it expires: there is no revocation here. Let issuers sign tokens for
//!   minutes.
//! - The keys of a removed issuer are forgotten. It is fetched anew if it comes back.
//! - Each change copies the configuration: add a thousand tenants in one
//!   [`update`](TokenVerifier::update), and not in a thousand.
//! - Outside a tokio runtime and without a spawner no keys are fetched ahead of time: they serve
//!   until `max_stale`, and a removed key for as long.
//!
//! # Source
//!
//! "Federated Identity", Cloud Design Patterns. OpenID Connect Discovery 1.0; RFC 7515, 7517 and
//! 7519 (JOSE), RFC 8725 (best current practices), RFC 6750 (bearer tokens).
mod claims; // the checks, and their result
mod config;
mod discovery; // the documents of an issuer
mod event;
mod state; // the keys of one issuer
#[cfg(all(test, not(steadfast_loom)))]
mod tests;
mod verifier;

pub use claims::Verified;
pub use config::{Issuer, TokenVerifierConfig};
pub use event::{FetchFailure, TokenVerifierEvent};
pub use state::IssuerState;
pub use verifier::TokenVerifier;
