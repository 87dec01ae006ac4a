-- Queues. `{s}` stands for the schema, times are microseconds since 1970 by the server's clock.
--
-- The function of a client that keeps no state at the server finds a message in one of two orders:
--   visible_at = 0          ready since it was sent: by `messages_ready`, in the order of sending
--   visible_at = some time  hidden until then, or returned at that time: by `messages_hidden`
--   visible_at = 2^63 - 1   behind another message of its group: in neither
--   visible_at = -1         set aside, because it was damaged by hand: in neither
-- Only `queue_send` makes a message ready, with a new id; one that returns has a time. So the live entries of both
-- indexes only ever move upwards, and a receiver that remembers a mark below them skips the dead entries that a long
-- transaction keeps. `queue_marks` says when a mark is safe.
--
-- The plans of these functions are made while the tables are small, and stay when they grow. So each scan has one index
-- that fits: those of one order are on the expression `-queue`, which the primary key does not have, and rows are
-- locked one by one and then changed by their places (`ctid`). The settings of the functions leave no other plan; they
-- raise the estimates of others, by which the server would compile a plan (`jit`).

CREATE TABLE IF NOT EXISTS {s}.queues (
    id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    name bytea NOT NULL UNIQUE,
    tag text NOT NULL UNIQUE DEFAULT replace(gen_random_uuid()::text, '-', ''));
-- The numbers begin at the time, so that a schema that is dropped and made again gives none twice: a handle that is
-- connected still has the old ones.
DO $$ BEGIN
    IF NOT EXISTS (SELECT FROM {s}.queues) THEN
        PERFORM setval(pg_get_serial_sequence('{s}.queues', 'id'), {s}.now_us());
    END IF;
END $$;

-- Dead letters have the negative number of their queue. `receipt` is the number of the delivery that may settle the
-- message, 0 for none: if it is not 0 at the next delivery, that earlier one expired. `expiries` counts these below
-- 65536, and above that twice those whose handling had begun, plus 1 while that of the current delivery has.
CREATE TABLE IF NOT EXISTS {s}.messages (
    queue bigint NOT NULL,
    id bigint NOT NULL,
    visible_at bigint NOT NULL,
    due bigint NOT NULL,
    accepted_at bigint NOT NULL,
    receipt integer NOT NULL DEFAULT 0,
    deliveries integer NOT NULL DEFAULT 0,
    attempts integer NOT NULL DEFAULT 0,
    expiries integer NOT NULL DEFAULT 0,
    size integer NOT NULL,
    body bytea NOT NULL,
    headers bytea,
    grp bytea,
    reason bytea,
    errors bytea[],
    PRIMARY KEY (queue, id))
WITH (autovacuum_vacuum_scale_factor = 0.02, autovacuum_vacuum_insert_scale_factor = 1);
-- Bodies are not compressed, which would cost more time than the disk saves.
ALTER TABLE {s}.messages ALTER COLUMN body SET STORAGE EXTERNAL;
CREATE INDEX IF NOT EXISTS messages_ready ON {s}.messages ((-queue), id) WHERE visible_at = 0;
CREATE INDEX IF NOT EXISTS messages_hidden ON {s}.messages ((-queue), visible_at)
    WHERE visible_at > 0 AND visible_at < 9223372036854775807;
CREATE INDEX IF NOT EXISTS messages_by_group ON {s}.messages ((-queue), grp, id) WHERE grp IS NOT NULL;

CREATE TABLE IF NOT EXISTS {s}.message_groups (queue bigint NOT NULL, key bytea NOT NULL, PRIMARY KEY (queue, key));

CREATE TABLE IF NOT EXISTS {s}.sent (
    queue bigint NOT NULL,
    deduplication bytea NOT NULL,
    message bigint NOT NULL,
    ends bigint NOT NULL,
    PRIMARY KEY (queue, deduplication));
CREATE INDEX IF NOT EXISTS sent_by_end ON {s}.sent (ends);

CREATE SEQUENCE IF NOT EXISTS {s}.message_ids;
CREATE SEQUENCE IF NOT EXISTS {s}.queue_era;
CREATE SEQUENCE IF NOT EXISTS {s}.queue_clock;

