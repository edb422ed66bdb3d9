-- The record. Folded from the log: tasks, turns, waits, approvals, dead_letters, effects.
-- Not folded: sessions, inbox processing marks, resume-ledger leases, cursors, agents, slots.

CREATE TABLE tasks (
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
    PRIMARY KEY (namespace, id),
    -- a task that could hang cannot be stored
    CONSTRAINT no_task_without_a_clock CHECK (
        clock_at IS NOT NULL OR status IN ('succeeded', 'failed', 'timeout', 'cancelled')
    ),
    CONSTRAINT only_a_running_task_is_held CHECK (attempt_id IS NULL OR status = 'running')
) STRICT;

CREATE UNIQUE INDEX tasks_by_key ON tasks (namespace, idempotency_key) WHERE idempotency_key <> id;
CREATE INDEX tasks_ready ON tasks (namespace, agent, priority, run_at, id) WHERE status = 'queued';
CREATE INDEX tasks_offered ON tasks (namespace, agent, priority, run_at, id) WHERE status = 'dispatched';
CREATE INDEX tasks_due ON tasks (namespace, clock_at, id) WHERE clock_at IS NOT NULL;
CREATE INDEX tasks_held ON tasks (namespace, session_id, id) WHERE session_id IS NOT NULL;
CREATE INDEX tasks_suspect ON tasks (namespace, agent, run_at, id) WHERE status = 'queued' AND crash_count > 0;
-- one turn at a time per agent key, held until the turn ends
CREATE UNIQUE INDEX tasks_key_holder ON tasks (namespace, agent, agent_key)
    WHERE turn_id IS NOT NULL AND agent_key IS NOT NULL;

CREATE TABLE events (
    seq          INTEGER PRIMARY KEY,
    namespace    TEXT    NOT NULL,
    task_id      TEXT    NOT NULL,
    version      INTEGER NOT NULL,
    type         TEXT    NOT NULL,
    schema       INTEGER NOT NULL,
    command_id   TEXT    NOT NULL,
    causation_id TEXT,
    actor        TEXT    NOT NULL,
    at           INTEGER NOT NULL,
    attempt_id   TEXT,
    epoch        INTEGER NOT NULL,
    data         BLOB    NOT NULL,
    hash         BLOB    NOT NULL
) STRICT;
-- the guard of the one door: two writers cannot both append the next version
CREATE UNIQUE INDEX events_of_task ON events (namespace, task_id, version);

CREATE TABLE cards (
    namespace  TEXT    NOT NULL,
    id         TEXT    NOT NULL,
    task_id    TEXT    NOT NULL,
    kind       TEXT    NOT NULL,
    content    BLOB    NOT NULL,
    hash       TEXT    NOT NULL,
    created_at INTEGER NOT NULL,
    PRIMARY KEY (namespace, id)
) STRICT, WITHOUT ROWID;

CREATE TABLE turns (
    namespace  TEXT    NOT NULL,
    id         TEXT    NOT NULL,
    task_id    TEXT    NOT NULL,
    number     INTEGER NOT NULL,
    agent      TEXT    NOT NULL,
    attempt_id TEXT,
    session_id TEXT,
    epoch      INTEGER NOT NULL,
    outcome    TEXT    NOT NULL,
    error      TEXT,
    ended_at   INTEGER NOT NULL,
    PRIMARY KEY (namespace, id)
) STRICT, WITHOUT ROWID;

CREATE TABLE turn_waiting_tools (
    namespace    TEXT    NOT NULL,
    task_id      TEXT    NOT NULL,
    turn_id      TEXT    NOT NULL,
    tool_call_id TEXT    NOT NULL,
    kind         TEXT    NOT NULL,
    deadline     INTEGER NOT NULL,
    wait_status  TEXT    NOT NULL,
    result_card  TEXT,
    created_at   INTEGER NOT NULL,
    updated_at   INTEGER NOT NULL,
    PRIMARY KEY (namespace, turn_id, tool_call_id)
) STRICT;

CREATE TABLE turn_resume_ledger (
    namespace        TEXT    NOT NULL,
    turn_id          TEXT    NOT NULL,
    tool_call_id     TEXT    NOT NULL,
    result_card      TEXT    NOT NULL,
    task_id          TEXT    NOT NULL,
    status           TEXT    NOT NULL,
    attempt_count    INTEGER NOT NULL DEFAULT 0,
    next_retry_at    INTEGER,
    lease_owner      TEXT,
    lease_expires_at INTEGER,
    last_error       TEXT,
    created_at       INTEGER NOT NULL,
    updated_at       INTEGER NOT NULL,
    PRIMARY KEY (namespace, turn_id, tool_call_id, result_card)
) STRICT;

