-- Rows, who may write them, and the one way to do it.
--
-- Rules for the files of this folder: docs/postgresql.md, "Upgrades". A file that was released is
-- never changed again, not even in a comment: its checksum is in the database.

CREATE TABLE covault.rows (
    space smallint NOT NULL,
    key bytea NOT NULL,
    version bigint NOT NULL,
    value bytea NOT NULL,
    PRIMARY KEY (space, key)
) WITH (
    -- A request is rewritten some times soon after it was made: leave it room on its page.
    fillfactor = 80,
    -- Most rows never change again. What does change is not to wait for a share of all of them.
    autovacuum_vacuum_scale_factor = 0.02,
    autovacuum_vacuum_insert_scale_factor = 0.05,
    autovacuum_analyze_scale_factor = 0.05
);

-- Who writes, and what became of its last commit.
CREATE TABLE covault.writers (
    id uuid PRIMARY KEY DEFAULT gen_random_uuid(),
    -- The number of its last commit.
    number bigint NOT NULL DEFAULT 0,
    -- What that commit answered; NULL: it was given up, and can never happen any more.
    refused integer[],
    started timestamptz NOT NULL DEFAULT now(),
    written timestamptz NOT NULL DEFAULT now()
) WITH (fillfactor = 50);

-- How the bytes of the audit log's rows are made. They are those of BCS, which core/src/audit and
-- actors/src/rows.rs define; the conformance tests of the store compare.

-- A number in 8 bytes, little-endian.
CREATE FUNCTION covault.audit_number_v1(p_number bigint) RETURNS bytea
LANGUAGE sql IMMUTABLE PARALLEL SAFE AS $$
    SELECT substr(b, 8, 1) || substr(b, 7, 1) || substr(b, 6, 1) || substr(b, 5, 1)
        || substr(b, 4, 1) || substr(b, 3, 1) || substr(b, 2, 1) || substr(b, 1, 1)
    FROM int8send(p_number) AS b
$$;

-- The length of bytes: 7 bits a byte, the lowest first, each but the last with its highest bit set.
CREATE FUNCTION covault.audit_length_v1(p_length integer) RETURNS bytea
LANGUAGE sql IMMUTABLE PARALLEL SAFE AS $$
    SELECT CASE
        WHEN p_length < 128 THEN set_byte('\x00', 0, p_length)
        WHEN p_length < 16384 THEN
            set_byte(set_byte('\x0000', 0, 128 + p_length % 128), 1, p_length / 128)
        WHEN p_length < 2097152 THEN
            set_byte(set_byte(set_byte('\x000000', 0, 128 + p_length % 128),
                1, 128 + p_length / 128 % 128), 2, p_length / 16384)
        ELSE
            set_byte(set_byte(set_byte(set_byte('\x00000000', 0, 128 + p_length % 128),
                1, 128 + p_length / 128 % 128), 2, 128 + p_length / 16384 % 128),
                3, p_length / 2097152)
    END
$$;

-- The number of the last entry by the head of its chain; NULL when that is no head.
CREATE FUNCTION covault.audit_last_v1(p_head bytea) RETURNS bigint
LANGUAGE sql IMMUTABLE PARALLEL SAFE AS $$
    SELECT CASE
        WHEN octet_length(p_head) = 41 AND get_byte(p_head, 0) = 0 AND get_byte(p_head, 8) < 128
        THEN get_byte(p_head, 1)::bigint
            + (get_byte(p_head, 2)::bigint << 8) + (get_byte(p_head, 3)::bigint << 16)
            + (get_byte(p_head, 4)::bigint << 24) + (get_byte(p_head, 5)::bigint << 32)
            + (get_byte(p_head, 6)::bigint << 40) + (get_byte(p_head, 7)::bigint << 48)
            + (get_byte(p_head, 8)::bigint << 56)
    END
$$;

