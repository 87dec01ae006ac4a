//! The schema: its version, its creation, and the check of rights.
use std::time::Duration;

use tokio_postgres::types::Type;

use super::{
    PostgresConfig,
    lease::schema::LEASE,
    link::Effect,
    link::Link,
    queue::schema::{QUEUE, SOUND},
    store::schema::STORE,
};
use crate::port::{PortError, PortErrorKind};

/// Version of the tables and functions. A handle refuses a schema with a higher one, and so does
/// each of its later requests.
pub(crate) const VERSION: i32 = 4;

/// A migration may wait for another one, and for the locks of running requests.
const MIGRATION: Duration = Duration::from_secs(60);

const BASE: &str = "
DO $steadfast$ BEGIN
  IF to_regnamespace('{s}') IS NULL THEN CREATE SCHEMA {s}; END IF;
END $steadfast$;
CREATE TABLE IF NOT EXISTS {s}.meta (name text PRIMARY KEY, value int NOT NULL);
DO $steadfast$ BEGIN
  IF EXISTS (SELECT FROM {s}.meta WHERE name = 'version' AND value > {version}) THEN
    RAISE EXCEPTION 'the schema was created by a newer release';
  END IF;
END $steadfast$;
CREATE OR REPLACE FUNCTION {s}.now_us() RETURNS bigint LANGUAGE sql VOLATILE AS
  'SELECT (extract(epoch FROM clock_timestamp()) * 1000000)::bigint';
-- Ends a statement of a handle that the schema, or the queue, is not the one of: `Link::sql` asks in each. It is STABLE,
-- so that the condition is one of the statement and not of each row.
CREATE OR REPLACE FUNCTION {s}.refuse(p_version int, p_queue bigint DEFAULT NULL) RETURNS boolean
LANGUAGE plpgsql STABLE AS $steadfast$
DECLARE
  found int := (SELECT value FROM {s}.meta WHERE name = 'version');
BEGIN
  IF found > p_version THEN
    RAISE EXCEPTION 'a newer release changed the schema to version %', found USING ERRCODE = 'SF001';
  ELSIF found IS NULL THEN
    RAISE EXCEPTION 'the schema has no version' USING ERRCODE = 'SF003';
  END IF;
  RAISE EXCEPTION 'there is no queue number % any more: the schema was made anew', p_queue USING ERRCODE = 'SF002';
END $steadfast$;
";

const VERSIONED: &str = "
INSERT INTO {s}.meta (name, value) VALUES ('version', {version})
  ON CONFLICT (name) DO UPDATE SET value = EXCLUDED.value;
";

/// Returns the statements that create or update the schema, in one transaction.
pub(crate) fn statements(link: &Link) -> String {
    let parts = [BASE, STORE, LEASE, QUEUE, VERSIONED].concat();
    // The lock is that of the transaction, so that it also works behind a pooler.
    let lock = format!("SELECT pg_advisory_xact_lock({});", link.schema_id().cast_signed());
    let parts = parts.replace("{channel}", &link.channels()).replace("{sound}", SOUND);
    format!("BEGIN;\n{lock}\n{}\nCOMMIT;\n", link.sql(&parts).trim())
}

/// Creates or updates the schema, or refuses one that does not fit.
pub(crate) async fn prepare(link: &Link, config: &PostgresConfig) -> Result<(), PortError> {
    let refuse = |kind, what: &str| {
        let message = format!("postgres: {}: the schema {:?} {what}", link.place(), config.schema);
        Err(PortError::new(kind, message))
    };
    let too_new = || refuse(PortErrorKind::TooNew, "was created by a newer release: upgrade this program");
    let found = version(link, config).await?;
    if found.is_none()
        && let Some(table) = foreign_table(link, config).await?
    {
        let what = format!("has a table `{table}` of another program: set `schema` to a name that is free");
        return refuse(PortErrorKind::Invalid, &what);
    }
    match found {
        Some(found) if found > VERSION => return too_new(),
        Some(VERSION) => {
            if let Some(lost) = lost_table(link, config).await? {
                let what = format!("lacks `{lost}`, which was dropped: restore it, or drop the schema to begin anew");
                return refuse(PortErrorKind::Corrupt, &what);
            }
        }
        _ if config.migrate => {
            if let Err(error) = migrate(link).await {
                // A newer release may have migrated while this one waited for the lock.
                let found = version(link, config).await;
                return if found.is_ok_and(|found| found > Some(VERSION)) { too_new() } else { Err(error) };
            }
        }
        found => {
            let what = if found.is_some() { "is of an older release" } else { "does not exist, or is not readable" };
            let what = format!("{what}, and `migrate` is off: run the statements of `Postgres::statements`");
            return refuse(PortErrorKind::Invalid, &what);
        }
    }
    match missing_right(link, config).await? {
        Some(right) => refuse(PortErrorKind::Denied, &format!("needs the right {right} for this user: grant it")),
        None => Ok(()),
    }
}

