-- Text is compared byte by byte (COLLATE "C"), as SQLite does it: ids and cursors sort the same everywhere.
-- The record. Folded from the log: tasks, turns, waits, approvals, dead_letters, effects.
-- Not folded: sessions, inbox processing marks, resume-ledger leases, cursors, agents, slots.

CREATE TABLE tasks (
    namespace        TEXT COLLATE "C" NOT NULL,
    id               TEXT COLLATE "C" NOT NULL,
    agent            TEXT COLLATE "C" NOT NULL,
    agent_key        TEXT COLLATE "C",
    idempotency_key  TEXT COLLATE "C" NOT NULL,
    channel          TEXT COLLATE "C" NOT NULL,
    fair_key         TEXT COLLATE "C",
    agent_version    TEXT COLLATE "C",
    trace            TEXT COLLATE "C",
    parent_id        TEXT COLLATE "C",
    replay_of        TEXT COLLATE "C",
    payload_card     TEXT COLLATE "C" NOT NULL,
    payload_hash     TEXT COLLATE "C" NOT NULL,
    priority         BIGINT NOT NULL,
    retry_policy     TEXT COLLATE "C",
    created_at       BIGINT NOT NULL,
    status           TEXT COLLATE "C" NOT NULL,
    reason           TEXT COLLATE "C",
    owner            TEXT COLLATE "C",
    error            TEXT COLLATE "C",
    deliverable_card TEXT COLLATE "C",
    dead_letter      TEXT COLLATE "C",
    superseded_by    TEXT COLLATE "C",
    turn_id          TEXT COLLATE "C",
    turn_number      BIGINT NOT NULL,
    redelivery       TEXT COLLATE "C",
    attempt_id       TEXT COLLATE "C",
    session_id       TEXT COLLATE "C",
    slot             BIGINT,
    waits            TEXT COLLATE "C",
    retry_count      BIGINT NOT NULL,
    dispatch_count   BIGINT NOT NULL DEFAULT 0,
    crash_count      BIGINT NOT NULL,
    crash_times      TEXT COLLATE "C",
    recovery_attempt BIGINT NOT NULL,
    run_at           BIGINT NOT NULL,
    ring_at          BIGINT,
    dispatch_by      BIGINT,
    progress_by      BIGINT,
    wait_by          BIGINT,
    suspend_by       BIGINT,
    remind_at        BIGINT,
    expire_at        BIGINT,
    recover_at       BIGINT,
    guard_at         BIGINT,
    guard_reason     TEXT COLLATE "C",
    held_since       BIGINT,
    ends_by          BIGINT NOT NULL,
    clock_at         BIGINT,
    clock_rule       TEXT COLLATE "C",
    epoch            BIGINT NOT NULL,
    version          BIGINT NOT NULL,
    head_hash        BYTEA NOT NULL,
    started_at       BIGINT,
    ended_at         BIGINT,
    updated_at       BIGINT NOT NULL,
    PRIMARY KEY (namespace, id),
    -- a task that could hang cannot be stored
    CONSTRAINT no_task_without_a_clock CHECK (
        clock_at IS NOT NULL OR status IN ('succeeded', 'failed', 'timeout', 'cancelled')
    ),
    CONSTRAINT only_a_running_task_is_held CHECK (attempt_id IS NULL OR status = 'running')
) WITH (
    -- nearly every write is an update: dead rows must go before they slow down the claim
    autovacuum_vacuum_scale_factor = 0.02, autovacuum_analyze_scale_factor = 0.02,
    autovacuum_vacuum_cost_delay = 0
);

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
    seq          BIGINT NOT NULL GENERATED ALWAYS AS IDENTITY,
    namespace    TEXT COLLATE "C" NOT NULL,
    task_id      TEXT COLLATE "C" NOT NULL,
    version      BIGINT NOT NULL,
    type         TEXT COLLATE "C" NOT NULL,
    schema       BIGINT NOT NULL,
    command_id   TEXT COLLATE "C" NOT NULL,
    causation_id TEXT COLLATE "C",
    actor        TEXT COLLATE "C" NOT NULL,
    at           BIGINT NOT NULL,
    attempt_id   TEXT COLLATE "C",
    epoch        BIGINT NOT NULL,
    data         BYTEA NOT NULL,
    hash         BYTEA NOT NULL,
    -- a follower reads below the oldest running transaction, so that it misses no late commit
    tx           BIGINT NOT NULL DEFAULT (pg_current_xact_id()::text::bigint),
    PRIMARY KEY (tx, seq)
);
-- the guard of the one door: two writers cannot both append the next version
CREATE UNIQUE INDEX events_of_task ON events (namespace, task_id, version);

CREATE TABLE cards (
    namespace  TEXT COLLATE "C" NOT NULL,
    id         TEXT COLLATE "C" NOT NULL,
    task_id    TEXT COLLATE "C" NOT NULL,
    kind       TEXT COLLATE "C" NOT NULL,
    content    BYTEA NOT NULL,
    hash       TEXT COLLATE "C" NOT NULL,
    created_at BIGINT NOT NULL,
    PRIMARY KEY (namespace, id)
);

