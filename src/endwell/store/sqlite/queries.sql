-- Queries in SQLite's own SQL: the writes of the door, and reading many rows by id.
-- OR FAIL: a batch that the database refuses is rolled back whole, so that no statement of many rows need
-- keep copies of the pages that it changes, to undo itself alone.

-- name: tasks_by_ids (short if few)
-- Many tasks of one namespace; the ids come as one JSON array.
SELECT {t.columns} FROM json_each($2) ids
CROSS JOIN tasks t ON t.namespace = $1 AND t.id = ids.value;

-- name: results_by_ids (short if few)
-- The same with their deliverables, where these have at most $3 bytes.
SELECT {t.columns}, c.content FROM json_each($2) ids
CROSS JOIN tasks t ON t.namespace = $1 AND t.id = ids.value
LEFT JOIN cards c ON c.namespace = t.namespace AND c.id = t.deliverable_card AND length(c.content) <= $3;

-- name: ready
-- Ready tasks of one agent and priority, oldest first, whose agent key is free; with their payloads.
-- Tasks that crashed $6 times or more are found by the next query instead.
SELECT {t.columns}, c.content FROM tasks t
LEFT JOIN cards c ON c.namespace = t.namespace AND c.id = t.payload_card
WHERE t.namespace = $1 AND t.agent = $2 AND t.status = 'queued' AND t.priority = $3 AND t.run_at <= $4
  AND t.crash_count < $6
  AND (t.agent_key IS NULL OR NOT EXISTS (
      SELECT 1 FROM tasks h WHERE h.namespace = t.namespace AND h.agent = t.agent
      AND h.agent_key = t.agent_key AND h.turn_id IS NOT NULL AND h.id <> t.id))
ORDER BY t.run_at, t.id LIMIT $5;

-- name: suspects
-- Ready tasks of one agent that crashed so often that one more crash would end them.
SELECT {t.columns}, c.content FROM tasks t
LEFT JOIN cards c ON c.namespace = t.namespace AND c.id = t.payload_card
WHERE t.namespace = $1 AND t.agent = $2 AND t.status = 'queued' AND t.crash_count > 0
  AND t.crash_count >= $3 AND t.run_at <= $4
  AND (t.agent_key IS NULL OR NOT EXISTS (
      SELECT 1 FROM tasks h WHERE h.namespace = t.namespace AND h.agent = t.agent
      AND h.agent_key = t.agent_key AND h.turn_id IS NOT NULL AND h.id <> t.id))
ORDER BY t.run_at, t.id LIMIT $5;

-- name: offered
-- Dispatched turns of one agent, most urgent first; with their payloads.
SELECT {t.columns}, c.content FROM tasks t
LEFT JOIN cards c ON c.namespace = t.namespace AND c.id = t.payload_card
WHERE t.namespace = $1 AND t.agent = $2 AND t.status = 'dispatched'
ORDER BY t.priority DESC, t.run_at, t.id LIMIT $3;

-- name: free_slots
-- The free slots of an agent with a concurrency limit.
SELECT s.slot FROM slots s WHERE s.namespace = $1 AND s.agent = $2 AND s.slot < $3 AND s.task_id IS NULL
ORDER BY s.slot LIMIT $4;

-- name: add_task
-- A new task.
INSERT OR FAIL INTO tasks ({task_columns}) VALUES ({task_marks});

-- name: move_task
-- A task as it stands after the batch, guarded by the version that was read.
UPDATE tasks SET {task_moves} WHERE namespace = $1 AND id = $2 AND version = $3;

-- name: move_tasks
-- The same for many at once.
UPDATE OR FAIL tasks SET {m.moves} FROM (VALUES ({move_marks})) AS m
WHERE tasks.namespace = m.column1 AND tasks.id = m.column2 AND tasks.version = m.column3;

-- name: add_event
-- One event; the unique (task, version) refuses a second writer.
INSERT OR FAIL INTO events ({event_columns}) VALUES ({event_marks});

-- name: add_card
-- One card; cards are immutable, and a replayed write changes nothing.
INSERT OR FAIL INTO cards (namespace, id, task_id, kind, content, hash, created_at)
VALUES ($1, $2, $3, $4, $5, $6, $7) ON CONFLICT DO NOTHING;

