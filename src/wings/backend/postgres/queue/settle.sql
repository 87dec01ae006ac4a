-- Settlements of the queue. `{s}` stands for the schema.

-- Shows the next message of each group whose first one ended, or ends the group. Returns true if it showed one.
CREATE OR REPLACE FUNCTION {s}.queue_next_of_groups(p_queue bigint, p_groups bytea[], p_after bigint[], p_now bigint)
RETURNS boolean LANGUAGE plpgsql
SET jit TO off SET enable_seqscan TO off SET enable_bitmapscan TO off SET enable_sort TO off
SET plan_cache_mode TO force_generic_plan AS $$
DECLARE
    ended record;
    next_id bigint;
    shown boolean := false;
BEGIN
    PERFORM 1 FROM (SELECT DISTINCT u.g FROM unnest(p_groups) u(g) ORDER BY 1) w
    CROSS JOIN LATERAL (SELECT 1 FROM {s}.message_groups g WHERE g.queue = p_queue AND g.key = w.g FOR UPDATE) l;
    FOR ended IN SELECT u.g, max(u.id) AS id FROM unnest(p_groups, p_after) u(g, id) GROUP BY u.g LOOP
        SELECT m.id INTO next_id FROM {s}.messages m
        WHERE -m.queue = -p_queue AND m.grp = ended.g AND m.id > ended.id AND m.visible_at >= 0
        ORDER BY m.id LIMIT 1;
        IF next_id IS NULL THEN
            DELETE FROM {s}.message_groups g WHERE g.queue = p_queue AND g.key = ended.g;
        ELSE
            -- One that is damaged is shown, and set aside by the next delivery.
            UPDATE {s}.messages m SET visible_at =
                CASE WHEN {sound} THEN greatest(m.due, p_now) ELSE p_now END
            WHERE m.queue = p_queue AND m.id = next_id AND m.visible_at = 9223372036854775807;
            shown := true;
        END IF;
    END LOOP;
    RETURN shown;
END $$;

-- Settles and extends messages. Kinds: 0 complete or forward, 1 abandon, 2 release, 3 dead letter, 4 extend, 5 extend
-- and mark as begun, 6 extend and take that mark back. Forwarded
-- messages have the place of their settlement (`p_of`), which is null without any. Returns true for each settlement
-- with a valid receipt, and behind them true if the next message of a group was shown.
CREATE OR REPLACE FUNCTION {s}.queue_settle(
    p_queue bigint, p_ids bigint[], p_receipts integer[], p_kinds smallint[], p_afters bigint[], p_reasons bytea[],
    p_errors bytea[], p_of integer[], p_queues bigint[], p_bodies bytea[], p_headers bytea[], p_delays bigint[],
    p_groups bytea[], p_dedups bytea[], p_window bigint)
RETURNS boolean[] LANGUAGE plpgsql
SET jit TO off SET enable_seqscan TO off SET plan_cache_mode TO force_generic_plan AS $$
DECLARE
    now_us bigint := {s}.queue_now();
    done boolean[];
    tids tid[];
    marks bigint[];
    groups bytea[];
    ended_groups bytea[];
    ended_ids bigint[];
    gone_ids bigint[];
    gone_receipts integer[];
