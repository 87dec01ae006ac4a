//! The checks of a server before it is used: what would break a promise later is refused by name.
use tokio_postgres::types::Type;

use super::{
    Param,
    connection::{Connection, Connector},
    direct::told_process,
    failure::{Effect, failure, timed_out},
};
use crate::port::{PortError, PortErrorKind, within};

/// The properties of a server that promises depend on.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Server {
    /// Acknowledged commits are on the server's disk.
    pub(crate) is_durable: bool,
    /// The session is the connection's own: no pooler is between. It has settings then that keep
    /// the plans of prepared statements, which are made while the tables are small, good for large
    /// ones.
    pub(crate) is_direct: bool,
}

/// The oldest supported version, as `server_version_num` has it.
const OLDEST: i32 = 130_000;

const INSPECT: &str = "SELECT current_setting('server_version_num')::int4, current_setting('server_version'),
    pg_is_in_recovery(), current_setting('transaction_read_only') = 'on',
    current_setting('synchronous_commit') <> 'off' AND current_setting('fsync') = 'on',
    current_setting('default_transaction_isolation'), coalesce(pg_backend_pid() = $1, false),
    CASE WHEN pg_backend_pid() = $1 THEN (
        SELECT count(set_config(name, setting, false)) FROM (VALUES ('plan_cache_mode', 'force_generic_plan'),
            ('enable_seqscan', 'off'), ('enable_bitmapscan', 'off'), ('enable_sort', 'off'), ('jit', 'off'))
            AS settings (name, setting)) END";

/// Reads the properties of the server behind a new connection, and refuses one that cannot keep the
/// contracts.
pub(crate) async fn inspect(connection: &Connection, connector: &Connector) -> Result<Server, PortError> {
    let place = &connector.place;
    let told = told_process(&connection.client).await;
    let params: [Param<'_>; 1] = [(&told, Type::INT4)];
    let answer = within(&connector.clock, connector.limit(), connection.client.query_typed(INSPECT, &params)).await;
    let rows = answer
        .ok_or_else(|| timed_out(place, "the first request", connector.limit()))?
        .map_err(|error| failure(place, error, Effect::Read))?;
    let facts = rows.first().ok_or_else(|| refuse(PortErrorKind::Other, place, "no answer to the first request"))?;
    let read = || -> Result<_, tokio_postgres::Error> {
        Ok((
            facts.try_get::<_, i32>(0)?,
            facts.try_get::<_, String>(1)?,
            facts.try_get::<_, bool>(2)?,
            facts.try_get::<_, bool>(3)?,
            facts.try_get::<_, bool>(4)?,
            facts.try_get::<_, String>(5)?,
            facts.try_get::<_, bool>(6)?,
        ))
    };
    let (number, version, is_standby, is_read_only, is_durable, isolation, is_direct) =
        read().map_err(|error| failure(place, error, Effect::Read))?;
    if number < OLDEST {
        let what = format!("the server's version is {version}: upgrade it to 13 or later");
        return Err(refuse(PortErrorKind::Unsupported, place, &what));
    }
    if is_standby {
        let what = "the server is a standby, which is read-only: connect to the primary, or add \
                    `target_session_attrs=read-write` and both hosts to `url`";
        return Err(refuse(PortErrorKind::Unavailable, place, what));
    }
    if is_read_only {
        let what = "transactions are read-only: set `default_transaction_read_only = off` for this user and database";
        return Err(refuse(PortErrorKind::Denied, place, what));
    }
    if isolation != "read committed" {
        let what = format!(
            "`default_transaction_isolation` is {isolation:?}: set it to 'read committed' for this user and database"
        );
        return Err(refuse(PortErrorKind::Unsupported, place, &what));
    }
    Ok(Server { is_durable, is_direct })
}

impl Server {
    /// Refuses a server that promises less than the one on which the handle stated its
    /// capabilities.
    pub(crate) fn check_against(&self, first: &Self, place: &str) -> Result<(), PortError> {
        if first.is_durable && !self.is_durable {
            let what = "`synchronous_commit` or `fsync` was switched off while the handle states `Durable`: switch it \
                        on, or connect anew";
            return Err(refuse(PortErrorKind::Denied, place, what));
        }
        Ok(())
    }
}

fn refuse(kind: PortErrorKind, place: &str, what: &str) -> PortError {
    PortError::new(kind, format!("postgres: {place}: {what}"))
}
