-- The inbox in full: where a message comes from, what is being processed, what has waited for long.

ALTER TABLE agent_inbox ADD COLUMN enqueue_mode TEXT;
ALTER TABLE agent_inbox ADD COLUMN recursion_depth INTEGER NOT NULL DEFAULT 0;
ALTER TABLE agent_inbox ADD COLUMN traceparent TEXT;
ALTER TABLE agent_inbox ADD COLUMN tracestate TEXT;
ALTER TABLE agent_inbox ADD COLUMN trace_id TEXT;
ALTER TABLE agent_inbox ADD COLUMN parent_step_id TEXT;
ALTER TABLE agent_inbox ADD COLUMN source_agent_id TEXT;
ALTER TABLE agent_inbox ADD COLUMN source_step_id TEXT;
ALTER TABLE agent_inbox ADD COLUMN defer_reason TEXT;
ALTER TABLE agent_inbox ADD COLUMN last_error TEXT;

DROP INDEX inbox_of_task;
CREATE INDEX inbox_of_task ON agent_inbox (namespace, task_id, created_at, id) WHERE status = 'pending';
CREATE INDEX inbox_pending ON agent_inbox (namespace, created_at, id) WHERE status = 'pending';
CREATE INDEX inbox_processing ON agent_inbox (namespace, processed_at) WHERE status = 'processing';
