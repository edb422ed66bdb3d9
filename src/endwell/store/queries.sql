-- Questions that both stores understand as they stand. `$1` is the namespace throughout.

-- name: task_by_id (short, steady)
-- One task.
SELECT {task_columns} FROM tasks WHERE namespace = $1 AND id = $2;

-- name: task_by_key (short)
-- The task that an idempotency key belongs to.
SELECT {task_columns} FROM tasks
WHERE namespace = $1 AND idempotency_key = $2 AND idempotency_key <> id;

-- name: tasks_page
-- The newest tasks first, optionally of one status, agent, agent key; the page after `before`.
SELECT {task_columns} FROM tasks
WHERE namespace = $1
  AND (CAST($2 AS text) IS NULL OR status = CAST($2 AS text))
  AND (CAST($3 AS text) IS NULL OR agent = CAST($3 AS text))
  AND (CAST($4 AS text) IS NULL OR agent_key = CAST($4 AS text))
  AND (CAST($5 AS text) IS NULL OR id < CAST($5 AS text))
ORDER BY id DESC LIMIT $6;

-- name: suspect_out
-- A row if a task that crashed $2 times or more is offered to workers, or held by one.
SELECT 1 WHERE EXISTS (SELECT 1 FROM tasks WHERE namespace = $1 AND status = 'dispatched' AND crash_count >= $2)
    OR EXISTS (SELECT 1 FROM tasks WHERE namespace = $1 AND session_id IS NOT NULL AND crash_count >= $2);

-- name: card (short, steady)
-- One card.
SELECT namespace, id, task_id, kind, content, hash, created_at FROM cards WHERE namespace = $1 AND id = $2;

-- name: events_of_task
-- The whole log of one task, in order.
SELECT {event_columns} FROM events WHERE namespace = $1 AND task_id = $2 ORDER BY version;

-- name: oldest_after
-- When the first event after a position took place, whether followers may read it yet or not.
SELECT at FROM events WHERE namespace = $1 AND seq > $2 ORDER BY seq LIMIT 1;

-- name: events_out_of_order
-- Events of a run of tasks ($2 to $3) whose position is not above that of the previous event of their task.
SELECT task_id, version FROM (
    SELECT task_id, version, seq, lag(seq) OVER (PARTITION BY task_id ORDER BY version) AS previous
    FROM events WHERE namespace = $1 AND task_id >= $2 AND task_id <= $3
) e WHERE seq <= previous ORDER BY task_id, version;

-- name: positions_of_task
-- The positions of one task's events.
SELECT version, seq FROM events WHERE namespace = $1 AND task_id = $2;

-- name: event_is_stored
-- Whether exactly this event is in the log: asked when a commit's answer was lost.
SELECT 1 FROM events WHERE namespace = $1 AND task_id = $2 AND version = $3 AND hash = $4;

-- name: session_is_stored
-- Whether a session is stored as it was to be written: likewise.
SELECT 1 FROM sessions WHERE namespace = $1 AND id = $2 AND heartbeat_at = $3 AND unnamed = $4
  AND ended_at IS NOT DISTINCT FROM CAST($5 AS bigint);

-- name: due
-- Tasks whose clock has passed, paged by (clock_at, id): the cost grows with what is due.
SELECT id, clock_at FROM tasks
WHERE namespace = $1 AND clock_at <= $2 AND (clock_at, id) > ($3, CAST($4 AS text))
ORDER BY clock_at, id LIMIT $5;

-- name: held_tasks
-- Tasks that a person holds because of an unknown effect, with the packed state that names it; by id.
SELECT id, inside FROM tasks
WHERE namespace = $1 AND status = 'blocked' AND reason = 'effect_unknown' AND id > CAST($2 AS text)
ORDER BY id LIMIT $3;

-- name: expired_claims
-- Running tasks whose holder's session has lapsed, has ended, or is unknown. In the order of the index of held
-- tasks: in any other, SQLite reads all tasks there ever were.
SELECT t.id, t.attempt_id, t.session_id, t.agent FROM tasks t
LEFT JOIN sessions s ON s.namespace = t.namespace AND s.id = t.session_id
WHERE t.namespace = $1 AND t.session_id IS NOT NULL
  AND (s.id IS NULL OR s.ended_at IS NOT NULL OR s.lease_until <= $2)
