//! The claims of a token: the checks, and the result of a verification.
use std::{fmt, sync::Arc, time::Duration};

use serde::{
    Deserialize,
    de::{DeserializeOwned, IgnoredAny},
};

use super::Issuer;
use crate::{
    config::Name,
    time::Timestamp,
    token::{NumericDate, OneOrMany, TokenReason, TokenRefused, object},
};

/// The issuer that an unverified token names. It decides whose keys are tried, and nothing else.
#[derive(Deserialize)]
struct Named {
    iss: Option<String>,
}

/// Returns the issuer that a payload names.
pub(super) fn issuer_of(payload: &[u8]) -> Result<String, TokenRefused> {
    object::<Named>(payload)?.iss.ok_or(TokenReason::Malformed.into())
}

/// The claims that are checked. A repeated one is an error.
#[derive(Deserialize)]
struct Checked {
    iss: String,
    sub: String,
    aud: OneOrMany,
    exp: NumericDate,
    nbf: Option<NumericDate>,
    scope: Option<OneOrMany>,
    scp: Option<OneOrMany>,
    /// The key to which the token is bound.
    cnf: Option<IgnoredAny>,
}

/// A token that was verified: its claims, and who it is about.
///
/// Created by [`TokenVerifier::verify`](super::TokenVerifier::verify).
#[derive(Clone, PartialEq, Eq)]
pub struct Verified<C> {
    claims: C,
    issuer: Name,
    subject: String,
    scopes: Vec<String>,
    expires_at: Timestamp,
}

impl<C> Verified<C> {
    /// Returns the claims.
    pub const fn claims(&self) -> &C {
        &self.claims
    }

    /// Returns the claims by value.
    pub fn into_claims(self) -> C {
        self.claims
    }

    /// Returns the issuer and the subject. Only both together name somebody: another issuer may
    /// give the same subject, or the same e-mail address, to another person.
    pub fn subject(&self) -> (&str, &str) {
        (self.issuer.as_str(), &self.subject)
    }

    /// Returns the scopes: those of `scope`, or of `scp` if there are none.
    pub fn scopes(&self) -> impl Iterator<Item = &str> {
        self.scopes.iter().map(String::as_str)
    }

    /// Returns an error unless the token has this scope. Scopes are compared character for
    /// character.
    ///
    /// # Errors
    /// [`TokenReason::Scope`].
    pub fn require_scope(&self, scope: &str) -> Result<(), TokenRefused> {
        if self.scopes().any(|one| one == scope) { Ok(()) } else { Err(TokenReason::Scope.into()) }
    }

    /// Returns the time at which the token expires, by its issuer's clock.
    pub const fn expires_at(&self) -> Timestamp {
        self.expires_at
    }
}

impl<C> fmt::Debug for Verified<C> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Verified").field("issuer", &self.issuer).finish_non_exhaustive()
    }
}

/// Checks the claims of a payload whose signature is right.
pub(super) fn check<C: DeserializeOwned>(
    payload: &[u8],
    issuer: &Arc<Issuer>,
    name: &Name,
    now: Timestamp,
    leeway: Duration,
) -> Result<Verified<C>, TokenRefused> {
    let claims: Checked = object(payload)?;
    if claims.iss != issuer.issuer {
        return Err(TokenReason::Issuer.into());
    }
    // A token that is bound to a key (RFC 7800) proves nothing without that key.
    if claims.sub.is_empty() || claims.cnf.is_some() {
        return Err(TokenReason::Malformed.into());
    }
    if !claims.aud.iter().any(|one| issuer.audiences.iter().any(|audience| audience == one)) {
        return Err(TokenReason::Audience.into());
    }
    let leeway = u64::try_from(leeway.as_millis()).unwrap_or(u64::MAX);
    let expires_at = claims.exp.as_millis();
    if expires_at.saturating_add(leeway) <= now.as_millis() {
        return Err(TokenReason::Expired.into());
    }
    if claims.nbf.is_some_and(|begin| begin.as_millis() > now.as_millis().saturating_add(leeway)) {
        return Err(TokenReason::NotYetValid.into());
    }
    let words = |claim: Option<OneOrMany>| -> Vec<String> {
        let claim = claim.iter().flat_map(OneOrMany::iter).flat_map(|some| some.split(' '));
        claim.filter(|one| !one.is_empty()).map(str::to_owned).collect()
    };
    let scopes = Some(words(claims.scope)).filter(|scopes| !scopes.is_empty()).unwrap_or_else(|| words(claims.scp));
    Ok(Verified {
        claims: object(payload)?,
        issuer: name.clone(),
        subject: claims.sub,
        scopes,
        expires_at: Timestamp::from_millis(expires_at),
    })
}
