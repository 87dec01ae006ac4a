//! The content of a key, and the checks that need no store: pure, with the time as an argument.
use std::time::Duration;

use serde::{Deserialize, Serialize};

use super::{KeyRefused, Operation, grant::covers};
use crate::{
    strict_path::strict_path,
    time::Timestamp,
    token::{TokenReason, crypto::from_base64},
};

/// The content of a key.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Claims {
    /// 128 random bits.
    pub(super) id: String,
    #[serde(rename = "op")]
    pub(super) operation: Operation,
    pub(super) path: String,
    #[serde(rename = "max", default, skip_serializing_if = "Option::is_none")]
    pub(super) max_bytes: Option<u64>,
    #[serde(rename = "once", default, skip_serializing_if = "std::ops::Not::not")]
    pub(super) is_single_use: bool,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) tag: Option<String>,
    /// Time of the issue, in milliseconds since 1970.
    pub(super) iat: u64,
    /// Time of the first issue of a key that was renewed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) born: Option<u64>,
}

/// Time by which the clocks of two processes may differ.
pub(super) const LEEWAY: Duration = Duration::from_secs(30);

/// Length of an id in bytes.
const ID: usize = 16;

/// Returns `true` if this is the id of a key.
pub(super) fn is_id(id: &str) -> bool {
    from_base64(id).is_some_and(|bits| bits.len() == ID)
}

impl Claims {
    /// Returns the path of a request without its `/`, if the key is valid for it now.
    pub(super) fn judge<'a>(
        &self,
        operation: Operation,
        path: &'a str,
        now: Timestamp,
        early: Duration,
    ) -> Result<&'a str, KeyRefused> {
        self.judge_time(now, early)?;
        if operation != self.operation {
            return Err(KeyRefused::Operation);
        }
        let path = strict_path(path).ok().and_then(|path| path.strip_prefix('/')).ok_or(KeyRefused::Path)?;
        if covers(&self.path, operation, path) { Ok(path) } else { Err(KeyRefused::Path) }
    }

    /// Refuses an id of another form, and a key that was issued later than this.
    pub(super) fn judge_time(&self, now: Timestamp, early: Duration) -> Result<(), KeyRefused> {
        if !is_id(&self.id) {
            return Err(KeyRefused::Token(TokenReason::Malformed.into()));
        }
        match Timestamp::from_millis(self.iat) > now + early {
            true => Err(KeyRefused::Token(TokenReason::NotYetValid.into())),
            false => Ok(()),
        }
    }

    /// Returns the time of the first issue, in milliseconds since 1970.
    pub(super) fn born(&self) -> u64 {
        self.born.unwrap_or(self.iat)
    }

    /// Returns `true` if a revocation of the keys of its tag up to this time, in milliseconds since
    /// 1970, holds for this key. A renewal during the revocation does not evade it.
    pub(super) fn is_revoked_at(&self, revoked: u64) -> bool {
        self.born() <= revoked
    }
}
