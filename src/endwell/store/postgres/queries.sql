-- Queries in PostgreSQL's own SQL: reads that take locks, and writes of whole batches.
-- `{now}` is the server's clock in microseconds, read once per statement.
--
-- Plans. All of this runs with generic plans and without sequential scans, hash and merge joins (see
-- `connection.COMMITTING`). Left to itself, the planner fixed a sequential scan for `lock_tasks` and
-- `move_tasks` while the table was small, and kept it while a bulk load made it large. Measured for 100 tasks
-- out of 100 / 100,000 / 1,000,000 rows: `lock_tasks` 0.9 / 39 / 566 ms so, 0.7 / 1.8 / 3.0 ms by index;
-- `move_tasks` 1.6 / 29 / 518 ms so, 1.5 / 3.6 / 9 ms by index; `offers` 1.3 / 2.6 / 1.4 ms.

-- name: clock (steady)
-- The server's time.
SELECT {now};

-- name: see_tasks
-- The tasks that a batch names; the write will be guarded by their versions.
SELECT {now}, {t.columns} FROM unnest($1::text[], $2::text[]) AS k(namespace, id)
JOIN tasks t ON t.namespace = k.namespace AND t.id = k.id;

-- name: see_tasks_and_session
-- The same together with one session, which comes with the first of them, and with whether the task's agent has an
-- approval rule: two round trips less.
SELECT {now}, EXISTS (SELECT FROM agent_rules r WHERE r.namespace = t.namespace AND r.agent = t.agent), {s.columns},
    {t.columns} FROM unnest($1::text[], $2::text[]) WITH ORDINALITY AS k(namespace, id, n)
JOIN tasks t ON t.namespace = k.namespace AND t.id = k.id
LEFT JOIN sessions s ON k.n = 1 AND s.namespace = $3 AND s.id = $4;

-- name: lock_tasks
-- The same with their locks, always taken in the same order.
SELECT {now}, {t.columns} FROM unnest($1::text[], $2::text[]) AS k(namespace, id)
JOIN tasks t ON t.namespace = k.namespace AND t.id = k.id
ORDER BY t.namespace, t.id FOR UPDATE OF t;

-- name: tasks_of_keys
-- The tasks that idempotency keys belong to; a task's own id is its key by default.
SELECT {now}, k.key, {t.columns} FROM unnest($1::text[], $2::text[]) AS k(namespace, key)
JOIN tasks t ON t.namespace = k.namespace AND t.id = k.key
UNION ALL
SELECT {now}, k.key, {t.columns} FROM unnest($1::text[], $2::text[]) AS k(namespace, key)
JOIN tasks t ON t.namespace = k.namespace AND t.idempotency_key = k.key AND t.idempotency_key <> t.id;

-- name: see_sessions
-- Sessions whose leases are read. Without locks: the fence is the attempt, not the lease.
SELECT {now}, {session_columns} FROM unnest($1::text[], $2::text[]) AS k(of_namespace, of_id)
JOIN sessions ON namespace = of_namespace AND id = of_id;

-- name: hold_sessions
-- Sessions that take tasks: none of them may be closed before its claims are written.
SELECT {now}, {session_columns} FROM unnest($1::text[], $2::text[]) AS k(of_namespace, of_id)
JOIN sessions ON namespace = of_namespace AND id = of_id
ORDER BY namespace, id FOR SHARE OF sessions;

-- name: lock_sessions
-- Sessions that are to be renewed or closed.
SELECT {now}, {session_columns} FROM unnest($1::text[], $2::text[]) AS k(of_namespace, of_id)
JOIN sessions ON namespace = of_namespace AND id = of_id
ORDER BY namespace, id FOR UPDATE OF sessions;

-- name: lock_sessions_with_held
-- Sessions that are to be renewed, each with the tasks that it holds: the question of every heartbeat.
SELECT {now}, {s.columns}, {t.columns} FROM unnest($1::text[], $2::text[]) AS k(of_namespace, of_id)
JOIN sessions s ON s.namespace = of_namespace AND s.id = of_id
LEFT JOIN tasks t ON t.namespace = s.namespace AND t.session_id = s.id AND t.session_id IS NOT NULL
ORDER BY s.namespace, s.id, t.id FOR UPDATE OF s;