ORDER BY t.session_id, t.id LIMIT $3;

-- name: lapsed_sessions
-- Sessions whose lease has lapsed and that hold no task: they are to be closed.
SELECT id FROM sessions s
WHERE namespace = $1 AND ended_at IS NULL AND lease_until <= $2
  AND NOT EXISTS (SELECT 1 FROM tasks t WHERE t.namespace = s.namespace AND t.session_id = s.id)
ORDER BY id LIMIT $3;

-- name: session (short, steady)
-- One session.
SELECT {session_columns} FROM sessions WHERE namespace = $1 AND id = $2;

-- name: open_sessions (steady)
-- Every session that has not ended, live or lapsed.
SELECT {session_columns} FROM sessions WHERE namespace = $1 AND ended_at IS NULL ORDER BY id;

-- name: load_of_sessions (steady)
-- How many tasks each session holds.
SELECT session_id, count(*) FROM tasks WHERE namespace = $1 AND session_id IS NOT NULL GROUP BY session_id;

-- name: offered_count
-- How many turns of an agent are offered and not yet taken.
SELECT count(*) FROM tasks WHERE namespace = $1 AND agent = $2 AND status = 'dispatched';

-- name: agent (short, steady)
-- One agent as it was last registered.
SELECT name, version, concurrency, retry_policy, deadline, payload_schema, kind, options, foreign_until FROM agents
WHERE namespace = $1 AND name = $2;

-- name: agents
-- All agents that a worker has ever registered.
SELECT name, version, concurrency, retry_policy, deadline, payload_schema, kind, options, foreign_until FROM agents
WHERE namespace = $1 ORDER BY name;

-- name: priorities (short)
-- The distinct priorities among an agent's queued tasks, highest first, by one index seek each.
WITH RECURSIVE p(priority) AS (
    SELECT max(priority) FROM tasks WHERE namespace = $1 AND agent = $2 AND status = 'queued'
    UNION ALL
    SELECT (SELECT max(t.priority) FROM tasks t
            WHERE t.namespace = $1 AND t.agent = $2 AND t.status = 'queued' AND t.priority < p.priority)
    FROM p WHERE p.priority IS NOT NULL
)
SELECT priority FROM p WHERE priority IS NOT NULL;

-- name: ready_since
-- Since when the longest-waiting ready task of this agent and priority has been ready.
SELECT min(run_at) FROM tasks
WHERE namespace = $1 AND agent = $2 AND status = 'queued' AND priority = $3 AND run_at <= $4;

-- name: dead_letters_page
-- Dead letters, newest first.
SELECT task_id, agent, reason, fingerprint, retry_count, failed_at, status, closed_at FROM dead_letters
WHERE namespace = $1
  AND (CAST($2 AS text) IS NULL OR status = CAST($2 AS text))
  AND (CAST($3 AS text) IS NULL OR fingerprint = CAST($3 AS text))
  AND (CAST($4 AS text) IS NULL OR task_id < CAST($4 AS text))
ORDER BY task_id DESC LIMIT $5;

-- name: dead_letter
-- One dead letter.
SELECT task_id, agent, reason, fingerprint, retry_count, failed_at, status, closed_at FROM dead_letters
WHERE namespace = $1 AND task_id = $2;

-- name: counts
-- How many tasks there are in each status.
SELECT status, count(*) FROM tasks WHERE namespace = $1 GROUP BY status;

-- name: heads
-- Version and hash of each task's last event, as its row has them; for verifying the log against the rows.
SELECT id, version, head_hash FROM tasks WHERE namespace = $1 AND id > $2 ORDER BY id LIMIT $3;

-- name: event_tasks
-- The ids of the tasks in the log, in order; for finding rows that are gone.
SELECT DISTINCT task_id FROM events WHERE namespace = $1 AND task_id > $2 ORDER BY task_id LIMIT $3;