-- Returns the time, and begins a new epoch if the clock was set back behind a mark. The lock comes first: `queue_marks`
-- relies on it. It is that of any write.
CREATE OR REPLACE FUNCTION {s}.queue_now() RETURNS bigint LANGUAGE plpgsql AS $$
DECLARE
    now_us bigint;
BEGIN
    LOCK TABLE {s}.messages IN ROW EXCLUSIVE MODE;
    now_us := {s}.now_us();
    IF now_us < coalesce(pg_sequence_last_value('{s}.queue_clock'::regclass), 0) THEN
        PERFORM nextval('{s}.queue_era');
        PERFORM setval('{s}.queue_clock', now_us);
    END IF;
    RETURN now_us;
END $$;

-- Emptied by the server after each crash, also of a single backend: what it had not written to its log by then is gone,
-- and ids may be given again.
CREATE UNLOGGED TABLE IF NOT EXISTS {s}.queue_life (began bigint NOT NULL);

-- Marks hold for one epoch: until the server is restarted or recovers, another one is promoted, or the clock goes back.
CREATE OR REPLACE FUNCTION {s}.queue_epoch() RETURNS bigint LANGUAGE plpgsql AS $$
DECLARE
    life bigint := (SELECT max(began) FROM {s}.queue_life);
BEGIN
    IF life IS NULL THEN
        life := {s}.now_us();
        INSERT INTO {s}.queue_life VALUES (life);
    END IF;
    RETURN (extract(epoch FROM pg_postmaster_start_time()) * 1000000)::bigint + life
        + coalesce(pg_sequence_last_value('{s}.queue_era'::regclass), 0);
END $$;

-- Returns the number and the tag of a queue, and creates it if it does not exist.
CREATE OR REPLACE FUNCTION {s}.queue_open(p_name bytea, OUT o_id bigint, OUT o_tag text) LANGUAGE plpgsql AS $$
BEGIN
    SELECT id, tag INTO o_id, o_tag FROM {s}.queues WHERE name = p_name;
    IF o_id IS NULL THEN
        INSERT INTO {s}.queues (name) VALUES (p_name) ON CONFLICT DO NOTHING;
        SELECT id, tag INTO o_id, o_tag FROM {s}.queues WHERE name = p_name;
    END IF;
END $$;

-- Accepts messages, and returns their ids. The row of a group exists while the group has messages; its lock comes
-- before the ids, so that ids of one group grow in the order of the commits. `p_groups` and `p_ids` may be null.
CREATE OR REPLACE FUNCTION {s}.queue_send(
    p_queues bigint[], p_bodies bytea[], p_headers bytea[], p_delays bigint[], p_groups bytea[], p_ids bytea[],
    p_window bigint)
RETURNS bigint[] LANGUAGE plpgsql
SET jit TO off SET enable_seqscan TO off SET plan_cache_mode TO force_generic_plan AS $$
DECLARE
    now_us bigint := {s}.queue_now();
    ids bigint[];
    known bigint[];
    wanted bigint;
    locked bigint;
    new_queues bigint[] := '{}';
    new_groups bytea[] := '{}';
    more_queues bigint[];
    more_groups bytea[];