-- name: offers
-- Tasks of some agents ($2) that may be taken, for each up to $3 and up to its free slots: turns already offered
-- (up to $5), tasks close to their crash limit (up to $6; they crashed $7 times), then ready ones by priority,
-- start time and id. Slots and tasks that another transaction is taking are passed over. $4 shifts the clock. Each
-- agent's ready tasks of one priority ($9) are read from behind a position ($10, $11).
WITH a AS MATERIALIZED (
    SELECT w.*, g.concurrency IS NOT NULL AS is_limited, free.slots,
           CASE WHEN g.concurrency IS NULL THEN $3::bigint ELSE cardinality(free.slots) END AS most,
           EXISTS (SELECT FROM agent_rules r WHERE r.namespace = $1 AND r.agent = w.agent) AS has_rule
    FROM unnest($2::text[], $9::bigint[], $10::bigint[], $11::text[]) AS w(agent, at_priority, at_time, at_id)
    LEFT JOIN agents g ON g.namespace = $1 AND g.name = w.agent
    CROSS JOIN LATERAL (
        SELECT COALESCE(array_agg(x.slot), '{}') AS slots FROM (
            SELECT s.slot FROM slots s
            WHERE s.namespace = $1 AND s.agent = w.agent AND s.slot < g.concurrency AND s.task_id IS NULL
            ORDER BY s.slot LIMIT $3 FOR UPDATE SKIP LOCKED
        ) x
    ) free
), n AS MATERIALIZED (SELECT {now} + $4::bigint AS now)
SELECT n.now, a.is_limited, a.slots, a.has_rule, {t.columns}, c.content
FROM a CROSS JOIN n CROSS JOIN LATERAL (
    SELECT {t.columns} FROM (
        SELECT {t.columns} FROM tasks t
        WHERE t.namespace = $1 AND t.agent = a.agent AND t.status = 'dispatched'
        ORDER BY t.priority DESC, t.run_at, t.id LIMIT $5 FOR UPDATE SKIP LOCKED
    ) t
    UNION ALL
    SELECT {t.columns} FROM (
        SELECT {t.columns} FROM tasks t
        WHERE t.namespace = $1 AND t.agent = a.agent AND t.status = 'queued' AND t.crash_count > 0
          AND t.crash_count >= $7 AND t.run_at <= n.now AND {t.key_is_free}
        ORDER BY t.run_at, t.id LIMIT LEAST($6::bigint, a.most) FOR UPDATE SKIP LOCKED
    ) t
    UNION ALL
    SELECT {t.columns} FROM (
        SELECT {t.columns} FROM (
            WITH RECURSIVE p(priority) AS (
                SELECT max(priority) FROM tasks WHERE namespace = $1 AND agent = a.agent AND status = 'queued'
                UNION ALL
                SELECT (SELECT max(x.priority) FROM tasks x WHERE x.namespace = $1 AND x.agent = a.agent
                          AND x.status = 'queued' AND x.priority < p.priority)
                FROM p WHERE p.priority IS NOT NULL
            )
            SELECT priority, CASE WHEN priority = a.at_priority THEN a.at_time ELSE -1 END AS at_time,
                CASE WHEN priority = a.at_priority THEN a.at_id ELSE '' END AS at_id
            FROM p WHERE priority IS NOT NULL
        ) p
        CROSS JOIN LATERAL (
            SELECT {t.columns} FROM tasks t
            WHERE t.namespace = $1 AND t.agent = a.agent AND t.status = 'queued' AND t.priority = p.priority
              AND t.run_at <= n.now AND (t.run_at, t.id) > (p.at_time, p.at_id)
              AND t.crash_count < $7 AND {t.key_is_free}
            ORDER BY t.run_at, t.id LIMIT a.most FOR UPDATE SKIP LOCKED
        ) t
        LIMIT a.most
    ) t
) t
LEFT JOIN cards c ON $8 AND c.namespace = t.namespace AND c.id = t.payload_card;

-- name: take_keys
-- Agent keys that no other transaction is taking now. They are held until the end of this one.
SELECT k.namespace, k.agent, k.agent_key
FROM unnest($1::text[], $2::text[], $3::text[]) AS k(namespace, agent, agent_key)
WHERE pg_try_advisory_xact_lock(hashtextextended(concat_ws(chr(31), k.namespace, k.agent, k.agent_key), 0));

-- name: holders
-- The tasks whose turns hold agent keys.
SELECT t.namespace, t.agent, t.agent_key, t.id
FROM unnest($1::text[], $2::text[], $3::text[]) AS k(namespace, agent, agent_key)
JOIN tasks t ON t.namespace = k.namespace AND t.agent = k.agent AND t.agent_key = k.agent_key
WHERE t.turn_id IS NOT NULL AND t.agent_key IS NOT NULL;

-- name: move_tasks
-- Tasks as they stand after the batch, guarded by the versions that were read.
UPDATE tasks t SET {moves} FROM unnest($1::task_row[], $2::bigint[]) AS m({task_columns}, seen)
WHERE t.namespace = m.namespace AND t.id = m.id AND t.version = m.seen RETURNING 1;

-- name: add_tasks
-- New tasks.
INSERT INTO tasks ({task_columns}) SELECT * FROM unnest($1::task_row[]);

-- name: add_events
-- Events in their order, at consecutive positions; the unique (task, version) refuses a second writer.
WITH block AS MATERIALIZED (SELECT nextval('events_seq_seq') AS first)
INSERT INTO events ({event_columns}, seq) OVERRIDING SYSTEM VALUE
SELECT e.*, block.first + row_number() OVER () - 1 FROM block, unnest($1::event_row[]) AS e;

-- name: add_cards
-- Cards; they are immutable, and a repeated write changes nothing.
INSERT INTO cards (namespace, id, task_id, kind, content, hash, created_at)
SELECT * FROM unnest($1::card_row[]) ON CONFLICT DO NOTHING;