-- name: set_slot
-- Take a slot for a task, or give it back.
UPDATE slots SET task_id = $1 WHERE namespace = $2 AND agent = $3 AND slot = $4;

-- name: save_session
-- A session as it stands.
INSERT INTO sessions ({session_columns}) VALUES ({session_marks})
ON CONFLICT (namespace, id) DO UPDATE SET heartbeat_at = excluded.heartbeat_at,
    lease_until = excluded.lease_until, unnamed = excluded.unnamed,
    ended_at = excluded.ended_at, end_reason = excluded.end_reason, doing = excluded.doing,
    ticked_at = excluded.ticked_at;

-- name: save_cursor
-- A cursor as it stands.
INSERT INTO cursors ({cursor_columns}) VALUES ({cursor_marks})
ON CONFLICT (namespace, name) DO UPDATE SET {cursor_moves};

-- name: add_tally
-- How many tasks a batch accepted and ended.
INSERT INTO tallies (namespace, writer, accepted, ended, updated_at) VALUES ($1, '', $2, $3, $4)
ON CONFLICT (namespace, writer) DO UPDATE SET accepted = accepted + excluded.accepted,
    ended = ended + excluded.ended, updated_at = excluded.updated_at;

-- name: save_agent
-- An agent as a starting worker registers it; the last one counts, but a foreign worker's never replaces ours.
INSERT INTO agents (namespace, registered_at, name, version, concurrency, retry_policy, deadline, payload_schema,
    kind, options, foreign_until)
VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11)
ON CONFLICT (namespace, name) DO UPDATE SET registered_at = excluded.registered_at,
    version = excluded.version, concurrency = excluded.concurrency, retry_policy = excluded.retry_policy,
    deadline = excluded.deadline, payload_schema = excluded.payload_schema, kind = excluded.kind,
    options = excluded.options, foreign_until = excluded.foreign_until
WHERE excluded.foreign_until IS NULL OR agents.foreign_until IS NOT NULL;

-- name: drop_expired_agents
-- Forget agents that foreign workers registered, once their rows have expired and no task waits for them.
DELETE FROM agents WHERE foreign_until <= $1 AND namespace = $2
    AND NOT EXISTS (SELECT 1 FROM tasks t WHERE t.namespace = $2 AND t.agent = agents.name AND t.status = 'queued')
    AND NOT EXISTS (SELECT 1 FROM tasks t WHERE t.namespace = $2 AND t.agent = agents.name
        AND t.status = 'dispatched');

-- name: rules
-- The approval rules that workers have registered for an agent, the oldest first.
SELECT rule FROM agent_rules WHERE namespace = $1 AND agent = $2 ORDER BY registered_at, session_id;

-- name: add_rule
-- An approval rule that a worker registers for an agent.
INSERT INTO agent_rules (namespace, agent, session_id, rule, registered_at) VALUES ($1, $2, $3, $4, $5)
ON CONFLICT (namespace, agent, session_id) DO UPDATE SET rule = excluded.rule,
    registered_at = excluded.registered_at;

-- name: drop_rules
-- Rules of an agent whose sessions have ended, or were never there.
DELETE FROM agent_rules WHERE namespace = $2 AND agent = $3 AND session_id <> $4 AND NOT EXISTS (
    SELECT 1 FROM sessions s WHERE s.namespace = $2 AND s.id = agent_rules.session_id AND s.ended_at IS NULL
    AND s.lease_until > $1);

-- name: add_slot
-- A slot of an agent with a limit; slots beyond a lowered limit are left and no longer taken.
INSERT INTO slots (namespace, agent, slot) VALUES ($1, $2, $3) ON CONFLICT DO NOTHING;

-- name: add_inbox_turn
-- A dispatched turn in its agent's inbox.
INSERT INTO agent_inbox (namespace, id, agent, agent_key, channel, task_id, turn_id, turn_epoch, created_at,
    recursion_depth, traceparent, trace_id, source_agent_id, enqueue_mode, message_type, correlation_id, status)
VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12, $13, 'dispatch', 'turn', $2, 'pending')
ON CONFLICT DO NOTHING;

-- name: requeue_message
-- A message whose processor is gone, unless another one has taken it.
UPDATE agent_inbox SET status = 'pending', attempt_id = NULL, processed_at = NULL, archived_at = NULL
WHERE namespace = $2 AND id = $3 AND status = 'processing' AND processed_at <= $1;

-- name: mark_inbox
-- A turn's inbox rows once the turn was taken, given back, or is over.
UPDATE agent_inbox SET status = $1, attempt_id = $2, processed_at = $3, archived_at = $4,
    watchdog_error = $7, watchdog_at = CASE WHEN $7 IS NULL THEN NULL ELSE $4 END
WHERE namespace = $5 AND turn_id = $6 AND message_type = 'turn' AND status IN ('pending', 'processing');

-- name: add_dead_letter
-- A failed task that awaits a verdict.
INSERT INTO dead_letters (namespace, task_id, agent, reason, fingerprint, retry_count, failed_at)
VALUES ($1, $2, $3, $4, $5, $6, $7);

-- name: close_dead_letter
-- The verdict on a dead letter.
UPDATE dead_letters SET status = $1, closed_at = $2 WHERE namespace = $3 AND task_id = $4;

-- name: add_approval
-- An approval; asking again for the same starts it over.
INSERT INTO approvals (namespace, id, task_id, question, shown_card, shown_hash, approvers, quorum, remind_at,
    expire_at, created_at)
VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11)
ON CONFLICT (namespace, id) DO UPDATE SET question = excluded.question, shown_card = excluded.shown_card,
    shown_hash = excluded.shown_hash, approvers = excluded.approvers, quorum = excluded.quorum,
    votes = CASE WHEN approvals.shown_hash = excluded.shown_hash THEN approvals.votes ELSE '' END,
    remind_at = excluded.remind_at, expire_at = excluded.expire_at,
    created_at = excluded.created_at, decision = NULL, decided_by = NULL, decided_at = NULL;

-- name: vote_approval
-- One person's consent, where several are needed.
UPDATE approvals SET votes = CASE WHEN votes = '' THEN $1 ELSE votes || ',' || $1 END
WHERE namespace = $2 AND id = $3 AND decision IS NULL;

-- name: close_approval
-- The decision on an approval.
UPDATE approvals SET decision = $1, decided_by = $2, decided_at = $3
WHERE namespace = $4 AND id = $5 AND decision IS NULL;

-- name: add_wait
-- A wait of a suspended turn.
INSERT INTO turn_waiting_tools (namespace, task_id, turn_id, tool_call_id, kind, name, deadline, wait_status,
    created_at, updated_at, place)
VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, $9, $10)
ON CONFLICT (namespace, turn_id, tool_call_id) DO UPDATE SET deadline = excluded.deadline, place = excluded.place,
    wait_status = excluded.wait_status, is_reported = 0, result_card = NULL, updated_at = excluded.updated_at;

-- name: answer_wait
-- The first answer to a wait, its expiry, or that its deadline was reported.
UPDATE turn_waiting_tools SET wait_status = $1, result_card = $2, is_reported = $3, updated_at = $4
WHERE namespace = $5 AND turn_id = $6 AND tool_call_id = $7;

-- name: drop_waits
-- The open waits of a turn that has ended.
UPDATE turn_waiting_tools SET wait_status = 'dropped', updated_at = $1
WHERE namespace = $2 AND turn_id = $3 AND wait_status = 'waiting';

-- name: add_effect
-- An effect's first intent; its key is unique.
INSERT INTO effects ({effect_columns}) VALUES ({effect_marks});

-- name: move_effect
-- An effect as it stands after the batch.
UPDATE effects SET {effect_moves} WHERE namespace = $1 AND key = $2;

-- name: mark_restored
-- The record of a namespace was restored or imported; the latest moment counts, of this clock or the record's.
INSERT INTO restores (namespace, restored_at, restored_by)
VALUES ($1, max($2, coalesce((SELECT max(updated_at) FROM tasks WHERE namespace = $1), 0)), $3)
ON CONFLICT (namespace) DO UPDATE
SET restored_at = max(restored_at, excluded.restored_at), restored_by = excluded.restored_by;