CREATE TABLE turns (
    namespace  TEXT COLLATE "C" NOT NULL,
    id         TEXT COLLATE "C" NOT NULL,
    task_id    TEXT COLLATE "C" NOT NULL,
    number     BIGINT NOT NULL,
    agent      TEXT COLLATE "C" NOT NULL,
    attempt_id TEXT COLLATE "C",
    session_id TEXT COLLATE "C",
    epoch      BIGINT NOT NULL,
    outcome    TEXT COLLATE "C" NOT NULL,
    error      TEXT COLLATE "C",
    ended_at   BIGINT NOT NULL,
    PRIMARY KEY (namespace, id)
);

CREATE TABLE turn_waiting_tools (
    namespace    TEXT COLLATE "C" NOT NULL,
    task_id      TEXT COLLATE "C" NOT NULL,
    turn_id      TEXT COLLATE "C" NOT NULL,
    tool_call_id TEXT COLLATE "C" NOT NULL,
    kind         TEXT COLLATE "C" NOT NULL,
    deadline     BIGINT NOT NULL,
    wait_status  TEXT COLLATE "C" NOT NULL,
    result_card  TEXT COLLATE "C",
    created_at   BIGINT NOT NULL,
    updated_at   BIGINT NOT NULL,
    PRIMARY KEY (namespace, turn_id, tool_call_id)
);

CREATE TABLE turn_resume_ledger (
    namespace        TEXT COLLATE "C" NOT NULL,
    turn_id          TEXT COLLATE "C" NOT NULL,
    tool_call_id     TEXT COLLATE "C" NOT NULL,
    result_card      TEXT COLLATE "C" NOT NULL,
    task_id          TEXT COLLATE "C" NOT NULL,
    status           TEXT COLLATE "C" NOT NULL,
    attempt_count    BIGINT NOT NULL DEFAULT 0,
    next_retry_at    BIGINT,
    lease_owner      TEXT COLLATE "C",
    lease_expires_at BIGINT,
    last_error       TEXT COLLATE "C",
    created_at       BIGINT NOT NULL,
    updated_at       BIGINT NOT NULL,
    PRIMARY KEY (namespace, turn_id, tool_call_id, result_card)
);

CREATE TABLE approvals (
    namespace  TEXT COLLATE "C" NOT NULL,
    id         TEXT COLLATE "C" NOT NULL,
    task_id    TEXT COLLATE "C" NOT NULL,
    remind_at  BIGINT NOT NULL,
    expire_at  BIGINT NOT NULL,
    created_at BIGINT NOT NULL,
    decision   TEXT COLLATE "C",
    decided_by TEXT COLLATE "C",
    decided_at BIGINT,
    PRIMARY KEY (namespace, id)
);

CREATE TABLE dead_letters (
    namespace   TEXT COLLATE "C" NOT NULL,
    task_id     TEXT COLLATE "C" NOT NULL,
    agent       TEXT COLLATE "C" NOT NULL,
    reason      TEXT COLLATE "C" NOT NULL,
    fingerprint TEXT COLLATE "C" NOT NULL,
    retry_count BIGINT NOT NULL,
    failed_at   BIGINT NOT NULL,
    status      TEXT COLLATE "C" NOT NULL DEFAULT 'open',
    closed_at   BIGINT,
    PRIMARY KEY (namespace, task_id)
);
CREATE INDEX dead_letters_open ON dead_letters (namespace, fingerprint, task_id) WHERE status = 'open';

CREATE TABLE effects (
    namespace    TEXT COLLATE "C" NOT NULL,
    key          TEXT COLLATE "C" NOT NULL,
    task_id      TEXT COLLATE "C" NOT NULL,
    step         TEXT COLLATE "C" NOT NULL,
    status       TEXT COLLATE "C" NOT NULL,
    args_hash    TEXT COLLATE "C" NOT NULL,
    attempt_id   TEXT COLLATE "C",
    session_id   TEXT COLLATE "C",
    not_after    BIGINT,
    result_card  TEXT COLLATE "C",
    created_at   BIGINT NOT NULL,
    updated_at   BIGINT NOT NULL,
    PRIMARY KEY (namespace, key)
);