-- name: set_slots
-- Take slots for tasks, or give them back.
UPDATE slots s SET task_id = m.task_id
FROM unnest($1::text[], $2::text[], $3::text[], $4::bigint[]) AS m(task_id, namespace, agent, slot)
WHERE s.namespace = m.namespace AND s.agent = m.agent AND s.slot = m.slot;

-- name: save_sessions
-- Sessions as they stand.
INSERT INTO sessions ({session_columns}) SELECT * FROM unnest($1::session_row[])
ON CONFLICT (namespace, id) DO UPDATE SET heartbeat_at = excluded.heartbeat_at,
    lease_until = excluded.lease_until, unnamed = excluded.unnamed,
    ended_at = excluded.ended_at, end_reason = excluded.end_reason, doing = excluded.doing,
    ticked_at = excluded.ticked_at;

-- name: lock_cursors
-- Cursors that are to be taken or moved.
SELECT {now}, {cursor_columns} FROM unnest($1::text[], $2::text[]) AS k(of_namespace, of_name)
JOIN cursors ON namespace = of_namespace AND name = of_name ORDER BY namespace, name FOR UPDATE OF cursors;

-- name: save_cursors
-- Cursors as they stand.
INSERT INTO cursors ({cursor_columns}) SELECT * FROM unnest($1::text[], $2::text[], $3::text[], $4::text[],
    $5::bigint[], $6::bigint[], $7::text[], $8::bigint[])
ON CONFLICT (namespace, name) DO UPDATE SET {cursor_moves};

-- name: add_tallies
-- How many tasks a batch accepted and ended; the row belongs to this connection alone.
INSERT INTO tallies (namespace, writer, accepted, ended, updated_at)
SELECT m.namespace, $1, m.accepted, m.ended, $2::bigint
FROM unnest($3::text[], $4::bigint[], $5::bigint[]) AS m(namespace, accepted, ended)
ON CONFLICT (namespace, writer) DO UPDATE SET accepted = tallies.accepted + excluded.accepted,
    ended = tallies.ended + excluded.ended, updated_at = excluded.updated_at;

-- name: fold_tallies
-- Add up the rows of writers that have gone; not our own, which this very statement may be raising. Their locks
-- are kept until they are dropped.
INSERT INTO tallies (namespace, writer, accepted, ended, updated_at)
SELECT m.namespace, '', sum(old.accepted), sum(old.ended), m.at
FROM unnest($1::bigint[], $2::bigint[], $3::text[], $4::text[]) AS m(before, at, namespace, ours)
CROSS JOIN LATERAL (
    SELECT t.accepted, t.ended FROM tallies t
    WHERE t.namespace = m.namespace AND t.writer NOT IN ('', m.ours) AND t.updated_at <= m.before
    ORDER BY t.writer FOR UPDATE
) old
GROUP BY m.namespace, m.at
ON CONFLICT (namespace, writer) DO UPDATE SET accepted = tallies.accepted + excluded.accepted,
    ended = tallies.ended + excluded.ended, updated_at = excluded.updated_at;

-- name: drop_tallies
-- The rows that were just added up.
DELETE FROM tallies t USING unnest($1::bigint[], $2::text[], $3::text[]) AS m(before, namespace, ours)
WHERE t.namespace = m.namespace AND t.writer NOT IN ('', m.ours) AND t.updated_at <= m.before;

-- name: save_agents
-- Agents as a starting worker registers them; the last one counts, but a foreign worker's never replaces ours.
INSERT INTO agents (namespace, registered_at, name, version, concurrency, retry_policy, deadline, payload_schema,
    kind, options, foreign_until)
SELECT * FROM unnest($1::text[], $2::bigint[], $3::text[], $4::text[], $5::bigint[], $6::text[], $7::bigint[],
    $8::text[], $9::text[], $10::text[], $11::bigint[])
ON CONFLICT (namespace, name) DO UPDATE SET registered_at = excluded.registered_at,
    version = excluded.version, concurrency = excluded.concurrency, retry_policy = excluded.retry_policy,
    deadline = excluded.deadline, payload_schema = excluded.payload_schema, kind = excluded.kind,
    options = excluded.options, foreign_until = excluded.foreign_until
WHERE excluded.foreign_until IS NULL OR agents.foreign_until IS NOT NULL;

-- name: drop_expired_agents
-- Forget agents that foreign workers registered, once their rows have expired and no task waits for them.
DELETE FROM agents a USING unnest($1::bigint[], $2::text[]) AS m(now, namespace)
WHERE a.foreign_until <= m.now AND a.namespace = m.namespace
    AND NOT EXISTS (SELECT 1 FROM tasks t WHERE t.namespace = a.namespace AND t.agent = a.name
        AND t.status = 'queued')
    AND NOT EXISTS (SELECT 1 FROM tasks t WHERE t.namespace = a.namespace AND t.agent = a.name
        AND t.status = 'dispatched');

-- name: rules_of_agents
-- The approval rules that workers have registered for agents, the oldest first; and the server's time.
SELECT {now}, k.namespace, k.agent, r.rule FROM unnest($1::text[], $2::text[]) AS k(namespace, agent)
LEFT JOIN agent_rules r ON r.namespace = k.namespace AND r.agent = k.agent
ORDER BY k.namespace, k.agent, r.registered_at, r.session_id;

