//! Tables and functions of the store.

/// The statements that create them. `{s}` stands for the schema, `{class}` for the class of its
/// advisory locks.
///
/// `store_write` applies several jobs, each all or none. Each write locks its key first, by an
/// advisory lock on one of a fixed number of stripes, so that also absent keys can be locked and a
/// version is taken only then. Jobs whose locks are taken are returned as busy (status 9), and sent
/// again alone with `waits`, so that no job waits for the locks of another one.
///
/// A job of eight writes and more that breaks no precondition is applied by two statements on all
/// of them, which cost less than statements on each: 500 puts take about half of the time. Their
/// plans are made once and kept, so scans of tables are off: a table may have been small then.
///
/// `store_put` is the same for one put without a token, to a row that cannot belong to a sequence.
/// It returns the version, -1 if it is busy, and null if the precondition fails: `store_write` then
/// tells why. `store_puts` is that for several puts, and inserts nothing with a precondition.
///
/// | status | meaning | `number` |
/// |---|---|---|
/// | 0 | applied | version, number of the append, 1 for a deleted record; null for a check |
/// | 1 | conflict | current version or last number, null for none |
/// | 2 | stale token | the highest token |
/// | 3 | a put would create a row of a sequence | |
/// | 4 | a put's row blocks the first append; `blocking` is its key | |
/// | 5 | the sequence is full | |
/// | 9 | busy | |
pub(crate) const STORE: &str = "
CREATE SEQUENCE IF NOT EXISTS {s}.versions;
CREATE TABLE IF NOT EXISTS {s}.records (
  part bytea NOT NULL, key bytea NOT NULL, value bytea NOT NULL, version bigint NOT NULL, ends bigint,
  PRIMARY KEY (part, key)) WITH (fillfactor = 90);
CREATE INDEX IF NOT EXISTS records_ends ON {s}.records (ends) WHERE ends IS NOT NULL;
CREATE TABLE IF NOT EXISTS {s}.fences (
  part bytea NOT NULL, key bytea NOT NULL, token bigint NOT NULL, PRIMARY KEY (part, key));
CREATE TABLE IF NOT EXISTS {s}.sequences (
  part bytea NOT NULL, name bytea NOT NULL, last bigint NOT NULL, PRIMARY KEY (part, name));

CREATE OR REPLACE FUNCTION {s}.store_write(
  waits boolean, lock_jobs int[], lock_stripes int[], job_ends int[], kinds int[], parts bytea[], keys bytea[], vals bytea[],
  whens bigint[], ttls bigint[], tokens bigint[], names bytea[],
  OUT job int, OUT write int, OUT status int, OUT number bigint, OUT blocking bytea)
RETURNS SETOF record LANGUAGE plpgsql VOLATILE SET enable_seqscan = off SET plan_cache_mode = force_generic_plan SET jit = off AS $steadfast$
DECLARE
  now bigint; busy int[] := '{}'; first int := 1; final int; i int; v bigint; refused boolean; seen bytea[];