-- name: events_between
-- The log of a run of tasks, task by task, in order.
SELECT {event_columns} FROM events
WHERE namespace = $1 AND task_id >= $2 AND task_id <= $3 ORDER BY task_id, version;

-- name: namespaces
-- Every namespace of the record, by one index seek for each table: also of one whose tasks are gone.
WITH RECURSIVE t(namespace) AS (
    SELECT min(namespace) FROM tasks
    UNION ALL
    SELECT (SELECT min(x.namespace) FROM tasks x WHERE x.namespace > t.namespace)
    FROM t WHERE t.namespace IS NOT NULL
), e(namespace) AS (
    SELECT min(namespace) FROM events
    UNION ALL
    SELECT (SELECT min(x.namespace) FROM events x WHERE x.namespace > e.namespace)
    FROM e WHERE e.namespace IS NOT NULL
), c(namespace) AS (
    SELECT min(namespace) FROM cards
    UNION ALL
    SELECT (SELECT min(x.namespace) FROM cards x WHERE x.namespace > c.namespace)
    FROM c WHERE c.namespace IS NOT NULL
), o(namespace) AS (
    SELECT min(namespace) FROM effects
    UNION ALL
    SELECT (SELECT min(x.namespace) FROM effects x WHERE x.namespace > o.namespace)
    FROM o WHERE o.namespace IS NOT NULL
)
SELECT namespace FROM t WHERE namespace IS NOT NULL
UNION
SELECT namespace FROM e WHERE namespace IS NOT NULL
UNION
SELECT namespace FROM c WHERE namespace IS NOT NULL
UNION
SELECT namespace FROM o WHERE namespace IS NOT NULL
UNION
SELECT namespace FROM tallies WHERE accepted <> 0
ORDER BY namespace;

-- name: key_holder (short)
-- The task whose turn holds an agent key.
SELECT id FROM tasks
WHERE namespace = $1 AND agent = $2 AND agent_key = $3 AND turn_id IS NOT NULL AND agent_key IS NOT NULL;

-- name: cards_between (steady)
-- The cards from one id up to another, which is not included.
SELECT namespace, id, task_id, kind, content, hash, created_at FROM cards
WHERE namespace = $1 AND id >= $2 AND id < $3 ORDER BY id;

-- name: cards_page (steady)
-- The cards behind one id and before another, by id.
SELECT namespace, id, task_id, kind, content, hash, created_at FROM cards
WHERE namespace = $1 AND id > $2 AND id < $3 ORDER BY id LIMIT $4;

-- name: approvals_between
-- Approvals behind one id and before another, by id.
SELECT {approval_columns} FROM approvals WHERE namespace = $1 AND id > $2 AND id < $3 ORDER BY id LIMIT $4;

-- name: dead_letters_between
-- The dead letters of the tasks behind one and before another.
SELECT task_id, agent, reason, fingerprint, retry_count, failed_at, status, closed_at FROM dead_letters
WHERE namespace = $1 AND task_id > $2 AND task_id < $3 ORDER BY task_id LIMIT $4;

-- name: waits_between
-- Waits behind one turn and call and before another turn.
SELECT turn_id, tool_call_id, task_id, kind, name, deadline, wait_status, result_card, place, is_reported
FROM turn_waiting_tools WHERE namespace = $1 AND (turn_id, tool_call_id) > ($2, $4) AND turn_id < $3
ORDER BY turn_id, tool_call_id LIMIT $5;

-- name: effect (short)
-- One effect.
SELECT {effect_columns} FROM effects WHERE namespace = $1 AND key = $2;

-- name: effects_page
-- Effects of one status or task; the page after `after`.
SELECT {effect_columns} FROM effects
WHERE namespace = $1
  AND (CAST($2 AS text) IS NULL OR status = CAST($2 AS text))
  AND (CAST($3 AS text) IS NULL OR task_id = CAST($3 AS text))
  AND (CAST($4 AS text) IS NULL OR key > CAST($4 AS text))
ORDER BY key LIMIT $5;

-- name: pending_messages (short)
-- Messages that wait in the inbox for one task, oldest first.
SELECT {message_columns} FROM agent_inbox
WHERE namespace = $1 AND task_id = $2 AND status = 'pending' AND message_type <> 'turn'
ORDER BY created_at, id;