-- name: approvals_of_tasks
-- The approvals of tasks.
SELECT k.namespace, {a.columns} FROM unnest($1::text[], $2::text[]) AS k(namespace, id)
JOIN approvals a ON a.namespace = k.namespace AND a.id = k.id;

-- name: add_rule
-- Approval rules that workers register for agents.
INSERT INTO agent_rules (namespace, agent, session_id, rule, registered_at)
SELECT * FROM unnest($1::text[], $2::text[], $3::text[], $4::text[], $5::bigint[])
ON CONFLICT (namespace, agent, session_id) DO UPDATE SET rule = excluded.rule,
    registered_at = excluded.registered_at;

-- name: drop_rules
-- Rules of agents whose sessions have ended, or were never there.
DELETE FROM agent_rules r USING unnest($1::bigint[], $2::text[], $3::text[], $4::text[])
    AS m(now, namespace, agent, ours)
WHERE r.namespace = m.namespace AND r.agent = m.agent AND r.session_id <> m.ours AND NOT EXISTS (
    SELECT 1 FROM sessions s WHERE s.namespace = r.namespace AND s.id = r.session_id AND s.ended_at IS NULL
    AND s.lease_until > m.now);

-- name: add_slots
-- Slots of agents with a limit; slots beyond a lowered limit are left and no longer taken.
INSERT INTO slots (namespace, agent, slot)
SELECT a.namespace, a.name, s FROM unnest($1::text[], $2::text[], $3::bigint[]) AS a(namespace, name, concurrency)
CROSS JOIN LATERAL generate_series(0, a.concurrency - 1) AS s ON CONFLICT DO NOTHING;

-- name: add_inbox_turn
-- Dispatched turns in their agents' inboxes.
INSERT INTO agent_inbox (namespace, id, agent, agent_key, channel, task_id, turn_id, turn_epoch, created_at,
    recursion_depth, traceparent, trace_id, source_agent_id, enqueue_mode, message_type, correlation_id, status)
SELECT r.*, 'dispatch', 'turn', r.id, 'pending' FROM unnest($1::text[], $2::text[], $3::text[], $4::text[],
    $5::text[], $6::text[], $7::text[], $8::bigint[], $9::bigint[], $10::bigint[], $11::text[], $12::text[],
    $13::text[]) AS r(namespace, id, agent, agent_key, channel, task_id, turn_id, turn_epoch, created_at,
    recursion_depth, traceparent, trace_id, source_agent_id) ON CONFLICT DO NOTHING;

-- name: requeue_message
-- Messages whose processors are gone, unless others have taken them.
UPDATE agent_inbox i SET status = 'pending', attempt_id = NULL, processed_at = NULL, archived_at = NULL
FROM unnest($1::bigint[], $2::text[], $3::text[]) AS m(before, namespace, id)
WHERE i.namespace = m.namespace AND i.id = m.id AND i.status = 'processing' AND i.processed_at <= m.before;

-- name: mark_inbox
-- Inbox rows of turns that were taken, given back, or are over.
UPDATE agent_inbox i SET status = m.status, attempt_id = m.attempt_id, processed_at = m.processed_at,
    archived_at = m.archived_at, watchdog_error = m.why,
    watchdog_at = CASE WHEN m.why IS NULL THEN NULL ELSE m.archived_at END
FROM unnest($1::text[], $2::text[], $3::bigint[], $4::bigint[], $5::text[], $6::text[], $7::text[])
    AS m(status, attempt_id, processed_at, archived_at, namespace, turn_id, why)
WHERE i.namespace = m.namespace AND i.turn_id = m.turn_id AND i.turn_id IS NOT NULL
  AND i.message_type = 'turn' AND i.status IN ('pending', 'processing');

-- name: add_dead_letter
-- Failed tasks that await a verdict.
INSERT INTO dead_letters (namespace, task_id, agent, reason, fingerprint, retry_count, failed_at)
SELECT * FROM unnest($1::text[], $2::text[], $3::text[], $4::text[], $5::text[], $6::bigint[], $7::bigint[]);

-- name: close_dead_letter
-- The verdicts on dead letters.
UPDATE dead_letters d SET status = m.status, closed_at = m.at
FROM unnest($1::text[], $2::bigint[], $3::text[], $4::text[]) AS m(status, at, namespace, task_id)
WHERE d.namespace = m.namespace AND d.task_id = m.task_id;

-- name: add_approval
-- Approvals; asking again for the same starts it over.
INSERT INTO approvals (namespace, id, task_id, question, shown_card, shown_hash, approvers, quorum, remind_at,
    expire_at, created_at)
SELECT * FROM unnest($1::text[], $2::text[], $3::text[], $4::text[], $5::text[], $6::text[], $7::text[],
    $8::bigint[], $9::bigint[], $10::bigint[], $11::bigint[])
ON CONFLICT (namespace, id) DO UPDATE SET question = excluded.question, shown_card = excluded.shown_card,
    shown_hash = excluded.shown_hash, approvers = excluded.approvers, quorum = excluded.quorum,
    votes = CASE WHEN approvals.shown_hash = excluded.shown_hash THEN approvals.votes ELSE '' END, remind_at = excluded.remind_at, expire_at = excluded.expire_at,
    created_at = excluded.created_at, decision = NULL, decided_by = NULL, decided_at = NULL;

