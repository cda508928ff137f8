-- Rows, and who may write them.
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

-- Who writes. A process without its row here can commit nothing.
CREATE TABLE covault.writers (
    id text PRIMARY KEY DEFAULT gen_random_uuid()::text,
    -- The number of its last commit.
    number bigint NOT NULL DEFAULT 0,
    -- Whether it has the database for itself: it checks no leases.
    alone boolean NOT NULL,
    started timestamptz NOT NULL DEFAULT now(),
    written timestamptz NOT NULL DEFAULT now()
) WITH (fillfactor = 50);