-- name: pending_of_task
-- All pending messages of one task, offered turns included, oldest first.
SELECT {message_columns} FROM agent_inbox
WHERE namespace = $1 AND task_id = $2 AND status = 'pending' ORDER BY created_at, id;

-- name: inbox_page
-- Messages, newest first, optionally of one status, agent, task or type; the page before (created_at, id).
SELECT {inbox_columns} FROM agent_inbox
WHERE namespace = $1
  AND (CAST($2 AS text) IS NULL OR status = CAST($2 AS text))
  AND (CAST($3 AS text) IS NULL OR agent = CAST($3 AS text))
  AND (CAST($4 AS text) IS NULL OR task_id = CAST($4 AS text))
  AND (CAST($5 AS text) IS NULL OR message_type = CAST($5 AS text))
  AND (CAST($6 AS bigint) IS NULL OR (created_at, id) < (CAST($6 AS bigint), CAST($7 AS text)))
ORDER BY created_at DESC, id DESC LIMIT $8;

-- name: inbox_row
-- One message.
SELECT {inbox_columns} FROM agent_inbox WHERE namespace = $1 AND id = $2;

-- name: long_pending
-- Messages that have been pending since before $2, oldest first, after (created_at, id); with facts of their
-- tasks.
SELECT i.id, i.agent, i.message_type, i.channel, i.task_id, i.turn_id, i.created_at, t.channel, t.turn_id, t.status
FROM agent_inbox i LEFT JOIN tasks t ON t.namespace = i.namespace AND t.id = i.task_id
WHERE i.namespace = $1 AND i.status = 'pending' AND i.created_at <= $2
  AND (i.created_at, i.id) > ($3, CAST($4 AS text))
ORDER BY i.created_at, i.id LIMIT $5;

-- name: pending_since
-- Whether a message has been pending for at least $3 microseconds.
SELECT 1 FROM agent_inbox WHERE namespace = $1 AND status = 'pending' AND created_at <= $2 - $3 LIMIT 1;

-- name: processing_since
-- Whether a message has been processed for at least $3 microseconds.
SELECT 1 FROM agent_inbox WHERE namespace = $1 AND status = 'processing' AND processed_at <= $2 - $3 LIMIT 1;

-- name: stale_messages
-- Messages that have been processing since before $2 for an attempt that is no longer live at $3.
SELECT i.id FROM agent_inbox i
WHERE i.namespace = $1 AND i.status = 'processing' AND i.processed_at <= $2
  AND NOT EXISTS (SELECT 1 FROM tasks t JOIN sessions s ON s.namespace = t.namespace AND s.id = t.session_id
      WHERE t.namespace = i.namespace AND t.id = i.task_id AND t.attempt_id = i.attempt_id
        AND s.ended_at IS NULL AND s.lease_until > $3)
ORDER BY i.processed_at, i.id LIMIT $4;

-- name: undelivered
-- Messages older than $2 that could be consumed now: their task has ended (these first: they are closed for
-- good), or it waits.
SELECT {i.columns}, t.status, i.retry_count FROM agent_inbox i
JOIN tasks t ON t.namespace = i.namespace AND t.id = i.task_id
WHERE i.namespace = $1 AND i.status = 'pending' AND i.message_type <> 'turn' AND i.created_at <= $2
  AND t.status IN ('suspended', 'succeeded', 'failed', 'timeout', 'cancelled')
ORDER BY CASE WHEN t.status = 'suspended' THEN 1 ELSE 0 END, i.created_at, i.id LIMIT $3;

-- name: pending_resumes
-- Answers in the resume ledger whose turn waits: message, task, failed deliveries.
SELECT r.message_id, r.task_id, i.retry_count FROM turn_resume_ledger r
JOIN agent_inbox i ON i.namespace = r.namespace AND i.id = r.message_id AND i.status = 'pending'
JOIN tasks t ON t.namespace = r.namespace AND t.id = r.task_id AND t.status = 'suspended'
WHERE r.namespace = $1 AND r.status IN ('pending', 'processing') AND r.status = 'pending' AND r.created_at <= $2
ORDER BY r.created_at LIMIT $3;