-- name: vote_approval
-- Consents of single persons, where several are needed.
UPDATE approvals a SET votes = CASE WHEN a.votes = '' THEN m.by ELSE a.votes || ',' || m.by END
FROM unnest($1::text[], $2::text[], $3::text[]) AS m(by, namespace, id)
WHERE a.namespace = m.namespace AND a.id = m.id AND a.decision IS NULL;

-- name: close_approval
-- The decisions on approvals.
UPDATE approvals a SET decision = m.decision, decided_by = m.decided_by, decided_at = m.at
FROM unnest($1::text[], $2::text[], $3::bigint[], $4::text[], $5::text[]) AS m(decision, decided_by, at, namespace, id)
WHERE a.namespace = m.namespace AND a.id = m.id AND a.decision IS NULL;

-- name: add_wait
-- Waits of suspended turns.
INSERT INTO turn_waiting_tools (namespace, task_id, turn_id, tool_call_id, kind, name, deadline, wait_status,
    created_at, place, updated_at)
SELECT w.*, w.at FROM unnest($1::text[], $2::text[], $3::text[], $4::text[], $5::text[], $6::text[], $7::bigint[],
    $8::text[], $9::bigint[], $10::int[])
    AS w(namespace, task_id, turn_id, tool_call_id, kind, name, deadline, wait_status, at, place)
ON CONFLICT (namespace, turn_id, tool_call_id) DO UPDATE SET deadline = excluded.deadline, place = excluded.place,
    wait_status = excluded.wait_status, is_reported = 0, result_card = NULL, updated_at = excluded.updated_at;

-- name: answer_wait
-- The first answers to waits, their expiry, or that their deadlines were reported.
UPDATE turn_waiting_tools w SET wait_status = m.wait_status, result_card = m.result_card,
    is_reported = m.is_reported, updated_at = m.at
FROM unnest($1::text[], $2::text[], $3::int[], $4::bigint[], $5::text[], $6::text[], $7::text[])
    AS m(wait_status, result_card, is_reported, at, namespace, turn_id, tool_call_id)
WHERE w.namespace = m.namespace AND w.turn_id = m.turn_id AND w.tool_call_id = m.tool_call_id;

-- name: drop_waits
-- The open waits of turns that have ended.
UPDATE turn_waiting_tools w SET wait_status = 'dropped', updated_at = m.at
FROM unnest($1::bigint[], $2::text[], $3::text[]) AS m(at, namespace, turn_id)
WHERE w.namespace = m.namespace AND w.turn_id = m.turn_id AND w.wait_status = 'waiting';

-- name: lock_effects
-- The effects that a batch names, with their locks, each with the time of its namespace's last restore.
WITH locked AS (
    SELECT {effect_columns} FROM unnest($1::text[], $2::text[]) AS w(of_namespace, of_key)
    JOIN effects ON namespace = of_namespace AND key = of_key ORDER BY namespace, key FOR UPDATE OF effects
)
SELECT k.of_namespace, (SELECT restored_at FROM restores r WHERE r.namespace = k.of_namespace), locked.*
FROM unnest($1::text[], $2::text[]) AS k(of_namespace, of_key)
LEFT JOIN locked ON locked.namespace = k.of_namespace AND locked.key = k.of_key;

-- name: add_effects
-- First intents of effects; their keys are unique.
INSERT INTO effects ({effect_columns}) SELECT * FROM unnest($1::effect_row[]);

-- name: move_effects
-- Effects as they stand after the batch.
UPDATE effects e SET {e.moves} FROM unnest($1::effect_row[]) AS m({effect_columns})
WHERE e.namespace = m.namespace AND e.key = m.key;

-- name: mark_restored
-- The records of namespaces were restored or imported. The latest moment counts: of this clock, of the record's.
INSERT INTO restores AS r (namespace, restored_at, restored_by)
SELECT m.namespace, greatest(m.at, (SELECT max(t.updated_at) FROM tasks t WHERE t.namespace = m.namespace)), m.by
FROM unnest($1::text[], $2::bigint[], $3::text[]) AS m(namespace, at, by)
ON CONFLICT (namespace) DO UPDATE
SET restored_at = greatest(r.restored_at, excluded.restored_at), restored_by = excluded.restored_by;

-- name: doubt_effect
-- Intents whose task ended: the effects are unknown.
UPDATE effects e SET status = 'unknown', version = e.version + 1, updated_at = m.at
FROM unnest($1::bigint[], $2::text[], $3::text[], $4::text[]) AS m(at, namespace, key, task_id)
WHERE e.namespace = m.namespace AND e.key = m.key AND e.task_id = m.task_id AND e.status = 'intended';

-- name: add_messages
-- Messages, once by type and correlation.
INSERT INTO agent_inbox ({message_columns}) SELECT * FROM unnest($1::message_row[]) ON CONFLICT DO NOTHING;

