-- Watching the watchers: when supervisors ticked, what was accepted and ended, who moves a cursor.

ALTER TABLE sessions ADD COLUMN ticked_at INTEGER;
CREATE INDEX sessions_ticked ON sessions (namespace, ticked_at) WHERE kind = 'pmo';

-- accepted = ended + live, counted in the commits that make it so. There is one writer at a time here, so
-- one row for each namespace is enough
CREATE TABLE tallies (
    namespace  TEXT    NOT NULL,
    writer     TEXT    NOT NULL,
    accepted   INTEGER NOT NULL,
    ended      INTEGER NOT NULL,
    updated_at INTEGER NOT NULL,
    PRIMARY KEY (namespace, writer)
) STRICT, WITHOUT ROWID;
INSERT INTO tallies SELECT namespace, '', count(*), count(*) - count(clock_at), 0 FROM tasks GROUP BY namespace;

-- nothing was ever written to the first form of this table
DROP TABLE cursors;
CREATE TABLE cursors (
    namespace   TEXT    NOT NULL,
    name        TEXT    NOT NULL,
    position    TEXT    NOT NULL,
    holder      TEXT    NOT NULL,
    fence       INTEGER NOT NULL,
    lease_until INTEGER NOT NULL,
    trouble     TEXT,
    updated_at  INTEGER NOT NULL,
    PRIMARY KEY (namespace, name)
) STRICT;