-- name: due_waits
-- Suspended tasks with an overdue wait, the longest overdue first.
SELECT id FROM tasks WHERE namespace = $1 AND wait_by IS NOT NULL AND wait_by <= $2 AND status = 'suspended'
ORDER BY wait_by, id LIMIT $3;

-- name: next_wait (short)
-- The deadline of the next wait of any task.
SELECT min(wait_by) FROM tasks WHERE namespace = $1 AND wait_by IS NOT NULL;

-- name: children
-- The children of a task, in the order of their creation.
SELECT {task_columns} FROM tasks WHERE namespace = $1 AND parent_id = $2 AND parent_id IS NOT NULL ORDER BY id;

-- name: approval (short)
-- One approval.
SELECT {approval_columns} FROM approvals WHERE namespace = $1 AND id = $2;

-- name: approvals_page
-- Approvals, open ones ($2 = 1) or all, optionally of one task; the page after an id.
SELECT {approval_columns} FROM approvals
WHERE namespace = $1 AND (decision IS NULL OR $2 = 0)
  AND (CAST($3 AS text) IS NULL OR task_id = CAST($3 AS text))
  AND (CAST($4 AS text) IS NULL OR id > CAST($4 AS text))
ORDER BY id LIMIT $5;

-- name: open_calls
-- Tool calls that suspended turns wait for, by deadline.
SELECT w.tool_call_id, w.task_id, w.name, w.deadline, w.created_at FROM turn_waiting_tools w
WHERE w.namespace = $1 AND w.wait_status = 'waiting' AND w.kind = 'tool'
  AND (CAST($2 AS text) IS NULL OR w.task_id = CAST($2 AS text))
ORDER BY w.deadline, w.tool_call_id LIMIT $3;

-- name: open_waits_of_turn
-- The open waits of a turn, in the order of its calls.
SELECT {wait_columns} FROM turn_waiting_tools
WHERE namespace = $1 AND turn_id = $2 AND wait_status = 'waiting' ORDER BY place LIMIT $3;

-- name: cursor (short)
-- A cursor: how far a follower has read the log.
SELECT {cursor_columns} FROM cursors WHERE namespace = $1 AND name = $2;

-- name: cursors_named
-- Cursors whose names begin with a prefix.
SELECT {cursor_columns} FROM cursors WHERE namespace = $1 AND substr(name, 1, length($2)) = $2
ORDER BY updated_at, name;

-- name: cursor_is_stored
-- Whether a cursor is stored as it was to be written: asked when a commit's answer was lost.
SELECT 1 FROM cursors WHERE namespace = $1 AND name = $2 AND holder = $3 AND fence = $4 AND position = $5
  AND lease_until = $6;

-- name: last_tick (short)
-- When any PMO last completed a tick, by one index seek.
SELECT max(ticked_at) FROM sessions WHERE namespace = $1 AND kind = 'pmo';

-- name: tallies (short)
-- How many tasks were accepted and ended, as the commits counted them; reads no task.
SELECT COALESCE(sum(accepted), 0), COALESCE(sum(ended), 0) FROM tallies WHERE namespace = $1;

-- name: conservation
-- The same beside a full count of one moment: all tasks, and those that have ended.
SELECT
    (SELECT COALESCE(sum(accepted), 0) FROM tallies WHERE namespace = $1),
    (SELECT COALESCE(sum(ended), 0) FROM tallies WHERE namespace = $1),
    (SELECT count(*) FROM tasks WHERE namespace = $1),
    (SELECT count(*) FROM tasks WHERE namespace = $1 AND clock_at IS NULL);

-- name: waiting_by_agent
-- How many tasks of each agent wait for a worker.
SELECT agent, count(*) FROM tasks
WHERE namespace = $1 AND status IN ('queued', 'dispatched') AND run_at <= $2 GROUP BY agent ORDER BY agent;

