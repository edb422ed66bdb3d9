-- Watching the watchers: when supervisors ticked, what was accepted and ended, who moves a cursor.

ALTER TABLE sessions ADD COLUMN ticked_at BIGINT;
CREATE INDEX sessions_ticked ON sessions (namespace, ticked_at) WHERE kind = 'pmo';

-- accepted = ended + live, counted in the commits that make it so. Each committing connection has a row of its
-- own, so that nobody waits for anybody; the PMO adds up the rows of those that have gone
CREATE TABLE tallies (
    namespace  TEXT COLLATE "C" NOT NULL,
    writer     TEXT COLLATE "C" NOT NULL,
    accepted   BIGINT NOT NULL,
    ended      BIGINT NOT NULL,
    updated_at BIGINT NOT NULL,
    PRIMARY KEY (namespace, writer)
) WITH (fillfactor = 50, autovacuum_vacuum_scale_factor = 0.02, autovacuum_vacuum_cost_delay = 0);
INSERT INTO tallies SELECT namespace, '', count(*), count(*) - count(clock_at), 0 FROM tasks GROUP BY namespace;

-- nothing was ever written to the first form of this table
DROP TABLE cursors;
CREATE TABLE cursors (
    namespace   TEXT COLLATE "C" NOT NULL,
    name        TEXT COLLATE "C" NOT NULL,
    position    TEXT COLLATE "C" NOT NULL,
    holder      TEXT COLLATE "C" NOT NULL,
    fence       BIGINT NOT NULL,
    lease_until BIGINT NOT NULL,
    trouble     TEXT COLLATE "C",
    updated_at  BIGINT NOT NULL,
    PRIMARY KEY (namespace, name)
);

DROP TYPE session_row;
CREATE TYPE session_row AS (
    namespace text, id text, kind text, name text, host text, pid bigint, agents text, concurrency bigint,
    started_at bigint, heartbeat_at bigint, lease_until bigint, unnamed text, ended_at bigint, end_reason
    text, doing text, ticked_at bigint
);
