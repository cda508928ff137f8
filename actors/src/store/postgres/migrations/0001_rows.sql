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

-- Takes a group of batches. The arrays have an element per row that a batch names, ordered by wave.
-- Batches of one wave do not touch what another one of that wave writes; waves are taken one after
-- the other. A batch with a row that is not as expected changes nothing; the answer is the place of
-- the first such row of each such batch, counted from 1.
--
-- p_ends: the place of the last row of each wave.
-- p_expects: -1 anything, 0 absent, else the version.
-- p_changes: 0 nothing, 1 put, 2 delete, 3 nothing, while the batch changes the same row elsewhere.
--
-- To be called in READ COMMITTED, in a transaction of its own: each statement must see what was
-- committed before it began.
CREATE FUNCTION covault.commit_v1(
    p_writer uuid, p_number bigint, p_ends integer[], p_batches integer[], p_spaces smallint[],
    p_keys bytea[], p_expects bigint[], p_changes smallint[], p_values bytea[]
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
BEGIN
    FOREACH v_last IN ARRAY p_ends LOOP
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
                FROM unnest(v_spaces, v_keys) AS i(space, key)
                JOIN covault.rows r ON r.space = i.space AND r.key = i.key
                ORDER BY r.space, r.key
                FOR UPDATE OF r
            ) AS l;
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

        v_first := v_last + 1;
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