BEGIN
    IF p_groups IS NULL AND p_ids IS NULL THEN
        WITH made AS (
            INSERT INTO {s}.messages (queue, id, visible_at, due, accepted_at, size, body, headers)
            SELECT u.q, nextval('{s}.message_ids'), CASE WHEN u.delay > 0 THEN now_us + u.delay ELSE 0 END,
                CASE WHEN u.delay > 0 THEN now_us + u.delay ELSE 0 END, now_us,
                octet_length(u.body) + coalesce(octet_length(u.headers), 0), u.body, u.headers
            FROM unnest(p_queues, p_bodies, p_headers, p_delays) u(q, body, headers, delay)
            RETURNING id)
        SELECT array_agg(id ORDER BY id) INTO ids FROM made;
        RETURN ids;
    END IF;
    IF p_groups IS NOT NULL THEN
        SELECT count(DISTINCT (u.q, u.g)) INTO wanted FROM unnest(p_queues, p_groups) u(q, g) WHERE u.g IS NOT NULL;
        LOOP
            WITH made AS (
                INSERT INTO {s}.message_groups (queue, key)
                SELECT DISTINCT u.q, u.g FROM unnest(p_queues, p_groups) u(q, g) WHERE u.g IS NOT NULL ORDER BY 1, 2
                ON CONFLICT DO NOTHING RETURNING queue, key)
            SELECT array_agg(queue), array_agg(key) INTO more_queues, more_groups FROM made;
            new_queues := new_queues || more_queues;
            new_groups := new_groups || more_groups;
            SELECT count(*) INTO locked FROM (
                SELECT DISTINCT u.q, u.g FROM unnest(p_queues, p_groups) u(q, g) WHERE u.g IS NOT NULL ORDER BY 1, 2) w
            CROSS JOIN LATERAL (
                SELECT 1 FROM {s}.message_groups g WHERE g.queue = w.q AND g.key = w.g FOR UPDATE) l;
            EXIT WHEN locked = wanted;
        END LOOP;
    END IF;
    ids := ARRAY(SELECT nextval('{s}.message_ids') FROM generate_series(1, cardinality(p_bodies)));
    IF p_ids IS NOT NULL THEN
        INSERT INTO {s}.sent AS s (queue, deduplication, message, ends)
        SELECT DISTINCT ON (u.q, u.d) u.q, u.d, u.id, now_us + p_window FROM unnest(p_queues, p_ids, ids) u(q, d, id)
        WHERE u.d IS NOT NULL ORDER BY u.q, u.d, u.id
        ON CONFLICT (queue, deduplication) DO UPDATE SET message = excluded.message, ends = excluded.ends
        WHERE s.ends <= now_us;
        known := ARRAY(
            SELECT CASE WHEN s.message <> u.id THEN s.message END
            FROM unnest(p_queues, p_ids, ids) WITH ORDINALITY u(q, d, id, at)
            LEFT JOIN LATERAL (
                SELECT s.message FROM {s}.sent s WHERE s.queue = u.q AND s.deduplication = u.d LIMIT 1) s ON true
            ORDER BY u.at);
    END IF;
    INSERT INTO {s}.messages (queue, id, visible_at, due, accepted_at, size, body, headers, grp)
    SELECT f.q, f.id,
        CASE WHEN f.g IS NOT NULL AND (c.q IS NULL OR f.place > 1) THEN 9223372036854775807 ELSE f.due END,
        f.due, now_us, octet_length(f.body) + coalesce(octet_length(f.headers), 0), f.body, f.headers, f.g
    FROM (
        SELECT u.q, u.id, u.body, u.headers, u.g,
            CASE WHEN u.delay > 0 THEN now_us + u.delay ELSE 0 END AS due,
            CASE WHEN p_groups IS NULL THEN 1 ELSE row_number() OVER (PARTITION BY u.q, u.g ORDER BY u.id) END AS place
        FROM unnest(p_queues, ids, p_bodies, p_headers, p_delays, p_groups, known)
            u(q, id, body, headers, delay, g, known)
        WHERE u.known IS NULL) f
    LEFT JOIN unnest(new_queues, new_groups) c(q, g) ON c.q = f.q AND c.g = f.g
    ORDER BY f.id;
    IF known IS NOT NULL AND cardinality(new_queues) > 0 THEN
        -- A new group all of whose messages are duplicates.
        DELETE FROM {s}.message_groups g USING unnest(new_queues, new_groups) c(q, k)
        WHERE g.queue = c.q AND g.key = c.k AND NOT EXISTS (
            SELECT 1 FROM unnest(p_queues, p_groups, known) u(q, g, known)
            WHERE u.q = c.q AND u.g = c.k AND u.known IS NULL);
    END IF;
    IF known IS NULL THEN
        RETURN ids;
    END IF;
    RETURN ARRAY(SELECT coalesce(u.known, u.id) FROM unnest(known, ids) WITH ORDINALITY u(known, id, at) ORDER BY u.at);
