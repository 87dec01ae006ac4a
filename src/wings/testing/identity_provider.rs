//! An issuer of tokens for tests: it signs, serves its keys, rotates them, and fails on request.
use std::{fmt, future::pending, io, sync::Arc};

use serde::Serialize;
use serde_json::{Value, json};

use crate::{
    sync::Mutex,
    token::{
        Algorithm,
        crypto::{SignKey, to_base64},
    },
};

/// The way in which an [`IdentityProvider`] answers requests for its documents.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum ProviderMood {
    /// It serves its keys.
    Serves,
    /// It refuses each request.
    Fails,
    /// It never answers.
    Hangs,
    /// Its key set is empty.
    Empty,
    /// Its discovery document names another issuer.
    Lies,
    /// Its documents are no JSON.
    Garbage,
    /// Its key set has a million bytes.
    Huge,
}

/// An issuer of tokens. Clones share their state.
///
/// ```
/// use std::time::Duration;
/// use serde_json::{Value, json};
/// use steadfast::{
///     federated_identity::{Issuer, TokenVerifier, TokenVerifierConfig},
///     testing::IdentityProvider,
///     time::Clock,
///     token::Algorithm,
/// };
///
/// let (clock, time) = Clock::manual();
/// let provider = IdentityProvider::new("https://id.example");
/// let issuer = Issuer::oidc("https://id.example").audience("shop").algorithms([Algorithm::Es256]);
/// let fetch = { let provider = provider.clone(); move |url| provider.clone().fetch(url) };
/// let config = TokenVerifierConfig::default().issuer(issuer);
/// let verifier = TokenVerifier::builder(fetch, config).clock(&clock).build().unwrap();
///
/// let exp = (clock.wall() + Duration::from_secs(60)).as_millis() / 1000;
/// let claims = json!({ "iss": "https://id.example", "aud": "shop", "sub": "ada", "exp": exp });
/// let who = time.block_on(verifier.verify::<Value>(&provider.token(&claims))).unwrap();
/// assert_eq!(who.subject(), ("https://id.example", "ada"));
/// assert_eq!(provider.fetches(), 1);
/// ```
#[derive(Clone)]
pub struct IdentityProvider(Arc<Inner>);

struct Inner {
    issuer: String,
    state: Mutex<State>,
}

struct State {
    keys: Vec<IssuedKey>,
    made: usize,
    mood: ProviderMood,
    fetches: u64,
}

struct IssuedKey {
    kid: String,
    algorithm: Algorithm,
    sign: SignKey,
    jwk: Value,
    is_published: bool,
}

impl IdentityProvider {
    /// Creates an issuer of this name with one key, of ES256.
    pub fn new(issuer: impl Into<String>) -> Self {
        let state = State { keys: Vec::new(), made: 0, mood: ProviderMood::Serves, fetches: 0 };
        let provider = Self(Arc::new(Inner { issuer: issuer.into(), state: Mutex::new(state) }));
        provider.rotate();
        provider
    }

    /// Creates and publishes a key of ES256, and signs with it from now on. Returns its id. Earlier
    /// keys stay published.
    pub fn rotate(&self) -> String {
        self.rotate_to(Algorithm::Es256)
    }

    /// Same as [`rotate`](Self::rotate), with a key for this algorithm.
    ///
    /// # Panics
    /// For an algorithm other than ES256, RS256 and EdDSA.
    pub fn rotate_to(&self, algorithm: Algorithm) -> String {
        let mut state = self.0.state.lock();
        state.made += 1;
        let kid = format!("key-{}", state.made);
        let made = match algorithm {
            Algorithm::Es256 => SignKey::generate_es256().map(|(sign, [x, y])| {
                (sign, json!({ "kty": "EC", "crv": "P-256", "x": to_base64(&x), "y": to_base64(&y) }))
            }),
            Algorithm::Rs256 => SignKey::generate_rs256()
                .map(|(sign, [n, e])| (sign, json!({ "kty": "RSA", "n": to_base64(&n), "e": to_base64(&e) }))),
            Algorithm::EdDsa => SignKey::generate_ed25519()
                .and_then(|pkcs8| SignKey::ed25519(&pkcs8))
                .map(|(sign, _, x)| (sign, json!({ "kty": "OKP", "crv": "Ed25519", "x": to_base64(&x) }))),
            _ => None,
        };
        let Some((sign, mut jwk)) = made else { panic!("no key for {algorithm} can be made") };
        jwk["kid"] = json!(kid);
        jwk["alg"] = json!(algorithm);
        jwk["use"] = json!("sig");
        state.keys.push(IssuedKey { kid: kid.clone(), algorithm, sign, jwk, is_published: true });
        kid
    }

