-- What tells the process of a session from a later one with the same number.
ALTER TABLE sessions ADD COLUMN process TEXT NOT NULL DEFAULT '';
-- Which version of each agent its worker serves.
ALTER TABLE sessions ADD COLUMN versions TEXT NOT NULL DEFAULT '';
DROP TYPE session_row;
CREATE TYPE session_row AS (
    namespace text, id text, kind text, name text, host text, pid bigint, agents text, concurrency bigint,
    started_at bigint, heartbeat_at bigint, lease_until bigint, unnamed text, ended_at bigint, end_reason
    text, doing text, ticked_at bigint, process text, versions text
);