-- Takes a group of batches. The arrays have an element per row that a batch names, ordered by wave.
-- Batches of one wave do not touch what another one of that wave writes; waves are taken one after
-- the other. A batch with a row that is not as expected changes nothing; the answer is the place of
-- the first such row of each such batch, counted from 1. Entries of the audit log are added to their
-- chains, numbered and linked, when their batch changes its rows. One that would go to a chain which is
-- damaged has its batch change nothing; the answer is the place of that entry then, below zero.
--
-- p_ends: the place of the last row of each wave.
-- p_expects: -1 anything, 0 absent, else the version.
-- p_changes: 0 nothing, 1 put, 2 delete, 3 nothing, while the batch changes the same row elsewhere,
-- 4 nothing, of a row that all writers look at and that hardly ever changes: they do not wait for each
-- other there.
-- p_entry_ends: the place of the last entry of each wave. Within a wave, entries are ordered by chain.
--
-- To be called in READ COMMITTED, in a transaction of its own: each statement must see what was
-- committed before it began.
CREATE FUNCTION covault.commit_v1(
    p_writer uuid, p_number bigint, p_ends integer[], p_batches integer[], p_spaces smallint[],
    p_keys bytea[], p_expects bigint[], p_changes smallint[], p_values bytea[],
    p_entry_ends integer[], p_entry_batches integer[], p_chains bytea[], p_bodies bytea[]
) RETURNS integer[] LANGUAGE plpgsql VOLATILE AS $$
DECLARE
    v_first integer := 1;
    v_last integer;
    v_batches integer[];
    v_spaces smallint[];
    v_keys bytea[];
    v_expects bigint[];
    v_changes smallint[];
    v_values bytea[];
    v_found bigint[];
    v_bad integer[];
    v_bad_rows integer[];
    v_refused integer[] := '{}';
    v_locked bigint;
    v_seen bigint;
    v_wanted bigint;
    v_made bigint;
    v_domain CONSTANT bytea := convert_to('covault audit entry 1', 'UTF8') || '\x00'::bytea;
    v_first_entry integer := 1;
    v_last_entry integer;
    v_entry_batches integer[];
    v_chains bytea[];
    v_heads bytea[];
    v_numbers bigint[];
    v_hashes bytea[];
    v_damaged bytea[];
    v_chain bytea;
    v_place integer;
    v_number bigint;
    v_hash bytea;
    v_before bytea;
    v_body bytea;
    v_entry_keys bytea[];
    v_entry_values bytea[];
    v_head_values bytea[];
    -- Whether the chain of each head was there before.
    v_grown boolean[];
