//! Settings of a verifier, and the issuers that it trusts.
use std::{collections::HashSet, time::Duration};

use serde::{Deserialize, Serialize};

use crate::{
    address::{SAFE, is_safe},
    config::{ConfigError, human, require, require_share, require_some_time, setters},
    token::Algorithm,
};

/// Settings of a [`TokenVerifier`](super::TokenVerifier): plain data, from code or from a document.
///
/// ```
/// use steadfast::federated_identity::TokenVerifierConfig;
///
/// let config: TokenVerifierConfig = toml::from_str(r#"
///     max_stale = "2h"
///     [[issuers]]
///     issuer = "https://id.example"
///     audiences = ["shop"]
///     algorithms = ["ES256", "RS256"]
/// "#).unwrap();
/// assert_eq!(config.issuers[0].audiences, ["shop"]);
/// ```
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
#[non_exhaustive]
pub struct TokenVerifierConfig {
    /// Issuers whose tokens are accepted, for example one for each tenant. None by default.
    pub issuers: Vec<Issuer>,
    /// Age of keys to which `refresh_ahead` applies. 10 min by default.
    #[serde(with = "human")]
    pub refresh_interval: Duration,
    /// Share of `refresh_interval` after which the next token starts a fetch in the background, and
    /// is itself judged by the keys that are there. 0.8 by default.
    pub refresh_ahead: f64,
    /// Time since the start of the last successful fetch for which keys serve, while their issuer
    /// is away or no token comes. Then a token waits for a fetch, and without one is refused as
    /// unavailable. 1 h by default.
    #[serde(with = "human")]
    pub max_stale: Duration,
    /// Minimum time between the starts of two fetches from one issuer, whatever their results. 30 s
    /// by default.
    #[serde(with = "human")]
    pub cooldown: Duration,
    /// Time limit of a fetch: discovery and key set together. 5 s by default.
    #[serde(with = "human")]
    pub fetch_timeout: Duration,
    /// Maximum number of keys in a set. 64 by default.
    pub max_keys: usize,
    /// Maximum size of a fetched document in bytes. 256 KiB by default.
    pub max_document: usize,
    /// Maximum size of a token in bytes. 16 KiB by default.
    pub max_token: usize,
    /// Difference between the clocks of the issuer and of this machine that is allowed for. 30 s by
    /// default, at most 5 min.
    #[serde(with = "human")]
    pub leeway: Duration,
}

/// An issuer of tokens, with the tokens that are accepted from it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
#[non_exhaustive]
pub struct Issuer {
    /// The issuer as its tokens name it, character for character: a URL.
    pub issuer: String,
    /// Audiences that are accepted. A token is for one of them, or it is refused.
    pub audiences: Vec<String>,
    /// Algorithms that are accepted.
    pub algorithms: Vec<Algorithm>,
    /// Address of the key set. By default the issuer's discovery document names it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub jwks_uri: Option<String>,
    /// Type that a token must have (`typ`), such as `at+jwt`. By default a token has no type, `JWT`
    /// or `at+jwt`: those of other purposes, such as `logout+jwt`, are refused.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub token_type: Option<String>,
}

impl Issuer {
    /// Creates an issuer whose discovery document (OpenID Connect Discovery 1.0) names its key set.
    pub fn oidc(issuer: impl Into<String>) -> Self {
        Self { issuer: issuer.into(), audiences: Vec::new(), algorithms: Vec::new(), jwks_uri: None, token_type: None }
    }

    /// Creates an issuer with a key set at this address, without a discovery document.
    pub fn with_keys_at(issuer: impl Into<String>, jwks_uri: impl Into<String>) -> Self {
        Self { jwks_uri: Some(jwks_uri.into()), ..Self::oidc(issuer) }
    }

    /// Adds an audience: the name by which the issuer knows this service.
    #[must_use]
    pub fn audience(mut self, audience: impl Into<String>) -> Self {
        self.audiences.push(audience.into());
        self
    }

    /// Sets the algorithms that are accepted.
    #[must_use]
    pub fn algorithms(mut self, algorithms: impl IntoIterator<Item = Algorithm>) -> Self {
        self.algorithms = algorithms.into_iter().collect();
        self
    }

    /// Demands this type (`typ`) of each token.
    #[must_use]
    pub fn token_type(mut self, typ: impl Into<String>) -> Self {
        self.token_type = Some(typ.into());
        self
    }

