//! Tables and functions of leases.

/// The statements that create them. `{s}` stands for the schema.
///
/// A released name keeps its row: a token is taken only once the row is locked, so that the tokens
/// of a name grow.
pub(crate) const LEASE: &str = "
CREATE SEQUENCE IF NOT EXISTS {s}.tokens;
CREATE TABLE IF NOT EXISTS {s}.leases (
  name bytea PRIMARY KEY, holder bytea NOT NULL, token bigint NOT NULL, term bigint NOT NULL, ends bigint NOT NULL,
  requested boolean NOT NULL DEFAULT false) WITH (fillfactor = 50);

CREATE OR REPLACE FUNCTION {s}.lease_acquire(
  wanted bytea, asks bytea, nanos bigint, micros bigint,
  OUT granted boolean, OUT holder bytea, OUT token bigint, OUT term bigint, OUT free_in bigint)
LANGUAGE plpgsql VOLATILE AS $steadfast$
BEGIN
  INSERT INTO {s}.leases AS l (name, holder, token, term, ends)
    VALUES (wanted, asks, nextval('{s}.tokens'), nanos, {s}.now_us() + micros)
    ON CONFLICT (name) DO UPDATE SET holder = EXCLUDED.holder, token = nextval('{s}.tokens'), term = EXCLUDED.term,
      ends = {s}.now_us() + micros, requested = false
    WHERE l.holder = EXCLUDED.holder OR l.ends <= {s}.now_us()
    RETURNING true, l.token INTO granted, token;
  IF NOT FOUND THEN
    granted := false;
    SELECT l.holder, l.token, l.term, greatest(l.ends - {s}.now_us(), 0) INTO holder, token, term, free_in
      FROM {s}.leases l WHERE l.name = wanted;
  END IF;
END $steadfast$;

CREATE OR REPLACE FUNCTION {s}.lease_renew(wanted bytea, asks bytea, held bigint, nanos bigint, micros bigint)
RETURNS boolean LANGUAGE plpgsql VOLATILE AS $steadfast$
DECLARE l {s}.leases;
BEGIN
  SELECT * INTO l FROM {s}.leases WHERE name = wanted FOR UPDATE;
  IF NOT FOUND OR l.holder <> asks OR l.token <> held OR l.ends <= {s}.now_us() THEN RETURN NULL; END IF;
  UPDATE {s}.leases SET ends = {s}.now_us() + micros, term = nanos WHERE name = wanted;
  RETURN l.requested;
END $steadfast$;

CREATE OR REPLACE FUNCTION {s}.lease_release(wanted bytea, asks bytea, held bigint)
RETURNS boolean LANGUAGE plpgsql VOLATILE AS $steadfast$
DECLARE l {s}.leases;
BEGIN
  SELECT * INTO l FROM {s}.leases WHERE name = wanted FOR UPDATE;
  IF NOT FOUND OR l.holder <> asks OR l.token <> held OR l.ends <= {s}.now_us() THEN RETURN false; END IF;
  UPDATE {s}.leases SET ends = 0 WHERE name = wanted;
  RETURN true;
END $steadfast$;
";