/// Returns the version of the schema, or `None` if it does not exist.
async fn version(link: &Link, config: &PostgresConfig) -> Result<Option<i32>, PortError> {
    let exists = "SELECT 1 FROM pg_catalog.pg_class c JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace
        JOIN pg_catalog.pg_attribute a ON a.attrelid = c.oid AND a.attname = 'value' AND a.atttypid = 'int4'::regtype
        WHERE n.nspname = $1 AND c.relname = 'meta'";
    if link.query(Effect::Read, exists, &[(&config.schema, Type::TEXT)]).await?.is_empty() {
        return Ok(None);
    }
    let version = link.sql("SELECT value FROM {s}.meta WHERE name = 'version'");
    let rows = link.query(Effect::Read, &version, &[]).await?;
    rows.first().map(|row| link.column(row, 0)).transpose()
}

/// Returns the names of the tables and sequences.
fn tables() -> Vec<&'static str> {
    let parts = [BASE, STORE, LEASE, QUEUE].into_iter();
    let names = parts.flat_map(|part| part.split("IF NOT EXISTS {s}.").skip(1));
    names.filter_map(|rest| rest.split([' ', ';']).next()).collect()
}

/// Returns a table or sequence that is missing in a schema that had it.
async fn lost_table(link: &Link, config: &PostgresConfig) -> Result<Option<String>, PortError> {
    let lost = "SELECT name FROM unnest($2) AS name WHERE NOT EXISTS (
            SELECT FROM pg_catalog.pg_class c JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace
            WHERE n.nspname = $1 AND c.relname = name)
        ORDER BY 1 LIMIT 1";
    let params: [super::link::Param<'_>; 2] = [(&config.schema, Type::TEXT), (&tables(), Type::TEXT_ARRAY)];
    let rows = link.query(Effect::Read, lost, &params).await?;
    rows.first().map(|row| link.column(row, 0)).transpose()
}

/// Returns a table or sequence that another program has in the schema under a name of ours.
async fn foreign_table(link: &Link, config: &PostgresConfig) -> Result<Option<String>, PortError> {
    let names = tables();
    let found = "SELECT c.relname::text FROM pg_catalog.pg_class c
        JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace
        WHERE n.nspname = $1 AND c.relname = ANY ($2) ORDER BY 1 LIMIT 1";
    let params: [super::link::Param<'_>; 2] = [(&config.schema, Type::TEXT), (&names, Type::TEXT_ARRAY)];
    let rows = link.query(Effect::Read, found, &params).await?;
    let Some(row) = rows.first() else { return Ok(None) };
    // Another process may have made ours meanwhile.
    if version(link, config).await?.is_some() { Ok(None) } else { link.column(row, 0).map(Some) }
}

async fn migrate(link: &Link) -> Result<(), PortError> {
    let migrated = link.run(&statements(link), MIGRATION).await;
    migrated.map_err(|error| match error.kind() {
        PortErrorKind::Denied => {
            let message =
                format!("{error}: or set `migrate = false`, and let an administrator run `Postgres::statements`");
            PortError::new(PortErrorKind::Denied, message)
        }
        _ => error,
    })
}

/// Returns a right that this user lacks, and its table or sequence.
async fn missing_right(link: &Link, config: &PostgresConfig) -> Result<Option<String>, PortError> {
    let lacking = "SELECT format('%s on %I', want.priv, c.relname)
        FROM pg_catalog.pg_class c JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace
        JOIN (VALUES ('r', 'SELECT'), ('r', 'INSERT'), ('r', 'UPDATE'), ('r', 'DELETE'),
            ('S', 'USAGE'), ('S', 'SELECT'), ('S', 'UPDATE')) AS want (kind, priv) ON c.relkind::text = want.kind
        WHERE n.nspname = $1 AND c.relname <> 'meta' AND NOT CASE c.relkind WHEN 'S'
            THEN has_sequence_privilege(c.oid, want.priv) ELSE has_table_privilege(c.oid, want.priv) END
        ORDER BY 1 LIMIT 1";
    let rows = link.query(Effect::Read, lacking, &[(&config.schema, Type::TEXT)]).await?;
    rows.first().map(|row| link.column(row, 0)).transpose()
}