    /// Removes a key from the set. It can still sign.
    pub fn withdraw(&self, kid: &str) {
        let mut state = self.0.state.lock();
        state.keys.iter_mut().filter(|key| key.kid == kid).for_each(|key| key.is_published = false);
    }

    /// Sets the way in which it answers.
    pub fn is(&self, mood: ProviderMood) {
        self.0.state.lock().mood = mood;
    }

    /// Returns a token of these claims, signed by the newest key.
    ///
    /// # Panics
    /// If the claims have no form in JSON.
    pub fn token(&self, claims: &impl Serialize) -> String {
        let Ok(claims) = serde_json::to_vec(claims) else { panic!("no form in JSON") };
        let state = self.0.state.lock();
        let Some(key) = state.keys.last() else { panic!("no key") };
        let header = json!({ "alg": key.algorithm, "kid": key.kid, "typ": "JWT" }).to_string();
        signed(&state, header.as_bytes(), &claims)
    }

    /// Returns a token of this header and these claims, signed by the newest key, whatever they
    /// say.
    ///
    /// # Panics
    /// If they have no form in JSON.
    pub fn sign(&self, header: &impl Serialize, claims: &impl Serialize) -> String {
        let (Ok(header), Ok(claims)) = (serde_json::to_vec(header), serde_json::to_vec(claims)) else {
            panic!("no form in JSON")
        };
        self.sign_bytes(&header, &claims)
    }

    /// Same as [`sign`](Self::sign), of bytes that need not be JSON.
    ///
    /// # Panics
    /// If the key cannot sign, which does not happen.
    pub fn sign_bytes(&self, header: &[u8], claims: &[u8]) -> String {
        signed(&self.0.state.lock(), header, claims)
    }

    /// Returns the document at an address, as its mood is.
    ///
    /// # Errors
    /// If the issuer fails.
    ///
    /// # Cancel safety
    /// Cancel safe.
    pub async fn fetch(self, address: String) -> io::Result<Vec<u8>> {
        let issuer = &self.0.issuer;
        let is_discovery = address.ends_with("/.well-known/openid-configuration");
        let mood = {
            let mut state = self.0.state.lock();
            state.fetches += u64::from(is_discovery);
            state.mood
        };
        match mood {
            ProviderMood::Fails => return Err(io::Error::other("the issuer is away")),
            ProviderMood::Hangs => pending().await,
            ProviderMood::Garbage => return Ok(b"<html>".to_vec()),
            _ => {}
        }
        if is_discovery {
            let named = if mood == ProviderMood::Lies { "https://other.example" } else { issuer };
            return Ok(json!({ "issuer": named, "jwks_uri": format!("{issuer}/keys") }).to_string().into_bytes());
        }
        Ok(match mood {
            ProviderMood::Empty => br#"{"keys":[]}"#.to_vec(),
            ProviderMood::Huge => vec![b' '; 1_000_000],
            _ => self.key_set().into_bytes(),
        })
    }

    /// Returns the set of its published keys, as JSON.
    pub fn key_set(&self) -> String {
        let state = self.0.state.lock();
        let keys: Vec<_> = state.keys.iter().filter(|key| key.is_published).map(|key| &key.jwk).collect();
        json!({ "keys": keys }).to_string()
    }

    /// Returns its name.
    pub fn issuer(&self) -> &str {
        &self.0.issuer
    }

    /// Returns the number of fetches so far: of requests for the discovery document.
    pub fn fetches(&self) -> u64 {
        self.0.state.lock().fetches
    }
}

/// Signs by the newest key.
fn signed(state: &State, header: &[u8], claims: &[u8]) -> String {
    let message = format!("{}.{}", to_base64(header), to_base64(claims));
    let newest = state.keys.last();
    match newest.and_then(|key| key.sign.sign(key.algorithm, message.as_bytes())) {
        Some(signature) => format!("{message}.{}", to_base64(&signature)),
        None => panic!("the newest key does not sign"),
    }
}

impl fmt::Debug for IdentityProvider {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("IdentityProvider").field("issuer", &self.0.issuer).finish_non_exhaustive()
    }
}