-- name: skipped_count
-- How many messages could not be delivered since then, except offers of turns and nudges, which we sent ourselves.
SELECT count(*) FROM agent_inbox
WHERE namespace = $1 AND status = 'skipped' AND message_type NOT IN ('turn', 'nudge')
  AND COALESCE(processed_at, created_at) >= $2;

-- name: lapsed_resumes
-- Answers that a worker took and did not deliver in time.
SELECT 1 FROM turn_resume_ledger
WHERE namespace = $1 AND status IN ('pending', 'processing') AND status = 'processing' AND lease_expires_at <= $2
LIMIT 1;

-- name: long_ready (short)
-- Tasks of any registered agent that have been ready for at least $3 microseconds without being claimed.
WITH RECURSIVE p(agent, priority) AS (
    SELECT a.name, (SELECT max(t.priority) FROM tasks t
                    WHERE t.namespace = $1 AND t.agent = a.name AND t.status = 'queued')
    FROM agents a WHERE a.namespace = $1
    UNION ALL
    SELECT p.agent, (SELECT max(t.priority) FROM tasks t WHERE t.namespace = $1 AND t.agent = p.agent
                     AND t.status = 'queued' AND t.priority < p.priority)
    FROM p WHERE p.priority IS NOT NULL
)
SELECT 1 FROM p WHERE p.priority IS NOT NULL AND
    (SELECT min(t.run_at) FROM tasks t WHERE t.namespace = $1 AND t.agent = p.agent
     AND t.status = 'queued' AND t.priority = p.priority) + $3 <= $2
LIMIT 1;

-- name: next_start (short)
-- The start time of the next delayed task of any registered agent.
WITH RECURSIVE p(agent, priority) AS (
    SELECT a.name, (SELECT max(t.priority) FROM tasks t
                    WHERE t.namespace = $1 AND t.agent = a.name AND t.status = 'queued')
    FROM agents a WHERE a.namespace = $1
    UNION ALL
    SELECT p.agent, (SELECT max(t.priority) FROM tasks t WHERE t.namespace = $1 AND t.agent = p.agent
                     AND t.status = 'queued' AND t.priority < p.priority)
    FROM p WHERE p.priority IS NOT NULL
)
SELECT min((SELECT min(t.run_at) FROM tasks t WHERE t.namespace = $1 AND t.agent = p.agent
            AND t.status = 'queued' AND t.priority = p.priority AND t.run_at > $2))
FROM p WHERE p.priority IS NOT NULL;

-- name: messages_page
-- Messages that wait to be consumed, by id; not offers of turns, which are made again.
SELECT {message_columns} FROM agent_inbox
WHERE namespace = $1 AND status IN ('pending', 'processing') AND message_type <> 'turn' AND id > $2
ORDER BY id LIMIT $3;

-- name: ready_agents (short, steady)
-- Agents that have a ready task ($2 is now).
WITH RECURSIVE p(agent, priority) AS (
    SELECT a.name, (SELECT max(t.priority) FROM tasks t
                    WHERE t.namespace = $1 AND t.agent = a.name AND t.status = 'queued')
    FROM agents a WHERE a.namespace = $1
    UNION ALL
    SELECT p.agent, (SELECT max(t.priority) FROM tasks t WHERE t.namespace = $1 AND t.agent = p.agent
                     AND t.status = 'queued' AND t.priority < p.priority)
    FROM p WHERE p.priority IS NOT NULL
)
SELECT DISTINCT p.agent FROM p WHERE p.priority IS NOT NULL AND
    (SELECT min(t.run_at) FROM tasks t WHERE t.namespace = $1 AND t.agent = p.agent
     AND t.status = 'queued' AND t.priority = p.priority) <= $2;

-- name: serving (short, steady)
-- Which workers could take more turns ($2 is now): how many turns of each agent are dispatched and not claimed;
-- live workers with their agents, how many tasks they hold, and their slots.
SELECT 'dispatched', agent, '', count(*), 0 FROM tasks WHERE namespace = $1 AND status = 'dispatched' GROUP BY agent
UNION ALL
SELECT 'worker', s.id, s.agents,
       (SELECT count(*) FROM tasks t WHERE t.namespace = $1 AND t.session_id = s.id AND t.session_id IS NOT NULL),
       s.concurrency