BEGIN
  IF waits THEN
    PERFORM pg_advisory_xact_lock({class}, s) FROM unnest(lock_stripes) AS s;
  ELSE
    FOR i IN 1 .. cardinality(lock_jobs) LOOP
      IF NOT pg_try_advisory_xact_lock({class}, lock_stripes[i]) THEN busy := busy || lock_jobs[i]; END IF;
    END LOOP;
  END IF;
  now := {s}.now_us();
  FOR j IN 1 .. cardinality(job_ends) LOOP
    job := j - 1; final := job_ends[j]; refused := false; blocking := NULL; seen := '{}';
    IF job = ANY (busy) THEN
      write := 0; status := 9; number := NULL; RETURN NEXT;
      first := final + 1;
      CONTINUE;
    END IF;
    IF final - first >= 7 THEN
      -- Nothing forbids what this returns true for. All others are judged below, a write at a time.
      PERFORM FROM generate_series(first, final) AS n WHERE tokens[n] IS NOT NULL OR CASE
        WHEN kinds[n] = 2 THEN (
          SELECT whens[n] <> coalesce(max(q.last), 0) OR max(q.last) > 9223372036854775807 - (final - first + 1)
            OR max(q.last) IS NULL AND EXISTS (SELECT FROM {s}.records r WHERE r.part = parts[n]
              AND r.key BETWEEN keys[n] || '00000000000000000000'::bytea AND keys[n] || '99999999999999999999'::bytea)
          FROM {s}.sequences q WHERE q.part = parts[n] AND q.name = keys[n])
        WHEN whens[n] IS NULL AND names[n] IS NULL THEN false
        ELSE (
          SELECT CASE whens[n] WHEN -1 THEN max(r.version) IS NOT NULL
              ELSE whens[n] IS NOT NULL AND max(r.version) IS DISTINCT FROM whens[n] END
            OR names[n] IS NOT NULL AND max(r.version) IS NULL
          FROM {s}.records r WHERE r.part = parts[n] AND r.key = keys[n] AND (r.ends IS NULL OR r.ends > now))
        END LIMIT 1;
      IF NOT FOUND THEN
        RETURN QUERY WITH appends AS MATERIALIZED (
            SELECT n, keys[n] AS seq, row_number() OVER (PARTITION BY keys[n] ORDER BY n) AS nth,
              count(*) OVER (PARTITION BY keys[n]) AS many
            FROM generate_series(first, final) AS n WHERE kinds[n] = 2),
          counted AS (
            INSERT INTO {s}.sequences AS q (part, name, last) SELECT parts[first], seq, many FROM appends WHERE nth = 1
              ON CONFLICT (part, name) DO UPDATE SET last = q.last + EXCLUDED.last RETURNING q.name, q.last),
          numbered AS MATERIALIZED (
            SELECT a.n, a.seq, c.last - a.many + a.nth AS num FROM appends a JOIN counted c ON c.name = a.seq),
          appended AS (
            INSERT INTO {s}.records (part, key, value, version)
              SELECT parts[first], a.seq || convert_to(lpad(a.num::text, 20, '0'), 'UTF8'), vals[a.n], a.num FROM numbered a),
          replaced AS (
            INSERT INTO {s}.records AS r (part, key, value, version, ends)
              SELECT parts[first], keys[n], vals[n], nextval('{s}.versions'), now + ttls[n]
              FROM generate_series(first, final) AS n WHERE kinds[n] = 0
              ON CONFLICT (part, key) DO UPDATE SET value = EXCLUDED.value, ends = EXCLUDED.ends,
                version = greatest(EXCLUDED.version, r.version + 1)
              RETURNING r.key, r.version),
          deleted AS (
            DELETE FROM {s}.records r WHERE r.part = parts[first]
              AND r.key = ANY (ARRAY(SELECT keys[n] FROM generate_series(first, final) AS n WHERE kinds[n] = 1))
              RETURNING r.key, (r.ends IS NULL OR r.ends > now)::int AS was)
          SELECT j - 1, n - first, 0, coalesce(a.num, p.version, d.was), NULL::bytea
          FROM generate_series(first, final) AS n LEFT JOIN numbered a USING (n)
            LEFT JOIN replaced p ON kinds[n] = 0 AND p.key = keys[n] LEFT JOIN deleted d ON kinds[n] = 1 AND d.key = keys[n]
          ORDER BY n;
        first := final + 1;
        CONTINUE;
      END IF;
    END IF;
    FOR i IN first .. final LOOP
      status := 0; number := NULL;
      IF tokens[i] IS NOT NULL THEN
        SELECT f.token INTO v FROM {s}.fences f WHERE f.part = parts[i] AND f.key = keys[i];
        IF v > tokens[i] THEN status := 2; number := v; END IF;
      END IF;
      IF status = 0 AND kinds[i] = 2 AND NOT keys[i] = ANY (seen) THEN
        seen := seen || keys[i];
        SELECT q.last INTO v FROM {s}.sequences q WHERE q.part = parts[i] AND q.name = keys[i];
        v := coalesce(v, 0);
        IF whens[i] <> v THEN
          status := 1; number := nullif(v, 0);
        ELSIF v > 9223372036854775807 - (final - first + 1) THEN
          status := 5;
        ELSIF v = 0 THEN
          DELETE FROM {s}.records r WHERE r.part = parts[i] AND r.ends <= now
            AND r.key BETWEEN keys[i] || '00000000000000000000'::bytea AND keys[i] || '99999999999999999999'::bytea
            AND encode(substring(r.key FROM length(keys[i]) + 1), 'escape') ~ '^[0-9]{20}$';
          SELECT r.key INTO blocking FROM {s}.records r WHERE r.part = parts[i]
            AND r.key BETWEEN keys[i] || '00000000000000000000'::bytea AND keys[i] || '99999999999999999999'::bytea
            AND encode(substring(r.key FROM length(keys[i]) + 1), 'escape') ~ '^[0-9]{20}$' LIMIT 1;
          IF FOUND THEN status := 4; END IF;
        END IF;
      ELSIF status = 0 AND kinds[i] <> 2 AND (whens[i] IS NOT NULL OR names[i] IS NOT NULL) THEN
        SELECT r.version INTO v FROM {s}.records r
          WHERE r.part = parts[i] AND r.key = keys[i] AND (r.ends IS NULL OR r.ends > now);
        IF (CASE whens[i] WHEN -1 THEN v IS NOT NULL ELSE whens[i] IS NOT NULL AND v IS DISTINCT FROM whens[i] END) THEN
          status := 1; number := v;
        ELSIF v IS NULL AND names[i] IS NOT NULL AND EXISTS (
          SELECT FROM {s}.sequences q WHERE q.part = parts[i] AND q.name = names[i]) THEN
          status := 3;
        END IF;
      END IF;
      IF status <> 0 THEN
        write := i - first; refused := true; RETURN NEXT;
        EXIT;
      END IF;
    END LOOP;
    IF NOT refused THEN
      FOR i IN first .. final LOOP
        write := i - first; number := NULL;
        IF tokens[i] IS NOT NULL THEN
          INSERT INTO {s}.fences AS f (part, key, token) VALUES (parts[i], keys[i], tokens[i])
            ON CONFLICT (part, key) DO UPDATE SET token = EXCLUDED.token WHERE f.token < EXCLUDED.token;
        END IF;
        IF kinds[i] = 0 THEN
          INSERT INTO {s}.records AS r (part, key, value, version, ends)
            VALUES (parts[i], keys[i], vals[i], nextval('{s}.versions'), now + ttls[i])
            ON CONFLICT (part, key) DO UPDATE SET value = EXCLUDED.value, ends = EXCLUDED.ends,
              version = greatest(EXCLUDED.version, r.version + 1)
            RETURNING r.version INTO number;
        ELSIF kinds[i] = 1 THEN
          DELETE FROM {s}.records r WHERE r.part = parts[i] AND r.key = keys[i]
            RETURNING (r.ends IS NULL OR r.ends > now)::int INTO number;
        ELSIF kinds[i] = 2 THEN
          INSERT INTO {s}.sequences AS q (part, name, last) VALUES (parts[i], keys[i], 1)
            ON CONFLICT (part, name) DO UPDATE SET last = q.last + 1 RETURNING q.last INTO number;
          INSERT INTO {s}.records (part, key, value, version)
            VALUES (parts[i], keys[i] || convert_to(lpad(number::text, 20, '0'), 'UTF8'), vals[i], number);
        END IF;
        RETURN NEXT;
      END LOOP;
    END IF;
    first := final + 1;
  END LOOP;