BEGIN
    IF p_of IS NULL AND 0 = ALL (p_kinds) THEN
        -- Most requests complete messages without a group.
        WITH gone AS (
            DELETE FROM {s}.messages m WHERE m.ctid = ANY (ARRAY(
                SELECT l.tid FROM unnest(p_ids, p_receipts) u(id, receipt) CROSS JOIN LATERAL (
                    SELECT m.ctid AS tid FROM {s}.messages m WHERE m.queue = p_queue AND m.id = u.id
                    AND m.receipt = u.receipt AND u.receipt <> 0 AND m.grp IS NULL FOR UPDATE) l))
            RETURNING m.id, m.receipt)
        SELECT array_agg(id), array_agg(receipt) INTO gone_ids, gone_receipts FROM gone;
        IF cardinality(gone_ids) = cardinality(p_ids) THEN
            RETURN array_fill(true, ARRAY[cardinality(p_ids)]) || false;
        END IF;
    END IF;
    -- Locks the messages, so that no receipt ends meanwhile. A settlement is done if its receipt is valid, and no
    -- earlier one of this request ended the delivery.
    WITH found AS MATERIALIZED (
        SELECT l.* FROM (SELECT DISTINCT u.id FROM unnest(p_ids) u(id) ORDER BY 1) w CROSS JOIN LATERAL (
            SELECT m.ctid AS tid, m.id, m.receipt, m.grp FROM {s}.messages m
            WHERE m.queue = p_queue AND m.id = w.id FOR UPDATE) l),
    matched AS (
        SELECT u.at, u.id, u.kind, f.tid, f.grp, f.id IS NOT NULL OR g.id IS NOT NULL AS valid
        FROM unnest(p_ids, p_receipts, p_kinds) WITH ORDINALITY u(id, receipt, kind, at)
        LEFT JOIN found f ON f.id = u.id AND f.receipt = u.receipt AND f.receipt <> 0
        LEFT JOIN unnest(gone_ids, gone_receipts) g(id, receipt) ON g.id = u.id AND g.receipt = u.receipt),
    judged AS (
        SELECT b.*, b.valid AND b.at <= coalesce(b.ends, b.at) AS done FROM (
            SELECT a.*, min(a.at) FILTER (WHERE a.valid AND a.kind < 4) OVER (PARTITION BY a.id) AS ends,
                max(a.at) FILTER (WHERE a.valid) OVER (PARTITION BY a.id) AS latest,
                max(a.at * 8 + a.kind) FILTER (WHERE a.valid AND a.kind > 4) OVER (PARTITION BY a.id) % 8 AS mark
            FROM matched a) b)
    SELECT array_agg(d.done ORDER BY d.at),
        array_agg(CASE WHEN d.done AND d.at = coalesce(d.ends, d.latest) THEN d.tid END ORDER BY d.at),
        array_agg(d.mark ORDER BY d.at),
        array_agg(CASE WHEN d.done THEN d.grp END ORDER BY d.at),
        array_agg(d.grp) FILTER (WHERE d.done AND d.kind IN (0, 3) AND d.grp IS NOT NULL),
        array_agg(d.id) FILTER (WHERE d.done AND d.kind IN (0, 3) AND d.grp IS NOT NULL)
    INTO done, tids, marks, groups, ended_groups, ended_ids FROM judged d;
    IF NOT true = ANY (done) THEN
        RETURN done || false;
    END IF;
    IF ended_groups IS NOT NULL OR p_groups IS NOT NULL THEN
        -- All groups of this request in one order, so that two requests do not wait for each other.
        PERFORM 1 FROM (
            SELECT p_queue AS q, u.g FROM unnest(ended_groups) u(g)
            UNION SELECT -p_queue, u.g FROM unnest(groups, p_kinds) u(g, kind) WHERE u.kind = 3
            UNION SELECT u.q, u.g FROM unnest(p_queues, p_groups) u(q, g) ORDER BY 1, 2) w
        CROSS JOIN LATERAL (SELECT 1 FROM {s}.message_groups g WHERE g.queue = w.q AND g.key = w.g FOR UPDATE) l;
    END IF;
    -- `tids` has the place of the message at the settlement that takes effect on it, and nothing elsewhere; `marks` the
    -- kind of the last settlement of the message that made or took back a mark.
    IF p_kinds && '{4,5,6}' THEN
        UPDATE {s}.messages m SET visible_at = now_us + s.after,
            expiries = CASE s.mark WHEN 5 THEN m.expiries | 65536 WHEN 6 THEN m.expiries & ~65536 ELSE m.expiries END
        FROM unnest(tids, marks, p_kinds, p_afters) s(tid, mark, kind, after) WHERE s.kind >= 4 AND m.ctid = s.tid;
    END IF;
    IF p_kinds && '{1,2}' THEN
        UPDATE {s}.messages m SET visible_at = now_us + s.after, receipt = 0,
            attempts = CASE WHEN s.kind = 1 THEN 1 + greatest(0, m.attempts - greatest(0,
                (m.expiries & 65535) - (m.expiries >> 17) - (m.expiries >= 131072)::integer)) ELSE m.attempts END,
            expiries = CASE WHEN s.kind = 1 THEN 0 ELSE m.expiries & ~65536 END,
            errors = CASE WHEN s.error IS NULL THEN m.errors
                WHEN cardinality(m.errors) > 10 THEN m.errors[1:1] || m.errors[3:] || s.error
                ELSE m.errors || s.error END
        FROM unnest(tids, p_kinds, p_afters, p_errors) s(tid, kind, after, error)
        WHERE s.kind IN (1, 2) AND m.ctid = s.tid;
    END IF;
    IF 0 = ANY (p_kinds) THEN
        DELETE FROM {s}.messages m
        WHERE m.ctid = ANY (ARRAY(SELECT s.tid FROM unnest(tids, p_kinds) s(tid, kind) WHERE s.kind = 0));
    END IF;
    IF p_of IS NOT NULL THEN
        PERFORM {s}.queue_send(
            array_agg(f.q ORDER BY f.at), array_agg(f.body ORDER BY f.at), array_agg(f.headers ORDER BY f.at),
            array_agg(f.delay ORDER BY f.at),
            CASE WHEN bool_or(f.g IS NOT NULL) THEN array_agg(f.g ORDER BY f.at) END,
            CASE WHEN bool_or(f.d IS NOT NULL) THEN array_agg(f.d ORDER BY f.at) END, p_window)
        FROM unnest(p_of, p_queues, p_bodies, p_headers, p_delays, p_groups, p_dedups)
            WITH ORDINALITY f(of, q, body, headers, delay, g, d, at)
        WHERE done[f.of] HAVING count(*) > 0;
    END IF;
    IF 3 = ANY (p_kinds) THEN
        PERFORM {s}.queue_bury(
            p_queue, array_agg(s.id ORDER BY s.id), array_agg(s.tid ORDER BY s.id), array_agg(s.grp ORDER BY s.id),
            array_agg(s.reason ORDER BY s.id), array_agg(s.error ORDER BY s.id), now_us)
        FROM unnest(p_ids, tids, groups, p_kinds, p_reasons, p_errors) s(id, tid, grp, kind, reason, error)
        WHERE s.tid IS NOT NULL AND s.kind = 3 HAVING count(*) > 0;
    END IF;
    IF ended_groups IS NOT NULL THEN
        RETURN done || {s}.queue_next_of_groups(p_queue, ended_groups, ended_ids, now_us);
    END IF;
    RETURN done || false;