-- name: close_message
-- Messages that are settled.
UPDATE agent_inbox i SET status = m.status, watchdog_error = m.why, processed_at = m.at, archived_at = m.at,
    watchdog_at = CASE WHEN m.why IS NULL THEN NULL ELSE m.at END
FROM unnest($1::text[], $2::text[], $3::bigint[], $4::text[], $5::text[]) AS m(status, why, at, namespace, id)
WHERE i.namespace = m.namespace AND i.id = m.id AND i.status IN ('pending', 'processing');

-- name: add_resume
-- Answers on their way to turns; a second one to the same call is no message, and leaves no row here either.
INSERT INTO turn_resume_ledger (namespace, turn_id, tool_call_id, result_card, task_id, message_id, status,
    created_at, updated_at)
SELECT r.namespace, r.turn_id, r.tool_call_id, r.result_card, r.task_id, r.message_id, r.status, r.at, r.at
FROM unnest($1::text[], $2::text[], $3::text[], $4::text[], $5::text[], $6::text[], $7::text[], $8::bigint[],
    $9::text[]) AS r(namespace, turn_id, tool_call_id, result_card, task_id, message_id, status, at, message_type)
WHERE NOT EXISTS (SELECT 1 FROM agent_inbox i WHERE i.namespace = r.namespace
    AND i.message_type = r.message_type AND i.correlation_id = r.tool_call_id AND i.id <> r.message_id)
ON CONFLICT DO NOTHING;

-- name: close_resume
-- Answers that were applied, or came too late.
UPDATE turn_resume_ledger r SET status = m.status, lease_owner = NULL, lease_expires_at = NULL, updated_at = m.at
FROM unnest($1::text[], $2::bigint[], $3::text[], $4::text[]) AS m(status, at, namespace, message_id)
WHERE r.namespace = m.namespace AND r.message_id = m.message_id AND r.status IN ('pending', 'processing');

-- name: take_resume
-- Answers that a worker is about to deliver.
UPDATE turn_resume_ledger r SET status = 'processing', lease_owner = m.owner, lease_expires_at = m.until,
    attempt_count = r.attempt_count + 1, updated_at = m.at
FROM unnest($1::text[], $2::bigint[], $3::bigint[], $4::text[], $5::text[])
    AS m(owner, until, at, namespace, message_id)
WHERE r.namespace = m.namespace AND r.message_id = m.message_id AND r.status = 'pending';

-- name: count_delivery
-- Messages are about to be delivered once more.
UPDATE agent_inbox i SET retry_count = i.retry_count + 1
FROM unnest($1::text[], $2::text[]) AS m(namespace, id)
WHERE i.namespace = m.namespace AND i.id = m.id AND i.status = 'pending';

-- name: reset_deliveries
-- Messages were delivered, and stay until their tasks wait for them.
UPDATE agent_inbox i SET retry_count = 0
FROM unnest($1::text[], $2::text[]) AS m(namespace, id)
WHERE i.namespace = m.namespace AND i.id = m.id AND i.status = 'pending' AND i.retry_count > 0;

-- name: requeue_resumes
-- Answers that their worker did not deliver in time.
UPDATE turn_resume_ledger r SET status = 'pending', lease_owner = NULL, lease_expires_at = NULL, updated_at = m.at
FROM unnest($1::bigint[], $2::text[]) AS m(at, namespace)
WHERE r.namespace = m.namespace AND r.status = 'processing' AND r.lease_expires_at <= m.at;

-- name: pending_of_tasks
-- The pending messages of the tasks that a batch names.
SELECT {i.columns} FROM unnest($1::text[], $2::text[]) AS k(namespace, task_id)
JOIN agent_inbox i ON i.namespace = k.namespace AND i.task_id = k.task_id AND i.status = 'pending'
ORDER BY i.created_at, i.id;

-- name: known_cards
-- The cards of these ids that exist.
SELECT c.namespace, k.task_id, c.id FROM unnest($1::text[], $2::text[], $3::text[]) AS k(namespace, task_id, id)
JOIN cards c ON c.namespace = k.namespace AND c.id = k.id;

-- name: see_messages
-- The messages that a batch names, if they are pending.
SELECT {i.columns} FROM unnest($1::text[], $2::text[]) AS k(namespace, id)
JOIN agent_inbox i ON i.namespace = k.namespace AND i.id = k.id AND i.status = 'pending';

-- name: waits_for_calls
-- Waits of turns, open or not, by their calls.
SELECT w.namespace, w.turn_id, {w.columns} FROM unnest($1::text[], $2::text[], $3::text[]) AS k(namespace, turn_id, call)
JOIN turn_waiting_tools w ON w.namespace = k.namespace AND w.turn_id = k.turn_id AND w.tool_call_id = k.call;

-- name: live_children
-- The children of tasks that have not ended.
SELECT {t.columns} FROM unnest($1::text[], $2::text[]) AS k(namespace, parent_id)
JOIN tasks t ON t.namespace = k.namespace AND t.parent_id = k.parent_id AND t.parent_id IS NOT NULL
  AND t.clock_at IS NOT NULL
ORDER BY t.namespace, t.id;