END $steadfast$;

CREATE OR REPLACE FUNCTION {s}.store_put(
  stripe int, in_part bytea, in_key bytea, in_value bytea, wanted bigint, ttl bigint)
RETURNS bigint LANGUAGE plpgsql VOLATILE AS $steadfast$
DECLARE v bigint; until bigint;
BEGIN
  IF NOT pg_try_advisory_xact_lock({class}, stripe) THEN RETURN -1; END IF;
  IF ttl IS NOT NULL THEN until := {s}.now_us() + ttl; END IF;
  IF wanted IS NULL THEN
    INSERT INTO {s}.records AS r (part, key, value, version, ends)
      VALUES (in_part, in_key, in_value, nextval('{s}.versions'), until)
      ON CONFLICT (part, key) DO UPDATE SET value = EXCLUDED.value, ends = EXCLUDED.ends,
        version = greatest(EXCLUDED.version, r.version + 1)
      RETURNING r.version INTO v;
  ELSIF wanted = -1 THEN
    INSERT INTO {s}.records AS r (part, key, value, version, ends)
      VALUES (in_part, in_key, in_value, nextval('{s}.versions'), until)
      ON CONFLICT (part, key) DO UPDATE SET value = EXCLUDED.value, ends = EXCLUDED.ends,
        version = greatest(EXCLUDED.version, r.version + 1) WHERE r.ends <= {s}.now_us()
      RETURNING r.version INTO v;
  ELSE
    UPDATE {s}.records r SET value = in_value, ends = until, version = greatest(nextval('{s}.versions'), r.version + 1)
      WHERE r.part = in_part AND r.key = in_key AND r.version = wanted AND (r.ends IS NULL OR r.ends > {s}.now_us())
      RETURNING r.version INTO v;
  END IF;
  RETURN v;