END $$;

-- Forgets some of the de-duplication ids whose window ended after `p_from`.
CREATE OR REPLACE FUNCTION {s}.queue_sweep(p_from bigint) RETURNS bigint LANGUAGE sql
SET jit TO off SET enable_seqscan TO off AS $$
    WITH gone AS (
        SELECT queue, deduplication FROM {s}.sent
        WHERE ends > p_from AND ends <= {s}.now_us()
        ORDER BY ends LIMIT 128 FOR UPDATE SKIP LOCKED),
    deleted AS (
        DELETE FROM {s}.sent s USING gone
        WHERE s.queue = gone.queue AND s.deduplication = gone.deduplication RETURNING s.ends)
    SELECT max(ends) FROM deleted
$$;

-- Moves the marks of a receiver: no message that can be received has an id up to `p_id`, or a time up to `p_at`.
--
-- A mark moves in two calls. The first notes the next one (`p_next_id`, `p_next_at`), and the transactions that write
-- now: a message below it may still be theirs, invisible yet. Later ones cannot write below it: they have taken the
-- table's lock before the id or the time. The second call finds that the noted transactions have ended, and searches
-- once, with a new snapshot, for the lowest message between the marks.
CREATE OR REPLACE FUNCTION {s}.queue_marks(
    p_queue bigint, INOUT p_epoch bigint, INOUT p_id bigint, INOUT p_at bigint,
    INOUT p_next_id bigint, INOUT p_next_at bigint, INOUT p_writers text[])
LANGUAGE plpgsql
SET jit TO off SET enable_seqscan TO off SET enable_bitmapscan TO off SET enable_sort TO off AS $$
DECLARE
    now_us bigint := {s}.queue_now();
    epoch bigint := {s}.queue_epoch();
    low bigint;
BEGIN
    IF NOT pg_try_advisory_xact_lock(1937007974, '{s}.queue_clock'::regclass::oid::integer) THEN
        RETURN;
    END IF;
    IF p_epoch <> epoch THEN
        p_epoch := epoch;
        -- Below all ids, also those that are damaged.
        p_id := -9223372036854775808;
        p_at := 0;
        p_writers := NULL;
    ELSIF p_writers IS NOT NULL THEN
        IF EXISTS (
            SELECT 1 FROM pg_locks WHERE locktype = 'relation' AND relation = '{s}.messages'::regclass
            AND mode = 'RowExclusiveLock' AND virtualtransaction = ANY (p_writers)) THEN
            RETURN;
        END IF;
        SELECT id INTO low FROM {s}.messages
        WHERE -queue = -p_queue AND visible_at = 0 AND id > p_id AND id <= p_next_id ORDER BY id LIMIT 1;
        p_id := coalesce(low - 1, p_next_id);
        SELECT visible_at INTO low FROM {s}.messages
        WHERE -queue = -p_queue AND visible_at > 0 AND visible_at < 9223372036854775807 AND visible_at > p_at
        AND visible_at <= p_next_at ORDER BY visible_at LIMIT 1;
        p_at := coalesce(low - 1, p_next_at);
    END IF;
    p_next_id := coalesce(pg_sequence_last_value('{s}.message_ids'::regclass), 0);
    p_next_at := now_us;
    IF now_us > coalesce(pg_sequence_last_value('{s}.queue_clock'::regclass), 0) THEN
        PERFORM setval('{s}.queue_clock', now_us);
    END IF;
    p_writers := ARRAY(
        SELECT virtualtransaction FROM pg_locks WHERE locktype = 'relation'
        AND relation = '{s}.messages'::regclass AND mode = 'RowExclusiveLock'
        AND pid IS DISTINCT FROM pg_backend_pid());
END $$;

-- Delivers up to `p_max` messages of together `p_bytes`, at least one. If there is none, returns one row without id,
-- whose age is the time until the next one, or null. For sessions that have the settings of `queue_deliver_pooled`
-- already: to make them costs as much as the rest. A message that is not sound is set aside, and has a row without a
-- body.
CREATE OR REPLACE FUNCTION {s}.queue_deliver(
    p_queue bigint, p_max integer, p_visibility bigint, p_bytes bigint, p_epoch bigint, p_id bigint, p_at bigint)
