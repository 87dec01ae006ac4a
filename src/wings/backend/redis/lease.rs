//! Leases on a server: one script a request, the term by the server's clock.
use std::{
    fmt,
    sync::{Arc, LazyLock},
    time::Duration,
};

use redis::{FromRedisValue, Value, from_redis_value};

use super::{
    failure::unexpected,
    handle::RedisCore,
    script::{Call, Script, digits, micros},
};
use crate::{
    lease::{Acquired, Held, Lease, LeaseError, Renewed, check_grant, check_holder},
    port::{BoxFuture, Capabilities, Capability, FencingToken, PortError},
};

/// The leases on a Redis server, from [`Redis::lease`](super::Redis::lease). A clone has the same
/// leases.
///
/// A term counts by the server's clock, so that another holder need not watch the lease for a whole
/// term. A token is the larger of the last one plus one and the server's time in microseconds.
#[derive(Clone)]
pub struct RedisLease {
    core: Arc<RedisCore>,
    can: Capabilities,
}

const CAN: Capabilities = Capabilities::of("redis", &[Capability::Fencing]).largest_key(1024);

macro_rules! script {
    ($kind:ident, $file:literal) => {
        LazyLock::new(|| {
            Script::$kind(concat!(include_str!("lua/numbers.lua"), include_str!(concat!("lua/", $file, ".lua"))))
        })
    };
}

static ACQUIRE: LazyLock<Script> = script!(writing, "acquire");
static RENEW: LazyLock<Script> = script!(writing, "renew");
static RELEASE: LazyLock<Script> = script!(writing, "release");
static REQUEST_RELEASE: LazyLock<Script> = script!(writing, "request_release");
static READ: LazyLock<Script> = script!(reading, "read_lease");

impl RedisLease {
    pub(super) fn new(core: Arc<RedisCore>) -> Self {
        let can = core.link.server().grant(CAN);
        Self { core, can }
    }

    /// Runs a script on the lease with this name.
    async fn call<T: FromRedisValue>(
        &self,
        script: &'static Script,
        name: &str,
        arguments: impl FnOnce(&mut Call),
    ) -> Result<T, PortError> {
        let mut call = Call::new(script, self.core.keys.lease(name));
        arguments(&mut call);
        let answer = self.core.link.call(call).await?;
        from_redis_value(answer).map_err(|_| {
            let error = self.unexpected();
            if script.writes { error.outcome_unknown() } else { error }
        })
    }

    fn unexpected(&self) -> PortError {
        unexpected(self.core.target(), "a request to a lease")
    }

    fn held(&self, (holder, token, term, left): (String, u64, String, u64)) -> Result<Held, PortError> {
        let term = parse_term(&term).ok_or_else(|| self.unexpected())?;
        Ok(Held::new(holder, FencingToken::new(token), term, Duration::from_micros(left)))
    }
}

/// Returns a term as it is stored beside its end: the end is rounded, and has a maximum.
fn stored_term(term: Duration) -> String {
    format!("{}.{:09}", term.as_secs(), term.subsec_nanos())
}

fn parse_term(text: &str) -> Option<Duration> {
    let (seconds, nanos) = text.split_once('.')?;
    Some(Duration::new(seconds.parse().ok()?, nanos.parse().ok()?))
}

impl Lease for RedisLease {
    fn capabilities(&self) -> Capabilities {
        self.can
    }

    fn acquire<'a>(
        &'a self,
        name: &'a str,
        holder: &'a str,
        term: Duration,
    ) -> BoxFuture<'a, Result<Acquired, LeaseError>> {
        Box::pin(async move {
            check_grant(name, holder, term, &self.can)?;
            let arguments = |call: &mut Call| {
                call.arg(holder).arg(micros(term)).arg(stored_term(term));
            };
            let mut answer: Vec<Value> = self.call(&ACQUIRE, name, arguments).await?;
            let refusal = || self.unexpected();
            if answer.is_empty() {
                return Err(refusal().into());
            }
            let granted: bool = from_redis_value(answer.remove(0)).map_err(|_| refusal())?;
            let rest = Value::Array(answer);
            Ok(if granted {
                let (token,): (u64,) = from_redis_value(rest).map_err(|_| refusal())?;
                Acquired::Granted(FencingToken::new(token))
            } else {
                Acquired::Held(self.held(from_redis_value(rest).map_err(|_| refusal())?)?)
            })
        })
    }

    fn renew<'a>(
        &'a self,
        name: &'a str,
        holder: &'a str,
        token: FencingToken,
        term: Duration,
    ) -> BoxFuture<'a, Result<Renewed, LeaseError>> {
        Box::pin(async move {
            check_grant(name, holder, term, &self.can)?;
            let arguments = |call: &mut Call| {
                call.arg(holder).arg(digits(token.as_u64())).arg(micros(term)).arg(stored_term(term));
            };
            let answer: Vec<i64> = self.call(&RENEW, name, arguments).await?;
            match answer[..] {
                [1, asked] => Ok(Renewed::new(asked == 1)),
                [0] => Err(LeaseError::NotHeld),
                _ => Err(self.unexpected().into()),
            }
        })
    }

    fn release<'a>(
        &'a self,
        name: &'a str,
        holder: &'a str,
        token: FencingToken,
    ) -> BoxFuture<'a, Result<(), LeaseError>> {
        Box::pin(async move {
            check_holder(name, holder, &self.can)?;
            let arguments = |call: &mut Call| {
                call.arg(holder).arg(digits(token.as_u64()));
            };
            if self.call(&RELEASE, name, arguments).await? { Ok(()) } else { Err(LeaseError::NotHeld) }
        })
    }

    fn read<'a>(&'a self, name: &'a str) -> BoxFuture<'a, Result<Option<Held>, LeaseError>> {
        Box::pin(async move {
            self.can.check_key("name", name)?;
            let answer: Vec<Value> = self.call(&READ, name, |_| ()).await?;
            if answer.is_empty() {
                return Ok(None);
            }
            let held = from_redis_value(Value::Array(answer)).map_err(|_| self.unexpected())?;
            Ok(Some(self.held(held)?))
        })
    }

    fn request_release<'a>(&'a self, name: &'a str, token: FencingToken) -> BoxFuture<'a, Result<(), LeaseError>> {
        Box::pin(async move {
            self.can.check_key("name", name)?;
            let arguments = |call: &mut Call| {
                call.arg(digits(token.as_u64()));
            };
            let _: bool = self.call(&REQUEST_RELEASE, name, arguments).await?;
            Ok(())
        })
    }
}

impl fmt::Debug for RedisLease {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RedisLease").field("server", &self.core.target().address()).finish_non_exhaustive()
    }
}

#[cfg(all(test, not(steadfast_loom)))]
mod tests {
    use super::*;

    #[test]
    fn a_stored_term_is_read_back_to_the_nanosecond() {
        for term in [Duration::MAX, Duration::from_nanos(1), Duration::new(15, 1_000_000)] {
            assert_eq!(parse_term(&stored_term(term)), Some(term));
        }
        assert_eq!(parse_term("15"), None);
    }
}
