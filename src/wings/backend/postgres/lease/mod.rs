//! Leases in a schema of PostgreSQL, by the server's clock.
pub(super) mod schema;

use std::{fmt, sync::Arc, time::Duration};

use tokio_postgres::{Row, types::Type};

use super::{
    Postgres,
    handle::PostgresCore,
    link::{Effect, Link, Param},
    store::sql::micros,
};
use crate::{
    lease::{Acquired, Held, Lease, LeaseError, Renewed, check_grant, check_holder},
    port::{BoxFuture, Capabilities, Capability, FencingToken, PortError, PortErrorKind},
};

/// The leases in a schema, from [`Postgres::lease`]. A clone is the same.
///
/// A term runs by the server's clock, so that a challenger need not watch a whole term. Each method
/// is one request.
#[derive(Clone)]
pub struct PostgresLease(Arc<PostgresCore>);

/// The statements, which all handles of one [`Postgres`] share.
pub(crate) struct LeaseSql {
    acquire: String,
    renew: String,
    release: String,
    read: String,
    request: String,
}

const CAN: Capabilities = Capabilities::of(
    "postgres",
    &[Capability::Durable, Capability::Shared, Capability::Linearizable, Capability::Fencing],
)
.largest_key(1024);

impl LeaseSql {
    pub(crate) fn new(link: &Link) -> Self {
        Self {
            acquire: link.sql(
                "SELECT granted, holder, token, term, free_in FROM {s}.lease_acquire($1, $2, $3, $4)
                 WHERE {fits}",
            ),
            renew: link.sql("SELECT {s}.lease_renew($1, $2, $3, $4, $5) WHERE {fits}"),
            release: link.sql("SELECT {s}.lease_release($1, $2, $3) WHERE {fits}"),
            read: link.sql(
                "SELECT true, holder, token, term, ends - {s}.now_us() FROM {s}.leases
                 WHERE name = $1 AND ends > {s}.now_us() AND {fits}",
            ),
            request: link.sql("UPDATE {s}.leases SET requested = true WHERE name = $1 AND token = $2 AND {fits}"),
        }
    }
}

impl Postgres {
    /// Returns the leases in this schema.
    pub fn lease(&self) -> PostgresLease {
        PostgresLease(self.0.clone())
    }
}

/// Returns a term in nanoseconds. One that exceeds the engine's integers is the longest.
fn stored(term: Duration) -> i64 {
    i64::try_from(term.as_nanos()).unwrap_or(i64::MAX)
}

fn duration(nanos: i64) -> Duration {
    if nanos == i64::MAX { Duration::MAX } else { Duration::from_nanos(nanos.unsigned_abs()) }
}

impl PostgresLease {
    async fn call<T>(
        &self,
        effect: Effect,
        sql: &str,
        params: &[Param<'_>],
        read: impl FnOnce(&Link, &Row) -> Result<T, PortError>,
    ) -> Result<Option<T>, PortError> {
        let rows = self.0.link.query(effect, sql, params).await?;
        rows.first().map(|row| read(&self.0.link, row)).transpose()
    }

    fn held(link: &Link, row: &Row) -> Result<Held, PortError> {
        let holder = String::from_utf8(link.column(row, 1)?);
        let holder = holder.map_err(|_| PortError::new(PortErrorKind::Corrupt, "postgres: a holder is not UTF-8"))?;
        let (token, term, left): (i64, i64, i64) = (link.column(row, 2)?, link.column(row, 3)?, link.column(row, 4)?);
        let term = duration(term);
        let left = Duration::from_micros(left.max(0).unsigned_abs()).min(term);
        Ok(Held::new(holder, FencingToken::new(token.unsigned_abs()), term, left))
    }
}

fn number(token: FencingToken) -> i64 {
    // One that exceeds the engine's integers was never granted.
    i64::try_from(token.as_u64()).unwrap_or(-1)
}

impl Lease for PostgresLease {
    fn capabilities(&self) -> Capabilities {
        if self.0.server.is_durable { CAN } else { CAN.without(Capability::Durable) }
    }

    fn acquire<'a>(
        &'a self,
        name: &'a str,
        holder: &'a str,
        term: Duration,
    ) -> BoxFuture<'a, Result<Acquired, LeaseError>> {
        Box::pin(async move {
            check_grant(name, holder, term, &CAN)?;
            let (name, holder) = (name.as_bytes(), holder.as_bytes());
            let params: [Param<'_>; 4] = [
                (&name, Type::BYTEA),
                (&holder, Type::BYTEA),
                (&stored(term), Type::INT8),
                (&micros(term), Type::INT8),
            ];
            let acquired = self.call(Effect::Write, &self.0.lease.acquire, &params, |link, row| {
                if link.column(row, 0)? {
                    let token: i64 = link.column(row, 2)?;
                    return Ok(Acquired::Granted(FencingToken::new(token.unsigned_abs())));
                }
                Self::held(link, row).map(Acquired::Held)
            });
            acquired.await?.ok_or_else(|| no_answer().into())
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
            check_grant(name, holder, term, &CAN)?;
            let (name, holder) = (name.as_bytes(), holder.as_bytes());
            let params: [Param<'_>; 5] = [
                (&name, Type::BYTEA),
                (&holder, Type::BYTEA),
                (&number(token), Type::INT8),
                (&stored(term), Type::INT8),
                (&micros(term), Type::INT8),
            ];
            let renewed = self
                .call(Effect::Write, &self.0.lease.renew, &params, |link, row| link.column::<Option<bool>>(row, 0))
                .await?;
            renewed.ok_or_else(no_answer)?.map(Renewed::new).ok_or(LeaseError::NotHeld)
        })
    }

    fn release<'a>(
        &'a self,
        name: &'a str,
        holder: &'a str,
        token: FencingToken,
    ) -> BoxFuture<'a, Result<(), LeaseError>> {
        Box::pin(async move {
            check_holder(name, holder, &CAN)?;
            let (name, holder) = (name.as_bytes(), holder.as_bytes());
            let params: [Param<'_>; 3] = [(&name, Type::BYTEA), (&holder, Type::BYTEA), (&number(token), Type::INT8)];
            let released = self
                .call(Effect::Write, &self.0.lease.release, &params, |link, row| link.column::<bool>(row, 0))
                .await?;
            if released.ok_or_else(no_answer)? { Ok(()) } else { Err(LeaseError::NotHeld) }
        })
    }

    fn read<'a>(&'a self, name: &'a str) -> BoxFuture<'a, Result<Option<Held>, LeaseError>> {
        Box::pin(async move {
            CAN.check_key("name", name)?;
            let name = name.as_bytes();
            Ok(self.call(Effect::Read, &self.0.lease.read, &[(&name, Type::BYTEA)], Self::held).await?)
        })
    }

    fn request_release<'a>(&'a self, name: &'a str, token: FencingToken) -> BoxFuture<'a, Result<(), LeaseError>> {
        Box::pin(async move {
            CAN.check_key("name", name)?;
            let name = name.as_bytes();
            let params: [Param<'_>; 2] = [(&name, Type::BYTEA), (&number(token), Type::INT8)];
            self.0.link.query(Effect::Write, &self.0.lease.request, &params).await?;
            Ok(())
        })
    }
}

fn no_answer() -> PortError {
    PortError::new(PortErrorKind::Other, "postgres: a request of a lease has no answer").outcome_unknown()
}

impl fmt::Debug for PostgresLease {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("PostgresLease").field("link", &self.0.link).finish_non_exhaustive()
    }
}