END $steadfast$;

CREATE OR REPLACE FUNCTION {s}.store_puts(
  stripes int[], parts bytea[], keys bytea[], vals bytea[], wanted bigint[], ttls bigint[])
RETURNS bigint[] LANGUAGE plpgsql VOLATILE AS $steadfast$
DECLARE now bigint; v bigint; done bigint[] := array_fill(NULL::bigint, ARRAY[cardinality(stripes)]);
BEGIN
  -- A row at a time: a statement on all of them may be planned as a scan of the table, while that is small.
  FOR i IN 1 .. cardinality(stripes) LOOP
    IF NOT pg_try_advisory_xact_lock({class}, stripes[i]) THEN
      done[i] := -1;
      CONTINUE;
    END IF;
    now := {s}.now_us();
    UPDATE {s}.records r SET value = vals[i], ends = now + ttls[i],
        version = greatest(nextval('{s}.versions'), r.version + 1)
      WHERE r.part = parts[i] AND r.key = keys[i]
        AND (wanted[i] IS NULL OR r.version = wanted[i] AND (r.ends IS NULL OR r.ends > now))
      RETURNING r.version INTO v;
    IF NOT FOUND AND wanted[i] IS NULL THEN
      INSERT INTO {s}.records AS r (part, key, value, version, ends)
        VALUES (parts[i], keys[i], vals[i], nextval('{s}.versions'), now + ttls[i])
        ON CONFLICT (part, key) DO UPDATE SET value = EXCLUDED.value, ends = EXCLUDED.ends,
          version = greatest(EXCLUDED.version, r.version + 1)
        RETURNING r.version INTO v;
    END IF;
    done[i] := v;
  END LOOP;
  RETURN done;
END $steadfast$;

CREATE OR REPLACE FUNCTION {s}.store_sweep(most int) RETURNS int LANGUAGE plpgsql VOLATILE AS $steadfast$
DECLARE swept int;
BEGIN
  DELETE FROM {s}.records WHERE ctid = ANY (ARRAY(
    SELECT r.ctid FROM {s}.records r WHERE r.ends <= {s}.now_us() ORDER BY r.ends LIMIT most FOR UPDATE SKIP LOCKED));
  GET DIAGNOSTICS swept = ROW_COUNT;
  RETURN swept;
END $steadfast$;
";