END $$;

-- Moves messages to the dead letters.
CREATE OR REPLACE FUNCTION {s}.queue_bury(
    p_queue bigint, p_ids bigint[], p_tids tid[], p_groups bytea[], p_reasons bytea[], p_errors bytea[], p_now bigint)
RETURNS void LANGUAGE plpgsql
SET jit TO off SET enable_seqscan TO off SET plan_cache_mode TO force_generic_plan AS $$
DECLARE
    wanted bytea[] := ARRAY(SELECT DISTINCT u.g FROM unnest(p_groups) u(g) WHERE u.g IS NOT NULL ORDER BY u.g);
    new_groups bytea[] := '{}';
    more bytea[];
    locked bigint := 0;
BEGIN
    WHILE locked < cardinality(wanted) LOOP
        WITH made AS (
            INSERT INTO {s}.message_groups (queue, key) SELECT -p_queue, u.g FROM unnest(wanted) u(g)
            ON CONFLICT DO NOTHING RETURNING key)
        SELECT array_agg(key) INTO more FROM made;
        new_groups := new_groups || more;
        SELECT count(*) INTO locked FROM unnest(wanted) u(g) CROSS JOIN LATERAL (
            SELECT 1 FROM {s}.message_groups g WHERE g.queue = -p_queue AND g.key = u.g FOR UPDATE) l;
    END LOOP;
    UPDATE {s}.messages m SET queue = -p_queue, receipt = 0, expiries = m.expiries & ~65536, reason = s.reason, due = 0,
        visible_at = CASE WHEN s.grp IS NOT NULL AND (s.grp <> ALL (new_groups) OR s.place > 1)
            THEN 9223372036854775807 ELSE p_now END,
        errors = CASE WHEN s.error IS NULL THEN m.errors
            WHEN cardinality(m.errors) > 10 THEN m.errors[1:1] || m.errors[3:] || s.error
            ELSE m.errors || s.error END
    FROM (
        SELECT u.*, row_number() OVER (PARTITION BY u.grp ORDER BY u.id) AS place
        FROM unnest(p_ids, p_tids, p_groups, p_reasons, p_errors) u(id, tid, grp, reason, error)) s
    WHERE m.ctid = s.tid;
END $$;

-- Deletes some of the messages with ids above `p_after` and up to `p_upto`, and returns the last id: up to `p_most`, of
-- together about `p_bytes`. Without `p_upto` it is the last one that was given. Null instead of the last id: there are
-- no more.
CREATE OR REPLACE FUNCTION {s}.queue_purge(
    p_queue bigint, p_most integer, p_bytes bigint, INOUT p_after bigint, INOUT p_upto bigint, OUT o_gone bigint)
LANGUAGE plpgsql SET jit TO off SET enable_seqscan TO off AS $$
DECLARE
    now_us bigint := {s}.queue_now();
    tids tid[];
    groups bytea[];
    last bigint;
    highest bigint;
    found bigint;
BEGIN
    p_upto := coalesce(p_upto, pg_sequence_last_value('{s}.message_ids'::regclass), 0);
    SELECT max(id) FILTER (WHERE before < p_bytes), max(id), count(*) INTO last, highest, found FROM (
        SELECT id, sum(size) OVER (ORDER BY id) - size AS before FROM (
            SELECT m.id, coalesce(m.size, 0) AS size FROM {s}.messages m WHERE m.queue = p_queue AND m.id > p_after AND m.id <= p_upto
            ORDER BY m.id LIMIT p_most) page) sized;
    tids := ARRAY(
        SELECT m.ctid FROM {s}.messages m WHERE m.queue = p_queue AND m.id > p_after AND m.id <= last
        ORDER BY m.id FOR UPDATE);
    WITH deleted AS (DELETE FROM {s}.messages m WHERE m.ctid = ANY (tids) RETURNING m.grp)
    SELECT count(*), array_agg(DISTINCT grp) FILTER (WHERE grp IS NOT NULL) INTO o_gone, groups FROM deleted;
    p_after := CASE WHEN found = p_most OR last < highest THEN last END;
    IF groups IS NOT NULL THEN
        PERFORM {s}.queue_next_of_groups(
            p_queue, groups, array_fill(0::bigint, ARRAY[cardinality(groups)]), now_us);
    END IF;
END $$;