-- name: restored_at
-- When the record of a namespace was last restored, if it ever was.
SELECT restored_at FROM restores WHERE namespace = $1;

-- name: doubt_effect
-- An intent whose task ended: the effect is unknown.
UPDATE effects SET status = 'unknown', version = version + 1, updated_at = $1
WHERE namespace = $2 AND key = $3 AND task_id = $4 AND status = 'intended';

-- name: add_message
-- A message, once by type and correlation.
INSERT INTO agent_inbox ({message_columns}) VALUES ({message_marks}) ON CONFLICT DO NOTHING;

-- name: close_message
-- A message that is settled.
UPDATE agent_inbox SET status = $1, watchdog_error = $2, processed_at = $3, archived_at = $3,
    watchdog_at = CASE WHEN $2 IS NULL THEN NULL ELSE $3 END
WHERE namespace = $4 AND id = $5 AND status IN ('pending', 'processing');

-- name: add_resume
-- An answer on its way to a turn; a second one to the same call is no message, and leaves no row here either.
INSERT INTO turn_resume_ledger (namespace, turn_id, tool_call_id, result_card, task_id, message_id, status,
    created_at, updated_at)
SELECT $1, $2, $3, $4, $5, $6, $7, $8, $8
WHERE NOT EXISTS (SELECT 1 FROM agent_inbox
    WHERE namespace = $1 AND message_type = $9 AND correlation_id = $3 AND id <> $6)
ON CONFLICT DO NOTHING;

-- name: close_resume
-- An answer that was applied, or came too late.
UPDATE turn_resume_ledger SET status = $1, lease_owner = NULL, lease_expires_at = NULL, updated_at = $2
WHERE namespace = $3 AND message_id = $4 AND status IN ('pending', 'processing');

-- name: take_resume
-- An answer that a worker is about to deliver.
UPDATE turn_resume_ledger SET status = 'processing', lease_owner = $1, lease_expires_at = $2,
    attempt_count = attempt_count + 1, updated_at = $3
WHERE namespace = $4 AND message_id = $5 AND status = 'pending';

-- name: count_delivery
-- A message is about to be delivered once more.
UPDATE agent_inbox SET retry_count = retry_count + 1 WHERE namespace = $1 AND id = $2 AND status = 'pending';

-- name: reset_deliveries
-- A message was delivered, and stays until its task waits for it.
UPDATE agent_inbox SET retry_count = 0 WHERE namespace = $1 AND id = $2 AND status = 'pending' AND retry_count > 0;

-- name: requeue_resumes
-- Answers that their worker did not deliver in time.
UPDATE turn_resume_ledger SET status = 'pending', lease_owner = NULL, lease_expires_at = NULL, updated_at = $1
WHERE namespace = $2 AND status IN ('pending', 'processing') AND status = 'processing' AND lease_expires_at <= $1;

-- name: known_cards
-- The cards of these ids that exist; the ids come as one JSON array.
SELECT c.id FROM json_each($2) ids CROSS JOIN cards c ON c.namespace = $1 AND c.id = ids.value;

-- name: pending_message
-- One message, if it is pending.
SELECT {message_columns} FROM agent_inbox WHERE namespace = $1 AND id = $2 AND status = 'pending';

-- name: wait_for_call
-- A wait of a turn, open or not, by its call.
SELECT {wait_columns} FROM turn_waiting_tools WHERE namespace = $1 AND turn_id = $2 AND tool_call_id = $3;

-- name: live_children
-- The children of a task that have not ended.
SELECT {task_columns} FROM tasks
WHERE namespace = $1 AND parent_id = $2 AND parent_id IS NOT NULL AND clock_at IS NOT NULL ORDER BY id;