RETURNS TABLE (
    id bigint, age bigint, accepted_at bigint, deliveries integer, attempts integer, expiries integer,
    body bytea, headers bytea, grp bytea, reason bytea, errors bytea[])
LANGUAGE plpgsql AS $$
#variable_conflict use_column
DECLARE
    now_us bigint := {s}.queue_now();
    taken tid[];
    sizes integer[];
    most integer := p_max;
    next_at bigint;
    damaged tid[];
    aside bigint[];
    ended_groups bytea[];
    ended_ids bigint[];
BEGIN
    IF p_epoch <> {s}.queue_epoch() THEN
        p_id := -9223372036854775808;
        p_at := 0;
    END IF;
    -- Of several, half may be messages that come back, while others wait.
    IF p_max > 1 AND EXISTS (
        SELECT 1 FROM {s}.messages m WHERE -m.queue = -p_queue AND m.visible_at = 0 AND m.id > p_id) THEN
        most := p_max / 2;
    END IF;
    -- No row is locked that is not taken: each is read when the one before it did not suffice.
    SELECT array_agg(l.tid) FILTER (WHERE l.sound), array_agg(l.size) FILTER (WHERE l.sound),
        array_agg(l.tid) FILTER (WHERE NOT l.sound)
    INTO taken, sizes, damaged FROM (
        SELECT h.tid, h.size, h.sound FROM (
            SELECT m.ctid AS tid, m.size, {sound} AS sound FROM {s}.messages m
            WHERE -m.queue = -p_queue AND m.visible_at > 0 AND m.visible_at < 9223372036854775807
            AND m.visible_at > p_at AND m.visible_at <= now_us
            ORDER BY m.visible_at LIMIT most FOR UPDATE SKIP LOCKED) h
        UNION ALL SELECT r.tid, r.size, r.sound FROM (
            SELECT m.ctid AS tid, m.size, {sound} AS sound FROM {s}.messages m
            WHERE -m.queue = -p_queue AND m.visible_at = 0 AND m.id > p_id
            ORDER BY m.id FOR UPDATE SKIP LOCKED) r
        LIMIT p_max) l;
    IF damaged IS NOT NULL THEN
        WITH gone AS (
            UPDATE {s}.messages m SET visible_at = -1 WHERE m.ctid = ANY (damaged) RETURNING m.id, m.grp)
        SELECT array_agg(g.id), array_agg(g.grp) FILTER (WHERE g.grp IS NOT NULL),
            array_agg(g.id) FILTER (WHERE g.grp IS NOT NULL)
        INTO aside, ended_groups, ended_ids FROM gone g;
        -- All groups at once: they are locked in the order in which a send locks them.
        IF ended_groups IS NOT NULL THEN
            PERFORM {s}.queue_next_of_groups(p_queue, ended_groups, ended_ids, now_us);
        END IF;
        RETURN QUERY SELECT u.id, 0::bigint, 0::bigint, 0, 0, 0, NULL::bytea, NULL::bytea, NULL::bytea,
            NULL::bytea, NULL::bytea[]
        FROM unnest(aside) u(id);
        -- Without others: look again.
        next_at := 0;
    END IF;
    IF taken IS NULL THEN
        -- The time until the next message, 0 if another receiver holds one that is visible now.
        IF next_at IS NULL THEN
            SELECT 0 INTO next_at FROM {s}.messages m
            WHERE -m.queue = -p_queue AND m.visible_at = 0 AND m.id > p_id LIMIT 1;
        END IF;
        IF next_at IS NULL THEN
            SELECT greatest(m.visible_at - now_us, 0) INTO next_at FROM {s}.messages m
            WHERE -m.queue = -p_queue AND m.visible_at > 0 AND m.visible_at < 9223372036854775807
            AND m.visible_at > p_at
            ORDER BY m.visible_at LIMIT 1;
        END IF;
        RETURN QUERY SELECT NULL::bigint, next_at, 0::bigint, 0, 0, 0, NULL::bytea, NULL::bytea, NULL::bytea,
            NULL::bytea, NULL::bytea[];
        RETURN;
    END IF;
    IF cardinality(taken) > 1 AND (SELECT sum(s) FROM unnest(sizes) s) > p_bytes THEN
        taken := ARRAY(
            SELECT t.tid FROM (
                SELECT u.tid, u.at, sum(u.size) OVER (ROWS UNBOUNDED PRECEDING) AS total
                FROM unnest(taken, sizes) WITH ORDINALITY u(tid, size, at)) t
            WHERE t.total <= p_bytes OR t.at = 1);
    END IF;
    RETURN QUERY UPDATE {s}.messages m SET
        visible_at = now_us + p_visibility,
        deliveries = m.deliveries + 1,
        receipt = m.deliveries + 1,
        attempts = m.attempts + (m.receipt <> 0)::integer,
        expiries = CASE WHEN m.receipt = 0 THEN m.expiries ELSE
            least((m.expiries >> 16) + (m.expiries >> 16 & 1), 32766) * 65536 + least((m.expiries & 65535) + 1, 65535) END
    WHERE m.ctid = ANY (taken)
    RETURNING m.id, now_us - m.accepted_at, m.accepted_at, m.deliveries, m.attempts, m.expiries, m.body, m.headers,
        m.grp, m.reason, m.errors;
