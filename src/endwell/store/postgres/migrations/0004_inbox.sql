-- The inbox in full: where a message comes from, what is being processed, what has waited for long.

ALTER TABLE agent_inbox ADD COLUMN enqueue_mode TEXT COLLATE "C";
ALTER TABLE agent_inbox ADD COLUMN recursion_depth BIGINT NOT NULL DEFAULT 0;
ALTER TABLE agent_inbox ADD COLUMN traceparent TEXT COLLATE "C";
ALTER TABLE agent_inbox ADD COLUMN tracestate TEXT COLLATE "C";
ALTER TABLE agent_inbox ADD COLUMN trace_id TEXT COLLATE "C";
ALTER TABLE agent_inbox ADD COLUMN parent_step_id TEXT COLLATE "C";
ALTER TABLE agent_inbox ADD COLUMN source_agent_id TEXT COLLATE "C";
ALTER TABLE agent_inbox ADD COLUMN source_step_id TEXT COLLATE "C";
ALTER TABLE agent_inbox ADD COLUMN defer_reason TEXT COLLATE "C";
ALTER TABLE agent_inbox ADD COLUMN last_error TEXT COLLATE "C";

DROP INDEX inbox_of_task;
CREATE INDEX inbox_of_task ON agent_inbox (namespace, task_id, created_at, id) WHERE status = 'pending';
CREATE INDEX inbox_pending ON agent_inbox (namespace, created_at, id) WHERE status = 'pending';
CREATE INDEX inbox_processing ON agent_inbox (namespace, processed_at) WHERE status = 'processing';

-- rows as they are handed over, in the order of their fields
DROP TYPE message_row;
CREATE TYPE message_row AS (
    namespace text, id text, agent text, agent_key text, message_type text, correlation_id text, channel
    text, task_id text, turn_id text, turn_epoch bigint, card_id text, payload text, status text, created_at
    bigint, watchdog_error text, enqueue_mode text, recursion_depth bigint, traceparent text, tracestate
    text, trace_id text, parent_step_id text, source_agent_id text, source_step_id text
);