CREATE TABLE approvals (
    namespace  TEXT    NOT NULL,
    id         TEXT    NOT NULL,
    task_id    TEXT    NOT NULL,
    remind_at  INTEGER NOT NULL,
    expire_at  INTEGER NOT NULL,
    created_at INTEGER NOT NULL,
    decision   TEXT,
    decided_by TEXT,
    decided_at INTEGER,
    PRIMARY KEY (namespace, id)
) STRICT;

CREATE TABLE dead_letters (
    namespace   TEXT    NOT NULL,
    task_id     TEXT    NOT NULL,
    agent       TEXT    NOT NULL,
    reason      TEXT    NOT NULL,
    fingerprint TEXT    NOT NULL,
    retry_count INTEGER NOT NULL,
    failed_at   INTEGER NOT NULL,
    status      TEXT    NOT NULL DEFAULT 'open',
    closed_at   INTEGER,
    PRIMARY KEY (namespace, task_id)
) STRICT;
CREATE INDEX dead_letters_open ON dead_letters (namespace, fingerprint, task_id) WHERE status = 'open';

CREATE TABLE effects (
    namespace    TEXT    NOT NULL,
    key          TEXT    NOT NULL,
    task_id      TEXT    NOT NULL,
    step         TEXT    NOT NULL,
    status       TEXT    NOT NULL,
    args_hash    TEXT    NOT NULL,
    attempt_id   TEXT,
    session_id   TEXT,
    not_after    INTEGER,
    result_card  TEXT,
    created_at   INTEGER NOT NULL,
    updated_at   INTEGER NOT NULL,
    PRIMARY KEY (namespace, key)
) STRICT;

CREATE TABLE agent_inbox (
    namespace      TEXT    NOT NULL,
    id             TEXT    NOT NULL,
    agent          TEXT    NOT NULL,
    agent_key      TEXT,
    message_type   TEXT    NOT NULL,
    correlation_id TEXT    NOT NULL,
    channel        TEXT,
    task_id        TEXT,
    turn_id        TEXT,
    turn_epoch     INTEGER,
    card_id        TEXT,
    payload        TEXT,
    status         TEXT    NOT NULL,
    attempt_id     TEXT,
    retry_count    INTEGER NOT NULL DEFAULT 0,
    next_retry_at  INTEGER,
    watchdog_error TEXT,
    watchdog_at    INTEGER,
    created_at     INTEGER NOT NULL,
    processed_at   INTEGER,
    archived_at    INTEGER,
    PRIMARY KEY (namespace, id)
) STRICT;
CREATE UNIQUE INDEX inbox_once ON agent_inbox (namespace, message_type, correlation_id);
CREATE INDEX inbox_open ON agent_inbox (namespace, agent, created_at, id)
    WHERE status IN ('queued', 'pending', 'processing');
CREATE INDEX inbox_of_turn ON agent_inbox (namespace, turn_id) WHERE turn_id IS NOT NULL;

CREATE TABLE sessions (
    namespace    TEXT    NOT NULL,
    id           TEXT    NOT NULL,
    kind         TEXT    NOT NULL,
    name         TEXT    NOT NULL,
    host         TEXT    NOT NULL,
    pid          INTEGER NOT NULL,
    agents       TEXT    NOT NULL,
    concurrency  INTEGER NOT NULL,
    started_at   INTEGER NOT NULL,
    heartbeat_at INTEGER NOT NULL,
    lease_until  INTEGER NOT NULL,
    unnamed      TEXT    NOT NULL,
    ended_at     INTEGER,
    end_reason   TEXT,
    PRIMARY KEY (namespace, id)
) STRICT;
CREATE INDEX sessions_open ON sessions (namespace, lease_until) WHERE ended_at IS NULL;

CREATE TABLE agents (
    namespace      TEXT    NOT NULL,
    name           TEXT    NOT NULL,
    version        TEXT,
    concurrency    INTEGER,
    retry_policy   TEXT,
    deadline       INTEGER,
    payload_schema TEXT,
    registered_at  INTEGER NOT NULL,
    PRIMARY KEY (namespace, name)
) STRICT;

-- one row for each turn that a limited agent may have dispatched or running at once
CREATE TABLE slots (
    namespace TEXT    NOT NULL,
    agent     TEXT    NOT NULL,
    slot      INTEGER NOT NULL,
    task_id   TEXT,
    PRIMARY KEY (namespace, agent, slot)
) STRICT;

CREATE TABLE cursors (
    namespace TEXT NOT NULL,
    name      TEXT NOT NULL,
    position  TEXT NOT NULL,
    PRIMARY KEY (namespace, name)
) STRICT;