-- name: lock_children
-- The same with their locks, always taken in the same order.
SELECT {t.columns} FROM unnest($1::text[], $2::text[]) AS k(namespace, parent_id)
JOIN tasks t ON t.namespace = k.namespace AND t.parent_id = k.parent_id AND t.parent_id IS NOT NULL
  AND t.clock_at IS NOT NULL
ORDER BY t.namespace, t.id FOR UPDATE OF t;

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
  AND c.id < w.task_id || '.a.' || substr(w.tool_call_id, length(w.task_id) + 4) || chr(127)
WHERE NOT EXISTS (SELECT 1 FROM agent_inbox i WHERE i.namespace = w.namespace AND i.task_id = w.task_id
      AND (i.status = 'pending' OR i.status = 'skipped' AND w.deadline > $2)
      AND i.message_type IN ('tool_result', 'child', 'timeout') AND i.correlation_id = w.tool_call_id)
GROUP BY w.task_id, w.tool_call_id LIMIT $3;

-- name: cards_by_ids (steady)
-- Many cards of one namespace.
SELECT namespace, id, task_id, kind, content, hash, created_at FROM cards
WHERE namespace = $1 AND id = ANY($2::text[]);

-- name: tasks_by_ids (steady)
-- Many tasks of one namespace.
SELECT {task_columns} FROM tasks WHERE namespace = $1 AND id = ANY($2::text[]);

-- name: results_by_ids (steady)
-- The same with their deliverables, where these have at most $3 bytes.
SELECT {t.columns}, c.content FROM tasks t
LEFT JOIN cards c ON c.namespace = t.namespace AND c.id = t.deliverable_card AND length(c.content) <= $3
WHERE t.namespace = $1 AND t.id = ANY($2::text[]);

-- name: events_after (steady)
-- The log after a position ($2), up to another ($3).
SELECT e.seq::text, e.seq, {e.columns}, p.hash FROM events e
LEFT JOIN events p ON p.namespace = e.namespace AND p.task_id = e.task_id AND p.version = e.version - 1
WHERE e.namespace = $1 AND e.seq > $2 AND e.seq <= $3 ORDER BY e.seq LIMIT $4;

-- name: log_end (steady)
-- The position up to which the log is complete: no transaction that is still open can add an event at or below it. The
-- last block drawn is read first, then the locks of `hold_log_position`, each named after the last block drawn before
-- its transaction wrote. A transaction that takes its lock later draws a higher block; one whose lock is gone is
-- visible to the next statement, which is why events are read by a statement of their own. NULL on a standby server,
-- which does not know the locks of its primary.
SELECT CASE WHEN NOT pg_is_in_recovery() THEN (s.last + 1 - greatest(0, (
    SELECT max((s.last - l.objid::bigint)::bit(32)::int) FROM pg_locks l WHERE {l.is_position}
))) * {block} - 1 END
FROM (SELECT coalesce(pg_sequence_last_value('events_seq_seq'::regclass), 0) / {block} AS last OFFSET 0) s;

-- name: last_position
-- The highest position that any transaction may have used so far, committed or not.
SELECT coalesce(pg_sequence_last_value('events_seq_seq'::regclass), 0) + {block} - 1;

-- name: log_holders
-- Transactions that wrote events and have been open for $1 seconds: process, application, seconds, database, and the
-- name of a prepared transaction, which has no process. A session that has just ended its transaction, or has gone, is
-- not one of them, although its lock was still seen.
SELECT l.pid, coalesce(a.application_name, ''), extract(epoch FROM clock_timestamp() - s.since)::bigint,
    current_database()::text, p.gid
FROM pg_locks l
LEFT JOIN pg_stat_activity a ON a.pid = l.pid
LEFT JOIN pg_locks x ON l.pid IS NULL AND x.pid IS NULL AND x.locktype = 'transactionid'
    AND x.virtualtransaction = l.virtualtransaction
LEFT JOIN pg_prepared_xacts p ON p.transaction = x.transactionid
CROSS JOIN LATERAL (SELECT coalesce(a.xact_start, a.state_change, p.prepared) AS since) s
WHERE {l.is_position} AND (l.pid IS NULL OR a.pid IS NOT NULL)
    AND (s.since < clock_timestamp() - make_interval(secs => $1)) IS NOT FALSE
ORDER BY s.since NULLS FIRST LIMIT 20;

-- name: lock_holders
-- Transactions that have been open for $1 seconds, or for an unknown time, and have locked rows or tables that every
-- task needs: as above, and the tables and the transaction's own name. Readers, vacuum and the concurrent making of
-- an index keep no writer waiting.
SELECT l.pid, coalesce(a.application_name, ''), extract(epoch FROM clock_timestamp() - s.since)::bigint,
    current_database()::text, p.gid, string_agg(DISTINCT c.relname, ', ' ORDER BY c.relname), l.virtualtransaction
FROM pg_locks l
JOIN pg_class c ON c.oid = l.relation AND c.oid = ANY(ARRAY[
    'tasks'::regclass, 'events'::regclass, 'cards'::regclass, 'sessions'::regclass, 'agent_inbox'::regclass,
    'effects'::regclass, 'tallies'::regclass]::oid[])