BEGIN
    -- Nobody else adds to these chains from here on.
    IF cardinality(p_chains) > 0 THEN
        PERFORM 1 FROM covault.rows r
        WHERE r.space = 31 AND r.key = ANY (p_chains)
        ORDER BY r.key FOR UPDATE;
    END IF;

    FOR v_wave IN 1..cardinality(p_ends) LOOP
        v_last := p_ends[v_wave];
        v_last_entry := p_entry_ends[v_wave];
        v_batches := p_batches[v_first:v_last];
        v_spaces := p_spaces[v_first:v_last];
        v_keys := p_keys[v_first:v_last];
        v_expects := p_expects[v_first:v_last];
        v_changes := p_changes[v_first:v_last];
        v_values := p_values[v_first:v_last];

        -- Nobody else changes these rows from here on; in one order, so that two writers do not
        -- wait for each other.
        LOOP
            SELECT count(*) INTO v_locked FROM (
                SELECT 1
                FROM unnest(v_spaces, v_keys, v_changes) AS i(space, key, change)
                JOIN covault.rows r ON r.space = i.space AND r.key = i.key
                WHERE i.change <> 4
                ORDER BY r.space, r.key
                FOR UPDATE OF r
            ) AS l;
            IF 4 = ANY (v_changes) THEN
                SELECT v_locked + count(*) INTO v_locked FROM (
                    SELECT 1
                    FROM unnest(v_spaces, v_keys, v_changes) AS i(space, key, change)
                    JOIN covault.rows r ON r.space = i.space AND r.key = i.key
                    WHERE i.change = 4
                    ORDER BY r.space, r.key
                    FOR SHARE OF r
                ) AS l;
            END IF;
            SELECT array_agg(coalesce(r.version, 0) ORDER BY i.place), count(r.version)
            INTO v_found, v_seen
            FROM unnest(v_spaces, v_keys) WITH ORDINALITY AS i(space, key, place)
            LEFT JOIN covault.rows r ON r.space = i.space AND r.key = i.key;
            -- More are there than were locked when one was made while others were waited for.
            EXIT WHEN v_seen = v_locked;
        END LOOP;

        SELECT coalesce(array_agg(f.batch), '{}'), coalesce(array_agg(v_first - 1 + f.place), '{}')
        INTO v_bad, v_bad_rows
        FROM (
            SELECT DISTINCT ON (i.batch) i.batch, i.place::integer AS place
            FROM unnest(v_batches, v_expects, v_found) WITH ORDINALITY
                AS i(batch, expect, version, place)
            WHERE i.expect >= 0 AND i.expect <> i.version
            ORDER BY i.batch, i.place
        ) AS f;
        v_refused := v_refused || v_bad_rows;

        IF v_last_entry >= v_first_entry THEN
            v_entry_batches := p_entry_batches[v_first_entry:v_last_entry];
            -- What each chain ends with, by its head. An entry behind the head must never be written
            -- over, whatever the head says.
            SELECT array_agg(c.chain ORDER BY c.chain), array_agg(c.number ORDER BY c.chain),
                array_agg(substr(c.head, 10) ORDER BY c.chain),
                coalesce(array_agg(c.chain) FILTER (WHERE c.number IS NULL OR EXISTS (
                    SELECT 1 FROM covault.rows e
                    WHERE e.space = 30 AND e.key > c.chain || int8send(c.number)
                        AND e.key <= c.chain || '\xffffffffffffffff'::bytea
                )), '{}')
            INTO v_chains, v_numbers, v_hashes, v_damaged
            FROM (
                SELECT i.chain, r.value AS head,
                    CASE WHEN r.value IS NULL THEN 0 ELSE covault.audit_last_v1(r.value) END AS number
                FROM (
                    SELECT DISTINCT chain
                    FROM unnest(p_chains[v_first_entry:v_last_entry]) AS u(chain)
                ) AS i
                LEFT JOIN covault.rows r ON r.space = 31 AND r.key = i.chain
            ) AS c;
            IF cardinality(v_damaged) > 0 THEN
                SELECT v_bad || coalesce(array_agg(f.batch), '{}'),
                    v_refused || coalesce(array_agg(1 - v_first_entry - f.place), '{}')
                INTO v_bad, v_refused
                FROM (
                    SELECT DISTINCT ON (i.batch) i.batch, i.place::integer AS place
                    FROM unnest(v_entry_batches, p_chains[v_first_entry:v_last_entry])
                        WITH ORDINALITY AS i(batch, chain, place)
                    WHERE i.chain = ANY (v_damaged) AND i.batch <> ALL (v_bad)
                    ORDER BY i.batch, i.place
                ) AS f;
            END IF;
        END IF;

        UPDATE covault.rows r SET version = r.version + 1, value = i.value
        FROM unnest(v_batches, v_spaces, v_keys, v_changes, v_values, v_found)
            AS i(batch, space, key, change, value, version)
        WHERE i.change = 1 AND i.version > 0 AND i.batch <> ALL (v_bad)
            AND r.space = i.space AND r.key = i.key;

        -- Rows that are not there cannot be locked: who makes one has its place in the index, and
        -- others wait. So has who only demands that there is none, until the end of the commit.
        SELECT count(*) INTO v_wanted
        FROM unnest(v_batches, v_expects, v_changes, v_found)
            AS i(batch, expect, change, version)
        WHERE i.version = 0 AND i.batch <> ALL (v_bad)
            AND (i.change = 1 OR (i.change = 0 AND i.expect = 0));
        IF v_wanted > 0 THEN
            INSERT INTO covault.rows (space, key, version, value)
            SELECT i.space, i.key, 1, i.value
            FROM unnest(v_batches, v_spaces, v_keys, v_expects, v_changes, v_values, v_found)
                AS i(batch, space, key, expect, change, value, version)
            WHERE i.version = 0 AND i.batch <> ALL (v_bad)
                AND (i.change = 1 OR (i.change = 0 AND i.expect = 0))
            ORDER BY i.space, i.key
            ON CONFLICT (space, key) DO NOTHING;
            GET DIAGNOSTICS v_made = ROW_COUNT;
            IF v_made <> v_wanted THEN
                RAISE EXCEPTION 'another writer made the same row' USING ERRCODE = '40001';
            END IF;
        END IF;

        DELETE FROM covault.rows r
        USING unnest(v_batches, v_spaces, v_keys, v_expects, v_changes)
            AS i(batch, space, key, expect, change)
        WHERE (i.change = 2 OR (i.change = 0 AND i.expect = 0)) AND i.batch <> ALL (v_bad)
            AND r.space = i.space AND r.key = i.key;

        IF v_last_entry >= v_first_entry THEN
            v_chain := NULL;
            v_entry_keys := '{}';
            v_entry_values := '{}';
            v_heads := '{}';
            v_head_values := '{}';
            v_grown := '{}';
            FOR v_entry IN v_first_entry..v_last_entry LOOP
                CONTINUE WHEN p_entry_batches[v_entry] = ANY (v_bad);
                IF v_chain IS DISTINCT FROM p_chains[v_entry] THEN
                    v_chain := p_chains[v_entry];
                    v_place := array_position(v_chains, v_chain);
                    v_number := v_numbers[v_place];
                    v_hash := coalesce(v_hashes[v_place], decode(repeat('00', 32), 'hex'));
                    v_heads := array_append(v_heads, v_chain);
                    v_head_values := array_append(v_head_values, NULL);
                    v_grown := array_append(v_grown, v_hashes[v_place] IS NOT NULL);
                END IF;
                v_number := v_number + 1;
                v_before := v_hash;
                v_body := p_bodies[v_entry];
                v_hash := sha256(v_domain
                    || set_byte('\x00', 0, octet_length(v_chain)) || v_chain
                    || int8send(v_number) || v_before || v_body);
                v_entry_keys := array_append(v_entry_keys, v_chain || int8send(v_number));
                v_entry_values := array_append(v_entry_values,
                    '\x00'::bytea || covault.audit_number_v1(v_number) || v_before || v_hash
                    || covault.audit_length_v1(octet_length(v_body)) || v_body);
                v_head_values[cardinality(v_heads)] :=
                    '\x00'::bytea || covault.audit_number_v1(v_number) || v_hash;
            END LOOP;
            UPDATE covault.rows r SET version = r.version + 1, value = i.value
            FROM unnest(v_heads, v_head_values, v_grown) AS i(key, value, grown)
            WHERE i.grown AND r.space = 31 AND r.key = i.key;
            GET DIAGNOSTICS v_made = ROW_COUNT;
            v_wanted := cardinality(v_entry_keys) + cardinality(v_heads) - v_made;
            INSERT INTO covault.rows (space, key, version, value)
            SELECT i.space, i.key, 1, i.value
            FROM (
                SELECT 30 AS space, e.key, e.value
                FROM unnest(v_entry_keys, v_entry_values) AS e(key, value)
                UNION ALL
                SELECT 31, h.key, h.value
                FROM unnest(v_heads, v_head_values, v_grown) AS h(key, value, grown)
                WHERE NOT h.grown
            ) AS i
            ON CONFLICT (space, key) DO NOTHING;
            GET DIAGNOSTICS v_made = ROW_COUNT;
            IF v_made <> v_wanted THEN
                RAISE EXCEPTION 'another writer added to the same chain' USING ERRCODE = '40001';
            END IF;
        END IF;

        v_first := v_last + 1;
        v_first_entry := v_last_entry + 1;
    END LOOP;

    UPDATE covault.writers
    SET number = p_number, refused = v_refused, written = now()
    WHERE id = p_writer AND number = p_number - 1;
    IF NOT FOUND THEN
        RAISE EXCEPTION 'this writer may not commit (any more)' USING ERRCODE = 'CV001';
    END IF;
    RETURN v_refused;
