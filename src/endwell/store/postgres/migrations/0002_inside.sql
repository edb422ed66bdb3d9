-- The inside of a turn: recorded work and family of a task, effects, approvals, answers on their way.

ALTER TABLE tasks ADD COLUMN family TEXT COLLATE "C";
ALTER TABLE tasks ADD COLUMN inside TEXT COLLATE "C";
-- who was asked is part of the task from now on
UPDATE tasks SET inside = '{"asked":[{"id":"' || id || '","shown_hash":""}]}' WHERE expire_at IS NOT NULL;
CREATE INDEX tasks_children ON tasks (namespace, parent_id, id) WHERE parent_id IS NOT NULL;
CREATE INDEX tasks_waiting ON tasks (namespace, wait_by, id) WHERE wait_by IS NOT NULL;

ALTER TABLE turn_waiting_tools ADD COLUMN name TEXT COLLATE "C" NOT NULL DEFAULT '';

CREATE INDEX waits_open ON turn_waiting_tools (namespace, deadline) WHERE wait_status = 'waiting';

ALTER TABLE turn_resume_ledger ADD COLUMN message_id TEXT COLLATE "C" NOT NULL DEFAULT '';
CREATE INDEX resumes_of_message ON turn_resume_ledger (namespace, message_id);
CREATE INDEX resumes_open ON turn_resume_ledger (namespace, status, lease_expires_at)
    WHERE status IN ('pending', 'processing');

ALTER TABLE approvals ADD COLUMN question TEXT COLLATE "C" NOT NULL DEFAULT '';
ALTER TABLE approvals ADD COLUMN shown_card TEXT COLLATE "C" NOT NULL DEFAULT '';
ALTER TABLE approvals ADD COLUMN shown_hash TEXT COLLATE "C" NOT NULL DEFAULT '';
ALTER TABLE approvals ADD COLUMN approvers TEXT COLLATE "C" NOT NULL DEFAULT '';
ALTER TABLE approvals ADD COLUMN quorum BIGINT NOT NULL DEFAULT 1;
ALTER TABLE approvals ADD COLUMN votes TEXT COLLATE "C" NOT NULL DEFAULT '';
CREATE INDEX approvals_open ON approvals (namespace, id) WHERE decision IS NULL;
CREATE INDEX approvals_of_task ON approvals (namespace, task_id);

-- nothing was ever written to the first form of this table
DROP TABLE effects;
CREATE TABLE effects (
    namespace   TEXT COLLATE "C" NOT NULL,
    key         TEXT COLLATE "C" NOT NULL,
    task_id     TEXT COLLATE "C" NOT NULL,
    lineage     TEXT COLLATE "C" NOT NULL,
    step        TEXT COLLATE "C" NOT NULL,
    status      TEXT COLLATE "C" NOT NULL,
    args_hash   TEXT COLLATE "C" NOT NULL,
    attempt_id  TEXT COLLATE "C",
    session_id  TEXT COLLATE "C",
    not_after   BIGINT,
    result_card TEXT COLLATE "C",
    result_hash TEXT COLLATE "C",
    settled_by  TEXT COLLATE "C",
    version     BIGINT NOT NULL,
    created_at  BIGINT NOT NULL,
    updated_at  BIGINT NOT NULL,
    PRIMARY KEY (namespace, key)
);
CREATE INDEX effects_open ON effects (namespace, key) WHERE status IN ('intended', 'unknown');
CREATE INDEX effects_of_task ON effects (namespace, task_id);

CREATE INDEX inbox_of_task ON agent_inbox (namespace, task_id, created_at, id)
    WHERE status = 'pending' AND message_type <> 'turn';

ALTER TABLE sessions ADD COLUMN doing TEXT COLLATE "C" NOT NULL DEFAULT '';
ALTER TABLE agents ADD COLUMN kind TEXT COLLATE "C" NOT NULL DEFAULT 'agent';
ALTER TABLE agents ADD COLUMN options TEXT COLLATE "C";

-- rows as they are handed over, in the order of their fields
DROP TYPE task_row;
CREATE TYPE task_row AS (
    namespace text, id text, agent text, agent_key text, idempotency_key text, channel text, fair_key text,
    agent_version text, trace text, parent_id text, replay_of text, payload_card text, payload_hash text,
    priority bigint, retry_policy text, family text, created_at bigint, status text, reason text, owner
    text, error text, deliverable_card text, dead_letter text, superseded_by text, turn_id text, turn_number
    bigint, redelivery text, attempt_id text, session_id text, slot bigint, waits text, inside text,
    retry_count bigint, dispatch_count bigint, crash_count bigint, crash_times text, recovery_attempt
    bigint, run_at bigint, ring_at bigint, dispatch_by bigint, progress_by bigint, wait_by bigint,
    suspend_by bigint, remind_at bigint, expire_at bigint, recover_at bigint, guard_at bigint, guard_reason
    text, held_since bigint, ends_by bigint, clock_at bigint, clock_rule text, epoch bigint, version bigint,
    head_hash bytea, started_at bigint, ended_at bigint, updated_at bigint
);
DROP TYPE session_row;
CREATE TYPE session_row AS (
    namespace text, id text, kind text, name text, host text, pid bigint, agents text, concurrency bigint,
    started_at bigint, heartbeat_at bigint, lease_until bigint, unnamed text, ended_at bigint, end_reason
    text, doing text
);
CREATE TYPE effect_row AS (
    namespace text, key text, task_id text, lineage text, step text, status text, args_hash text, attempt_id
    text, session_id text, not_after bigint, result_card text, result_hash text, settled_by text, version
    bigint, created_at bigint, updated_at bigint
);
CREATE TYPE message_row AS (
    namespace text, id text, agent text, agent_key text, message_type text, correlation_id text, channel
    text, task_id text, turn_id text, turn_epoch bigint, card_id text, payload text, status text, created_at
    bigint, watchdog_error text
);