    /// Returns `true` if a token of this type is accepted. Types are media types, which have no
    /// case, and of which `application/` may be left out.
    pub(super) fn takes_type(&self, typ: Option<&str>) -> bool {
        let short = |typ: &str| {
            let typ = typ.to_ascii_lowercase();
            typ.strip_prefix("application/").map(str::to_owned).unwrap_or(typ)
        };
        match (&self.token_type, typ) {
            (Some(wanted), typ) => typ.is_some_and(|typ| short(typ) == short(wanted)),
            (None, None) => true,
            (None, Some(typ)) => ["jwt", "at+jwt"].contains(&&*short(typ)),
        }
    }

    /// Returns `true` if its key set may be at this address, which its discovery document names.
    /// Only an issuer on loopback may name one on loopback.
    pub(super) fn may_have_keys_at(&self, address: &str) -> bool {
        is_safe(address) && (address.starts_with("https://") || self.issuer.starts_with("http://"))
    }

    /// Returns the address of the discovery document.
    pub(super) fn discovery(&self) -> String {
        format!("{}/.well-known/openid-configuration", self.issuer.trim_end_matches('/'))
    }

    fn check(&self) -> Result<(), ConfigError> {
        require(is_safe(&self.issuer) && !self.issuer.contains(['?', '#']), "issuer", SAFE)?;
        require(self.jwks_uri.as_deref().is_none_or(is_safe), "jwks_uri", SAFE)?;
        let named = !self.audiences.is_empty() && self.audiences.iter().all(|audience| !audience.is_empty());
        require(named, "audiences", "must name at least one audience")?;
        require(!self.algorithms.is_empty(), "algorithms", "must not be empty")?;
        let is_public = !self.algorithms.contains(&Algorithm::Hs256);
        require(is_public, "algorithms", "must not contain HS256: fetched keys are public")
    }
}

impl Default for TokenVerifierConfig {
    fn default() -> Self {
        Self {
            issuers: Vec::new(),
            refresh_interval: Duration::from_secs(600),
            refresh_ahead: 0.8,
            max_stale: Duration::from_secs(3600),
            cooldown: Duration::from_secs(30),
            fetch_timeout: Duration::from_secs(5),
            max_keys: 64,
            max_document: 256 << 10,
            max_token: 16 << 10,
            leeway: Duration::from_secs(30),
        }
    }
}

setters! {
    impl TokenVerifierConfig {
        issuers: [Issuer],
        refresh_interval: Duration,
        refresh_ahead: f64,
        max_stale: Duration,
        cooldown: Duration,
        fetch_timeout: Duration,
        max_keys: usize,
        max_document: usize,
        max_token: usize,
        leeway: Duration,
    }
}

impl TokenVerifierConfig {
    /// Adds an issuer.
    #[must_use]
    pub fn issuer(mut self, issuer: Issuer) -> Self {
        self.issuers.push(issuer);
        self
    }

    /// Returns the age of keys from which the next token starts a fetch.
    pub(super) fn refresh_after(&self) -> Duration {
        crate::time::scaled(self.refresh_interval, self.refresh_ahead)
    }

    pub(super) fn check(&self) -> Result<(), ConfigError> {
        let mut names = HashSet::new();
        for (at, issuer) in self.issuers.iter().enumerate() {
            issuer.check().map_err(|error| error.within(&format!("issuers.{at}")))?;
            require(names.insert(&issuer.issuer), "issuers", "must not name an issuer twice")?;
        }
        require_some_time(self.refresh_interval, "refresh_interval")?;
        require_share(self.refresh_ahead, "refresh_ahead")?;
        require(self.max_stale >= self.refresh_interval, "max_stale", "must be at least `refresh_interval`")?;
        require_some_time(self.cooldown, "cooldown")?;
        require(self.cooldown < self.max_stale, "cooldown", "must be shorter than `max_stale`")?;
        require_some_time(self.fetch_timeout, "fetch_timeout")?;
        require(self.fetch_timeout < self.cooldown, "fetch_timeout", "must be shorter than `cooldown`")?;
        for (limit, field) in
            [(self.max_keys, "max_keys"), (self.max_document, "max_document"), (self.max_token, "max_token")]
        {
            require(limit > 0, field, "must be at least 1")?;
        }
        require(self.leeway <= Duration::from_secs(300), "leeway", "must be at most 5 min")
    }
}