END $$;

-- The same for sessions with other settings, such as those behind a pooler.
CREATE OR REPLACE FUNCTION {s}.queue_deliver_pooled(
    p_queue bigint, p_max integer, p_visibility bigint, p_bytes bigint, p_epoch bigint, p_id bigint, p_at bigint)
RETURNS TABLE (
    id bigint, age bigint, accepted_at bigint, deliveries integer, attempts integer, expiries integer,
    body bytea, headers bytea, grp bytea, reason bytea, errors bytea[])
LANGUAGE plpgsql
SET jit TO off SET enable_seqscan TO off SET enable_bitmapscan TO off SET enable_sort TO off
SET plan_cache_mode TO force_generic_plan AS $$
BEGIN
    RETURN QUERY SELECT * FROM {s}.queue_deliver(p_queue, p_max, p_visibility, p_bytes, p_epoch, p_id, p_at);
END $$;

-- The two under their names of version 1, for handles of that version that stay connected while a newer release
-- migrates. For them `expiries` is a plain count: a crash in it would pass for 131072 expired deliveries.
CREATE OR REPLACE FUNCTION {s}.queue_take(
    p_queue bigint, p_max integer, p_visibility bigint, p_bytes bigint, p_epoch bigint, p_id bigint, p_at bigint)
RETURNS TABLE (
    id bigint, age bigint, accepted_at bigint, deliveries integer, attempts integer, expiries integer,
    body bytea, headers bytea, grp bytea, reason bytea, errors bytea[])
LANGUAGE plpgsql AS $$
BEGIN
    RETURN QUERY SELECT d.id, d.age, d.accepted_at, d.deliveries, d.attempts, d.expiries & 65535, d.body, d.headers,
        d.grp, d.reason, d.errors
    FROM {s}.queue_deliver(p_queue, p_max, p_visibility, p_bytes, p_epoch, p_id, p_at) d;
END $$;

CREATE OR REPLACE FUNCTION {s}.queue_receive(
    p_queue bigint, p_max integer, p_visibility bigint, p_bytes bigint, p_epoch bigint, p_id bigint, p_at bigint)
RETURNS TABLE (
    id bigint, age bigint, accepted_at bigint, deliveries integer, attempts integer, expiries integer,
    body bytea, headers bytea, grp bytea, reason bytea, errors bytea[])
LANGUAGE plpgsql
SET jit TO off SET enable_seqscan TO off SET enable_bitmapscan TO off SET enable_sort TO off
SET plan_cache_mode TO force_generic_plan AS $$
BEGIN
    RETURN QUERY SELECT * FROM {s}.queue_take(p_queue, p_max, p_visibility, p_bytes, p_epoch, p_id, p_at);
END $$;
