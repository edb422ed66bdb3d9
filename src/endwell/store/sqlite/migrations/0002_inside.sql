-- The inside of a turn: recorded work and family of a task, effects, approvals, answers on their way.

ALTER TABLE tasks ADD COLUMN family TEXT;
ALTER TABLE tasks ADD COLUMN inside TEXT;
-- who was asked is part of the task from now on
UPDATE tasks SET inside = '{"asked":[{"id":"' || id || '","shown_hash":""}]}' WHERE expire_at IS NOT NULL;
CREATE INDEX tasks_children ON tasks (namespace, parent_id, id) WHERE parent_id IS NOT NULL;
CREATE INDEX tasks_waiting ON tasks (namespace, wait_by, id) WHERE wait_by IS NOT NULL;

ALTER TABLE turn_waiting_tools ADD COLUMN name TEXT NOT NULL DEFAULT '';

CREATE INDEX waits_open ON turn_waiting_tools (namespace, deadline) WHERE wait_status = 'waiting';

ALTER TABLE turn_resume_ledger ADD COLUMN message_id TEXT NOT NULL DEFAULT '';
CREATE INDEX resumes_of_message ON turn_resume_ledger (namespace, message_id);
CREATE INDEX resumes_open ON turn_resume_ledger (namespace, status, lease_expires_at)
    WHERE status IN ('pending', 'processing');

ALTER TABLE approvals ADD COLUMN question TEXT NOT NULL DEFAULT '';
ALTER TABLE approvals ADD COLUMN shown_card TEXT NOT NULL DEFAULT '';
ALTER TABLE approvals ADD COLUMN shown_hash TEXT NOT NULL DEFAULT '';
ALTER TABLE approvals ADD COLUMN approvers TEXT NOT NULL DEFAULT '';
ALTER TABLE approvals ADD COLUMN quorum INTEGER NOT NULL DEFAULT 1;
ALTER TABLE approvals ADD COLUMN votes TEXT NOT NULL DEFAULT '';
CREATE INDEX approvals_open ON approvals (namespace, id) WHERE decision IS NULL;
CREATE INDEX approvals_of_task ON approvals (namespace, task_id);

-- nothing was ever written to the first form of this table
DROP TABLE effects;
CREATE TABLE effects (
    namespace   TEXT    NOT NULL,
    key         TEXT    NOT NULL,
    task_id     TEXT    NOT NULL,
    lineage     TEXT    NOT NULL,
    step        TEXT    NOT NULL,
    status      TEXT    NOT NULL,
    args_hash   TEXT    NOT NULL,
    attempt_id  TEXT,
    session_id  TEXT,
    not_after   INTEGER,
    result_card TEXT,
    result_hash TEXT,
    settled_by  TEXT,
    version     INTEGER NOT NULL,
    created_at  INTEGER NOT NULL,
    updated_at  INTEGER NOT NULL,
    PRIMARY KEY (namespace, key)
) STRICT;
CREATE INDEX effects_open ON effects (namespace, key) WHERE status IN ('intended', 'unknown');
CREATE INDEX effects_of_task ON effects (namespace, task_id);

CREATE INDEX inbox_of_task ON agent_inbox (namespace, task_id, created_at, id)
    WHERE status = 'pending' AND message_type <> 'turn';

ALTER TABLE sessions ADD COLUMN doing TEXT NOT NULL DEFAULT '';
ALTER TABLE agents ADD COLUMN kind TEXT NOT NULL DEFAULT 'agent';
ALTER TABLE agents ADD COLUMN options TEXT;