CREATE TABLE agent_inbox (
    namespace      TEXT COLLATE "C" NOT NULL,
    id             TEXT COLLATE "C" NOT NULL,
    agent          TEXT COLLATE "C" NOT NULL,
    agent_key      TEXT COLLATE "C",
    message_type   TEXT COLLATE "C" NOT NULL,
    correlation_id TEXT COLLATE "C" NOT NULL,
    channel        TEXT COLLATE "C",
    task_id        TEXT COLLATE "C",
    turn_id        TEXT COLLATE "C",
    turn_epoch     BIGINT,
    card_id        TEXT COLLATE "C",
    payload        TEXT COLLATE "C",
    status         TEXT COLLATE "C" NOT NULL,
    attempt_id     TEXT COLLATE "C",
    retry_count    BIGINT NOT NULL DEFAULT 0,
    next_retry_at  BIGINT,
    watchdog_error TEXT COLLATE "C",
    watchdog_at    BIGINT,
    created_at     BIGINT NOT NULL,
    processed_at   BIGINT,
    archived_at    BIGINT,
    PRIMARY KEY (namespace, id)
);
CREATE UNIQUE INDEX inbox_once ON agent_inbox (namespace, message_type, correlation_id);
CREATE INDEX inbox_open ON agent_inbox (namespace, agent, created_at, id)
    WHERE status IN ('queued', 'pending', 'processing');
CREATE INDEX inbox_of_turn ON agent_inbox (namespace, turn_id) WHERE turn_id IS NOT NULL;

CREATE TABLE sessions (
    namespace    TEXT COLLATE "C" NOT NULL,
    id           TEXT COLLATE "C" NOT NULL,
    kind         TEXT COLLATE "C" NOT NULL,
    name         TEXT COLLATE "C" NOT NULL,
    host         TEXT COLLATE "C" NOT NULL,
    pid          BIGINT NOT NULL,
    agents       TEXT COLLATE "C" NOT NULL,
    concurrency  BIGINT NOT NULL,
    started_at   BIGINT NOT NULL,
    heartbeat_at BIGINT NOT NULL,
    lease_until  BIGINT NOT NULL,
    unnamed      TEXT COLLATE "C" NOT NULL,
    ended_at     BIGINT,
    end_reason   TEXT COLLATE "C",
    PRIMARY KEY (namespace, id)
);
CREATE INDEX sessions_open ON sessions (namespace, lease_until) WHERE ended_at IS NULL;

CREATE TABLE agents (
    namespace      TEXT COLLATE "C" NOT NULL,
    name           TEXT COLLATE "C" NOT NULL,
    version        TEXT COLLATE "C",
    concurrency    BIGINT,
    retry_policy   TEXT COLLATE "C",
    deadline       BIGINT,
    payload_schema TEXT COLLATE "C",
    registered_at  BIGINT NOT NULL,
    PRIMARY KEY (namespace, name)
);

-- one row for each turn that a limited agent may have dispatched or running at once
CREATE TABLE slots (
    namespace TEXT COLLATE "C" NOT NULL,
    agent     TEXT COLLATE "C" NOT NULL,
    slot      BIGINT NOT NULL,
    task_id   TEXT COLLATE "C",
    PRIMARY KEY (namespace, agent, slot)
);

CREATE TABLE cursors (
    namespace TEXT COLLATE "C" NOT NULL,
    name      TEXT COLLATE "C" NOT NULL,
    position  TEXT COLLATE "C" NOT NULL,
    PRIMARY KEY (namespace, name)
);

-- A batch is written from arrays of these: one parameter per table, four times cheaper for both sides than
-- one per column. They are apart from the tables, so that a later release can add a column to a table
-- while processes of this one still run.
CREATE TYPE task_row AS (
    namespace text, id text, agent text, agent_key text, idempotency_key text, channel text, fair_key
    text, agent_version text, trace text, parent_id text, replay_of text, payload_card text, payload_hash
    text, priority bigint, retry_policy text, created_at bigint, status text, reason text, owner text,
    error text, deliverable_card text, dead_letter text, superseded_by text, turn_id text, turn_number
    bigint, redelivery text, attempt_id text, session_id text, slot bigint, waits text, retry_count
    bigint, dispatch_count bigint, crash_count bigint, crash_times text, recovery_attempt bigint, run_at
    bigint, ring_at bigint, dispatch_by bigint, progress_by bigint, wait_by bigint, suspend_by bigint,
    remind_at bigint, expire_at bigint, recover_at bigint, guard_at bigint, guard_reason text, held_since
    bigint, ends_by bigint, clock_at bigint, clock_rule text, epoch bigint, version bigint, head_hash
    bytea, started_at bigint, ended_at bigint, updated_at bigint
);
CREATE TYPE event_row AS (
    namespace text, task_id text, version bigint, type text, schema bigint, command_id text, causation_id
    text, actor text, at bigint, attempt_id text, epoch bigint, data bytea, hash bytea
);
CREATE TYPE card_row AS (
    namespace text, id text, task_id text, kind text, content bytea, hash text, created_at bigint
);
CREATE TYPE turn_row AS (
    namespace text, id text, task_id text, number bigint, agent text, attempt_id text, session_id text,
    epoch bigint, outcome text, error text, ended_at bigint
);
CREATE TYPE session_row AS (
    namespace text, id text, kind text, name text, host text, pid bigint, agents text, concurrency bigint,
    started_at bigint, heartbeat_at bigint, lease_until bigint, unnamed text, ended_at bigint, end_reason
    text
);
