-- Waits that are too many for their task's row are rows alone: each with its place in the suspension, and whether
-- its deadline was reported. Suspended turns that keep their waits in the task's row go on as they are.

ALTER TABLE turn_waiting_tools ADD COLUMN place INTEGER NOT NULL DEFAULT 0;
ALTER TABLE turn_waiting_tools ADD COLUMN is_reported INTEGER NOT NULL DEFAULT 0;

CREATE INDEX waits_next ON turn_waiting_tools (namespace, turn_id, deadline, place)
    WHERE wait_status = 'waiting' AND is_reported = 0;
CREATE INDEX waits_signals ON turn_waiting_tools (namespace, turn_id, name, place)
    WHERE kind = 'signal' AND wait_status = 'waiting';