END
$$;

-- What became of a commit whose answer was lost: `taken`, with its answer; `given up`: it did not
-- happen, and cannot happen any more. Waits while it is still being done. `behind`: an earlier one
-- that was answered is not there; `gone`: the writer is unknown. It always writes, so that a commit
-- which it tells of is on every disk that it has to be on.
CREATE FUNCTION covault.settle_v1(
    p_writer uuid, p_number bigint, OUT outcome text, OUT refused integer[]
) LANGUAGE plpgsql VOLATILE AS $$
DECLARE
    v_number bigint;
    v_refused integer[];
BEGIN
    SELECT w.number, w.refused INTO v_number, v_refused
    FROM covault.writers w WHERE w.id = p_writer FOR UPDATE;
    IF NOT FOUND OR v_number > p_number THEN
        outcome := 'gone';
        RETURN;
    END IF;
    IF v_number < p_number - 1 THEN
        outcome := 'behind';
        RETURN;
    END IF;
    IF v_number < p_number THEN
        v_refused := NULL;
    END IF;
    UPDATE covault.writers w SET number = p_number, refused = v_refused, written = now()
    WHERE w.id = p_writer;
    outcome := CASE WHEN v_refused IS NULL THEN 'given up' ELSE 'taken' END;
    refused := v_refused;
END
$$;
