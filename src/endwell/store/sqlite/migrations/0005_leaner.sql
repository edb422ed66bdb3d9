-- Less to write for each task. Ended turns are read from the log, which has them all; and the check of the clock
-- names each status, because a list in a CHECK is built anew for every row.
DROP TABLE turns;

CREATE TABLE tasks_anew (
    namespace        TEXT    NOT NULL,
    id               TEXT    NOT NULL,
    agent            TEXT    NOT NULL,
    agent_key        TEXT,
    idempotency_key  TEXT    NOT NULL,
    channel          TEXT    NOT NULL,
    fair_key         TEXT,
    agent_version    TEXT,
    trace            TEXT,
    parent_id        TEXT,
    replay_of        TEXT,
    payload_card     TEXT    NOT NULL,
    payload_hash     TEXT    NOT NULL,
    priority         INTEGER NOT NULL,
    retry_policy     TEXT,
    created_at       INTEGER NOT NULL,
    status           TEXT    NOT NULL,
    reason           TEXT,
    owner            TEXT,
    error            TEXT,
    deliverable_card TEXT,
    dead_letter      TEXT,
    superseded_by    TEXT,
    turn_id          TEXT,
    turn_number      INTEGER NOT NULL,
    redelivery       TEXT,
    attempt_id       TEXT,
    session_id       TEXT,
    slot             INTEGER,
    waits            TEXT,
    retry_count      INTEGER NOT NULL,
    dispatch_count   INTEGER NOT NULL DEFAULT 0,
    crash_count      INTEGER NOT NULL,
    crash_times      TEXT,
    recovery_attempt INTEGER NOT NULL,
    run_at           INTEGER NOT NULL,
    ring_at          INTEGER,
    dispatch_by      INTEGER,
    progress_by      INTEGER,
    wait_by          INTEGER,
    suspend_by       INTEGER,
    remind_at        INTEGER,
    expire_at        INTEGER,
    recover_at       INTEGER,
    guard_at         INTEGER,
    guard_reason     TEXT,
    held_since       INTEGER,
    ends_by          INTEGER NOT NULL,
    clock_at         INTEGER,
    clock_rule       TEXT,
    epoch            INTEGER NOT NULL,
    version          INTEGER NOT NULL,
    head_hash        BLOB    NOT NULL,
    started_at       INTEGER,
    ended_at         INTEGER,
    updated_at       INTEGER NOT NULL,
    family           TEXT,
    inside           TEXT,
    PRIMARY KEY (namespace, id),
    -- a task that could hang cannot be stored
    CONSTRAINT no_task_without_a_clock CHECK (
        clock_at IS NOT NULL OR status = 'succeeded' OR status = 'failed' OR status = 'timeout'
        OR status = 'cancelled'
    ),
    CONSTRAINT only_a_running_task_is_held CHECK (attempt_id IS NULL OR status = 'running')
) STRICT;

INSERT INTO tasks_anew (
    namespace, id, agent, agent_key, idempotency_key, channel, fair_key, agent_version, trace, parent_id,
    replay_of, payload_card, payload_hash, priority, retry_policy, created_at, status, reason, owner,
    error, deliverable_card, dead_letter, superseded_by, turn_id, turn_number, redelivery, attempt_id,
    session_id, slot, waits, retry_count, dispatch_count, crash_count, crash_times, recovery_attempt,
    run_at, ring_at, dispatch_by, progress_by, wait_by, suspend_by, remind_at, expire_at, recover_at,
    guard_at, guard_reason, held_since, ends_by, clock_at, clock_rule, epoch, version, head_hash,
    started_at, ended_at, updated_at, family, inside
)
SELECT
    namespace, id, agent, agent_key, idempotency_key, channel, fair_key, agent_version, trace, parent_id,
    replay_of, payload_card, payload_hash, priority, retry_policy, created_at, status, reason, owner,
    error, deliverable_card, dead_letter, superseded_by, turn_id, turn_number, redelivery, attempt_id,
    session_id, slot, waits, retry_count, dispatch_count, crash_count, crash_times, recovery_attempt,
    run_at, ring_at, dispatch_by, progress_by, wait_by, suspend_by, remind_at, expire_at, recover_at,
    guard_at, guard_reason, held_since, ends_by, clock_at, clock_rule, epoch, version, head_hash,
    started_at, ended_at, updated_at, family, inside
FROM tasks ORDER BY namespace, id;
DROP TABLE tasks;
ALTER TABLE tasks_anew RENAME TO tasks;

CREATE UNIQUE INDEX tasks_by_key ON tasks (namespace, idempotency_key) WHERE idempotency_key <> id;
CREATE INDEX tasks_ready ON tasks (namespace, agent, priority, run_at, id) WHERE status = 'queued';
CREATE INDEX tasks_offered ON tasks (namespace, agent, priority, run_at, id) WHERE status = 'dispatched';
CREATE INDEX tasks_due ON tasks (namespace, clock_at, id) WHERE clock_at IS NOT NULL;
CREATE INDEX tasks_held ON tasks (namespace, session_id, id) WHERE session_id IS NOT NULL;
CREATE INDEX tasks_suspect ON tasks (namespace, agent, run_at, id) WHERE status = 'queued' AND crash_count > 0;
CREATE UNIQUE INDEX tasks_key_holder ON tasks (namespace, agent, agent_key)
    WHERE turn_id IS NOT NULL AND agent_key IS NOT NULL;
CREATE INDEX tasks_children ON tasks (namespace, parent_id, id) WHERE parent_id IS NOT NULL;
CREATE INDEX tasks_waiting ON tasks (namespace, wait_by, id) WHERE wait_by IS NOT NULL;
