//! The keys of one issuer: a pure machine, which takes the time as an argument.
//!
//! | keys | key of the token | answer | a fetch may begin |
//! |---|---|---|---|
//! | younger than `refresh_after` | there | [`Found`](Lookup::Found) | no |
//! | younger than `max_stale` | there | [`Found`](Lookup::Found) | in the background, after `cooldown` |
//! | younger than `max_stale` | not there, or without an id one of several | [`Unknown`](Lookup::Unknown) | after `cooldown`, awaited |
//! | younger than `max_stale` | of another algorithm | [`Refused`](Lookup::Refused) | no |
//! | older, or none | | [`Stale`](Lookup::Stale) | after `cooldown`, awaited |
//!
//! An unknown key is refused only if the last attempt brought the keys; otherwise the token is
//! unavailable, like one under stale keys.
use std::time::Duration;

use super::TokenVerifierConfig;
use crate::{
    config::Name,
    time::Instant,
    token::{
        Algorithm, TokenReason,
        crypto::VerifyKey,
        jwk::{KeySet, PublishedKey},
    },
};

/// The keys of an issuer, and the time of the last attempt to fetch them.
#[derive(Debug, Default)]
pub(super) struct KeyCache {
    keys: Vec<PublishedKey>,
    /// Start of the fetch that brought the keys.
    fetched: Option<Instant>,
    /// Start of the last attempt, whatever its result.
    attempted: Option<Instant>,
}

/// The state of an issuer, as [`TokenVerifier::state`](super::TokenVerifier::state) returns it.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct IssuerState {
    /// The issuer.
    pub issuer: Name,
    /// Number of its keys.
    pub keys: usize,
    /// Time for which they will still serve without another fetch; zero if there are none.
    pub serves_for: Duration,
    /// `true` if its last fetch has failed, or has not ended.
    pub is_away: bool,
}

/// The answer to the question for a key.
#[derive(Debug)]
pub(super) enum Lookup {
    Found {
        key: VerifyKey,
        /// `true` if the keys are old enough to be fetched again, and that may begin now.
        refresh: bool,
    },
    /// The issuer had no such key when its keys were fetched, or several for a token without an id.
    Unknown,
    /// A fetch would not change the answer.
    Refused(TokenReason),
    /// There are no keys, or they are too old.
    Stale,
}

impl KeyCache {
    /// Returns the key for a token with this header.
    pub(super) fn lookup(
        &self,
        now: Instant,
        kid: Option<&str>,
        algorithm: Algorithm,
        config: &TokenVerifierConfig,
    ) -> Lookup {
        let Some(age) = self.fetched.map(|at| now - at).filter(|age| *age < config.max_stale) else {
            return Lookup::Stale;
        };
        let found = match kid {
            Some(kid) => match self.keys.iter().find(|key| key.kid.as_deref() == Some(kid)) {
                Some(key) if !key.fits(algorithm) => return Lookup::Refused(TokenReason::Algorithm),
                found => found,
            },
            None => {
                let mut fitting = self.keys.iter().filter(|key| key.fits(algorithm));
                match (fitting.next(), fitting.next()) {
                    // The issuer may have withdrawn one of them by now.
                    (Some(_), Some(_)) => None,
                    (found, _) => found,
                }
            }
        };
        match found {
            Some(PublishedKey { key, .. }) => {
                let refresh = age >= config.refresh_after() && self.wait(now, config.cooldown).is_zero();
                Lookup::Found { key: key.clone(), refresh }
            }
            None => Lookup::Unknown,
        }
    }

    /// Returns the time until a fetch may begin.
    pub(super) fn wait(&self, now: Instant, cooldown: Duration) -> Duration {
        self.attempted.map_or(Duration::ZERO, |at| cooldown.saturating_sub(now - at))
    }

    /// Begins a fetch.
    ///
    /// # Errors
    /// The time until one may begin.
    pub(super) fn begin(&mut self, now: Instant, cooldown: Duration) -> Result<(), Duration> {
        match self.wait(now, cooldown) {
            Duration::ZERO => {
                self.attempted = Some(now);
                Ok(())
            }
            wait => Err(wait),
        }
    }

    /// Replaces the keys by those of a fetch that began at this time.
    pub(super) fn replace(&mut self, set: KeySet, began: Instant) {
        (self.keys, self.fetched) = (set.keys, Some(began));
    }

    /// Returns `true` if the last attempt brought the keys that are there. Otherwise it failed, or
    /// has not ended, and the issuer may have other keys by now.
    pub(super) fn is_current(&self) -> bool {
        self.fetched.is_some() && self.fetched == self.attempted
    }

    /// Returns the number of keys.
    pub(super) fn len(&self) -> usize {
        self.keys.len()
    }

    /// Returns `true` if an attempt was made, and the last one did not bring the keys.
    pub(super) fn is_away(&self) -> bool {
        self.attempted.is_some() && !self.is_current()
    }

    /// Returns the time for which the keys will still serve.
    pub(super) fn serves_for(&self, now: Instant, config: &TokenVerifierConfig) -> Duration {
        self.fetched.map_or(Duration::ZERO, |at| config.max_stale.saturating_sub(now - at))
    }
}
