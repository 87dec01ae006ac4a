
-- The one function for programs that have a client of their own, such as sqlx, diesel or psql: a part of the public
-- interface, described on the page of this backend. `stability.md` says what stays. `{channel}` stands for the start of
-- the names of the channels of this schema.
--
-- Sends a message within the transaction of the caller, and returns its id, as `MessageId` shows it.
CREATE OR REPLACE FUNCTION {s}.send_message(
    queue text, body bytea, headers jsonb DEFAULT NULL, deduplication_id text DEFAULT NULL,
    group_key text DEFAULT NULL, delay interval DEFAULT NULL, deduplication_window interval DEFAULT NULL)
RETURNS text LANGUAGE plpgsql AS $$
DECLARE
    argument text;
    given text;
    rule text;
    encoded bytea;
    bytes bigint;
    number bigint;
    ids bigint[];
    forever CONSTANT double precision := 4611686018427387904;
BEGIN
    -- Another level does not see what others have committed meanwhile.
    IF current_setting('transaction_isolation') <> 'read committed' THEN
        RAISE EXCEPTION 'send_message: the transaction must have the isolation level READ COMMITTED, has %',
            upper(current_setting('transaction_isolation')) USING ERRCODE = 'feature_not_supported';
    END IF;
    FOR argument, given IN VALUES
        ('queue', coalesce(queue, '')), ('deduplication_id', deduplication_id), ('group_key', group_key)
    LOOP
        IF argument = 'queue' AND queue IS NULL THEN
            rule := 'must not be null';
        ELSIF given = '' THEN
            rule := 'must not be empty';
        ELSIF octet_length(convert_to(given, 'UTF8')) > 1024 THEN
            rule := format('must be at most 1024 bytes, is %s', octet_length(convert_to(given, 'UTF8')));
        END IF;
        EXIT WHEN rule IS NOT NULL;
    END LOOP;
    IF rule IS NOT NULL THEN
        NULL;
    ELSIF body IS NULL THEN
        argument := 'body';
        rule := 'must not be null';
    ELSIF jsonb_typeof(headers) <> 'object' THEN
        argument := 'headers';
        rule := format('must be an object whose values are strings, is of type %s', jsonb_typeof(headers));
    ELSIF headers IS NOT NULL AND EXISTS (
        SELECT FROM jsonb_each(headers) h WHERE jsonb_typeof(h.value) <> 'string') THEN
        argument := 'headers';
        rule := (SELECT format('must be an object whose values are strings, but %s is of type %s',
            to_json(h.key), jsonb_typeof(h.value))
            FROM jsonb_each(headers) h WHERE jsonb_typeof(h.value) <> 'string' LIMIT 1);
    ELSIF delay < interval '0' THEN
        argument := 'delay';
        rule := format('must not be negative, is %s', delay);
    ELSIF deduplication_window < interval '0' THEN
        argument := 'deduplication_window';
        rule := format('must not be negative, is %s', deduplication_window);
    ELSE
        -- The length of each name and value in bytes, and the text, as the handles encode them.
        SELECT string_agg(convert_to(octet_length(t.part) || ':', 'UTF8') || t.part, ''::bytea ORDER BY e.at, t.at),
            sum(octet_length(t.part))
        INTO encoded, bytes
        FROM jsonb_each_text(headers) WITH ORDINALITY e(name, value, at) CROSS JOIN LATERAL (
            VALUES (1, convert_to(e.name, 'UTF8')), (2, convert_to(e.value, 'UTF8'))) t(at, part);
        IF octet_length(body) + coalesce(bytes, 0) > 67108864 THEN
            argument := 'body';
            rule := format('must be at most 67108864 bytes including its headers, is %s',
                octet_length(body) + coalesce(bytes, 0));
        END IF;
    END IF;
    IF rule IS NOT NULL THEN
        RAISE EXCEPTION 'send_message: % %', argument, rule USING ERRCODE = 'invalid_parameter_value';
    END IF;
    number := (SELECT o_id FROM {s}.queue_open(convert_to(queue, 'UTF8')));
    ids := {s}.queue_send(
        ARRAY[number], ARRAY[body], ARRAY[encoded],
        ARRAY[least(coalesce(extract(epoch FROM delay), 0)::double precision * 1000000, forever)::bigint],
        CASE WHEN group_key IS NOT NULL THEN ARRAY[convert_to(group_key, 'UTF8')] END,
        CASE WHEN deduplication_id IS NOT NULL THEN ARRAY[convert_to(deduplication_id, 'UTF8')] END,
        greatest(least(coalesce(extract(epoch FROM deduplication_window), 300)::double precision * 1000000,
            forever)::bigint, 1));
    PERFORM pg_notify('{channel}_q' || number, '');
    RETURN ids[1] || '-0';
END $$;
COMMENT ON FUNCTION {s}.send_message(text, bytea, jsonb, text, text, interval, interval) IS
'Sends a message to a queue within this transaction, and returns its id. headers: an object of strings. deduplication_id: a second message with it is not enqueued within deduplication_window (5 minutes by default). group_key: messages with the same key are delivered one at a time, in order. delay: hides the message for this time. Needs READ COMMITTED.';