FROM sessions s WHERE s.namespace = $1 AND s.ended_at IS NULL AND s.kind = 'worker' AND s.lease_until > $2;

-- name: dispatched_offers (steady)
-- Turns of one agent that are dispatched and not claimed, with their payloads.
SELECT {t.columns}, c.content FROM tasks t
LEFT JOIN cards c ON c.namespace = t.namespace AND c.id = t.payload_card
WHERE t.namespace = $1 AND t.agent = $2 AND t.status = 'dispatched'
ORDER BY t.priority DESC, t.run_at, t.id LIMIT $3;

-- name: letters_changed
-- Dead letters by the time at which they were opened or closed, after one of them.
SELECT task_id, agent, reason, fingerprint, retry_count, failed_at, status, closed_at FROM dead_letters
WHERE namespace = $1 AND coalesce(closed_at, failed_at) >= $2
  AND (coalesce(closed_at, failed_at) > $2 OR task_id > $3)
ORDER BY coalesce(closed_at, failed_at), task_id LIMIT $4;

-- name: waits_for_signal
-- The first open waits of a turn for a signal.
SELECT {wait_columns} FROM turn_waiting_tools
WHERE namespace = $1 AND turn_id = $2 AND name = $3 AND kind = 'signal' AND wait_status = 'waiting'
ORDER BY place LIMIT $4;

-- name: next_waits_of_turn
-- The open waits of a turn whose deadlines are next.
SELECT {wait_columns} FROM turn_waiting_tools
WHERE namespace = $1 AND turn_id = $2 AND wait_status = 'waiting' AND is_reported = 0
ORDER BY deadline, place LIMIT $3;

-- name: latest_moment
-- The latest time in the record: of its last event, or of its sessions.
SELECT max(at) FROM (
    SELECT at FROM (SELECT at FROM events WHERE namespace = $1 ORDER BY seq DESC LIMIT 1) e
    UNION ALL SELECT max(heartbeat_at) FROM sessions WHERE namespace = $1 AND ended_at IS NULL
) moments;

-- name: offered_to_some (short)
-- Turns that are offered to one of these agents ($2).
SELECT 1 FROM {a.values}
CROSS JOIN tasks t WHERE t.namespace = $1 AND t.agent = a.value AND t.status = 'dispatched' LIMIT 1;

-- name: ready_for_some (short)
-- Ready tasks of these agents ($2).
WITH RECURSIVE p(agent, priority) AS (
    SELECT a.value, (SELECT max(t.priority) FROM tasks t
                     WHERE t.namespace = $1 AND t.agent = a.value AND t.status = 'queued')
    FROM {a.values}
    UNION ALL
    SELECT p.agent, (SELECT max(t.priority) FROM tasks t WHERE t.namespace = $1 AND t.agent = p.agent
                     AND t.status = 'queued' AND t.priority < p.priority)
    FROM p WHERE p.priority IS NOT NULL
)
SELECT 1 FROM p WHERE p.priority IS NOT NULL AND
    (SELECT min(t.run_at) FROM tasks t WHERE t.namespace = $1 AND t.agent = p.agent
     AND t.status = 'queued' AND t.priority = p.priority) <= $3
LIMIT 1;

-- name: next_start_of_some (short)
-- When the next delayed task of these agents ($2) is to start.
WITH RECURSIVE p(agent, priority) AS (
    SELECT a.value, (SELECT max(t.priority) FROM tasks t
                     WHERE t.namespace = $1 AND t.agent = a.value AND t.status = 'queued')
    FROM {a.values}
    UNION ALL
    SELECT p.agent, (SELECT max(t.priority) FROM tasks t WHERE t.namespace = $1 AND t.agent = p.agent
                     AND t.status = 'queued' AND t.priority < p.priority)
    FROM p WHERE p.priority IS NOT NULL
)
SELECT min((SELECT min(t.run_at) FROM tasks t WHERE t.namespace = $1 AND t.agent = p.agent
            AND t.status = 'queued' AND t.priority = p.priority AND t.run_at > $3))
FROM p WHERE p.priority IS NOT NULL;