LEFT JOIN pg_stat_activity a ON a.pid = l.pid
LEFT JOIN pg_locks x ON l.pid IS NULL AND x.pid IS NULL AND x.locktype = 'transactionid'
    AND x.virtualtransaction = l.virtualtransaction
LEFT JOIN pg_prepared_xacts p ON p.transaction = x.transactionid
CROSS JOIN LATERAL (SELECT coalesce(a.xact_start, p.prepared) AS since) s
WHERE l.locktype = 'relation' AND l.granted AND l.mode NOT IN ('AccessShareLock', 'ShareUpdateExclusiveLock')
    AND l.database = (SELECT oid FROM pg_database WHERE datname = current_database())
    AND (l.pid IS NULL OR a.pid IS NOT NULL)
    AND (s.since < clock_timestamp() - make_interval(secs => $1)) IS NOT FALSE
GROUP BY l.pid, a.application_name, s.since, p.gid, l.virtualtransaction
ORDER BY s.since NULLS FIRST LIMIT 20;

-- name: missing_positions
-- The block that the sequence must have reached; no row if it has. Copying the tables alone leaves a sequence behind,
-- and a sequence that was set by hand may stand inside a block.
SELECT (greatest(used.seq, s.last) / {block} + 1) * {block} FROM (
    SELECT greatest((SELECT max(seq) FROM events),
        (SELECT max(position::bigint) FROM cursors WHERE position ~ '^[0-9]{1,18}$')) AS seq OFFSET 0
) used, (SELECT coalesce(pg_sequence_last_value('events_seq_seq'::regclass), 0) AS last OFFSET 0) s
WHERE (used.seq >= s.last + {block} OR s.last % {block} <> 0) AND NOT pg_is_in_recovery();

-- name: settings
-- The server's version, how durable its commits are, and the memory and disk that it may use.
SELECT current_setting('server_version') AS server_version, current_setting('fsync') AS fsync,
    current_setting('synchronous_commit') AS synchronous_commit,
    current_setting('full_page_writes') AS full_page_writes,
    current_setting('transaction_isolation') AS isolation,
    current_setting('shared_buffers') AS shared_buffers, current_setting('max_wal_size') AS max_wal_size;

-- name: ready_turns (steady)
-- Up to $3 ready tasks of one agent ($2) by priority, start time and id, with the fields that an offer on a stream
-- needs. $4 shifts the clock. Tasks of one priority ($5) are read from behind a position ($6, $7).
SELECT t.id, t.agent, t.agent_key, t.idempotency_key, t.parent_id, t.turn_id, t.turn_number, t.epoch, t.retry_count,
       t.crash_count, t.priority, t.run_at, g.concurrency, c.content
FROM (
    WITH RECURSIVE p(priority) AS (
        SELECT max(priority) FROM tasks WHERE namespace = $1 AND agent = $2 AND status = 'queued'
        UNION ALL
        SELECT (SELECT max(x.priority) FROM tasks x WHERE x.namespace = $1 AND x.agent = $2
                  AND x.status = 'queued' AND x.priority < p.priority)
        FROM p WHERE p.priority IS NOT NULL
    )
    SELECT priority, CASE WHEN priority = $5::bigint THEN $6::bigint ELSE -1 END AS at_time,
        CASE WHEN priority = $5::bigint THEN $7::text ELSE '' END AS at_id
    FROM p WHERE priority IS NOT NULL
) p
CROSS JOIN LATERAL (
    SELECT * FROM tasks t
    WHERE t.namespace = $1 AND t.agent = $2 AND t.status = 'queued' AND t.priority = p.priority
      AND t.run_at <= {now} + $4::bigint AND (t.run_at, t.id) > (p.at_time, p.at_id)
    ORDER BY t.run_at, t.id LIMIT $3
) t
JOIN agents g ON g.namespace = $1 AND g.name = $2
LEFT JOIN cards c ON c.namespace = t.namespace AND c.id = t.payload_card
LIMIT $3;

-- name: epochs_of_queued (steady)
-- The queued ones of these tasks, with their epochs. The status is compared only after a row was found by its
-- id: otherwise the planner may go over the index of all ready tasks for each of them.
SELECT q.id, q.epoch FROM (
    SELECT id, epoch, status FROM tasks WHERE namespace = $1 AND id = ANY($2::text[]) OFFSET 0
) q WHERE q.status = 'queued';

-- name: schema_objects
-- The names of the tables, indexes and triggers.
SELECT relname FROM pg_class WHERE relnamespace = current_schema()::regnamespace AND relkind IN ('r', 'i')
UNION ALL SELECT tgname FROM pg_trigger WHERE tgrelid = to_regclass('events') AND tgenabled IN ('O', 'A');

-- name: integrity
-- The faults that the database finds in its file; `ok` if none.
SELECT 'ok';

-- name: idle_transactions
-- Processes with a transaction open and idle for $1 seconds: process id, name, seconds.
SELECT pid, coalesce(application_name, ''), extract(epoch FROM now() - state_change)::bigint
FROM pg_stat_activity
WHERE datname = current_database() AND state LIKE 'idle in transaction%'
    AND state_change < now() - make_interval(secs => $1)
ORDER BY state_change LIMIT 20;