-- name: answers_waiting
-- Answers that were not applied: task, call, card. Looks at the thousand open calls whose deadlines come first;
-- an answer that was skipped as undeliverable is tried again only once its deadline has passed.
SELECT w.task_id, w.tool_call_id, max(c.id) FROM (
  SELECT namespace, task_id, turn_id, tool_call_id, deadline FROM turn_waiting_tools
  WHERE namespace = $1 AND wait_status = 'waiting' AND kind IN ('tool', 'call') ORDER BY deadline LIMIT 1000
) w
JOIN tasks t ON t.namespace = w.namespace AND t.id = w.task_id AND t.status = 'suspended' AND t.turn_id = w.turn_id
JOIN cards c ON c.namespace = w.namespace
  AND c.id >= w.task_id || '.a.' || substr(w.tool_call_id, length(w.task_id) + 4) || '~'
  AND c.id < w.task_id || '.a.' || substr(w.tool_call_id, length(w.task_id) + 4) || char(127)
WHERE NOT EXISTS (SELECT 1 FROM agent_inbox i WHERE i.namespace = w.namespace AND i.task_id = w.task_id
      AND (i.status = 'pending' OR i.status = 'skipped' AND w.deadline > $2)
      AND i.message_type IN ('tool_result', 'child', 'timeout') AND i.correlation_id = w.tool_call_id)
GROUP BY w.task_id, w.tool_call_id LIMIT $3;

-- name: cards_by_ids (short if few)
-- Many cards of one namespace; the ids come as one JSON array.
SELECT c.namespace, c.id, c.task_id, c.kind, c.content, c.hash, c.created_at FROM json_each($2) ids
CROSS JOIN cards c ON c.namespace = $1 AND c.id = ids.value;

-- name: events_after
-- The log after a cursor, in the order of commits.
SELECT e.seq, e.seq, {e.columns}, p.hash FROM events e
LEFT JOIN events p ON p.namespace = e.namespace AND p.task_id = e.task_id AND p.version = e.version - 1
WHERE e.namespace = $1 AND e.seq > $2 ORDER BY e.seq LIMIT $3;

-- name: log_end
-- The cursor of the last event.
SELECT COALESCE(max(seq), 0) FROM events;

-- name: last_position
-- The highest position of any event.
SELECT COALESCE(max(seq), 0) FROM events;

-- name: session_with_held
-- A session, and the tasks that it holds.
SELECT {s.columns}, {t.columns} FROM sessions s
LEFT JOIN tasks t ON t.namespace = s.namespace AND t.session_id = s.id AND t.session_id IS NOT NULL
WHERE s.namespace = $1 AND s.id = $2 ORDER BY t.id;

-- name: ready_turns
-- Ready tasks of one agent and priority behind a position ($5, $6), oldest first, with the fields that an offer
-- on a stream needs.
SELECT t.id, t.agent, t.agent_key, t.idempotency_key, t.parent_id, t.turn_id, t.turn_number, t.epoch, t.retry_count,
       t.crash_count, t.priority, t.run_at, g.concurrency, c.content
FROM tasks t
CROSS JOIN agents g ON g.namespace = t.namespace AND g.name = t.agent
LEFT JOIN cards c ON c.namespace = t.namespace AND c.id = t.payload_card
WHERE t.namespace = $1 AND t.agent = $2 AND t.status = 'queued' AND t.priority = $3 AND t.run_at <= $4
  AND (t.run_at, t.id) > ($5, $6)
ORDER BY t.run_at, t.id LIMIT $7;

-- name: epochs_of_queued (short)
-- The queued ones of these tasks, with their epochs; the ids come as one JSON array.
SELECT t.id, t.epoch FROM json_each($2) ids
CROSS JOIN tasks t ON t.namespace = $1 AND t.id = ids.value WHERE t.status = 'queued';

-- name: schema_objects
-- The names of the tables and indexes.
SELECT name FROM sqlite_master WHERE type IN ('table', 'index');

-- name: integrity
-- The faults that the database finds in its file; `ok` if none.
SELECT * FROM pragma_quick_check;

-- name: idle_transactions
-- Processes with a transaction open and idle for $1 seconds: a file does not tell.
SELECT 0, '', 0 WHERE $1 < 0;

-- name: log_holders
-- Transactions that keep events from followers: there are none, because one connection writes at a time.
SELECT 0, '', 0, '', NULL WHERE $1 < 0;
