-- The log by the names that outside programs use. The record of a step is one event here and stands for several
-- outside: a test compares the names with src/endwell/model/step_names.py.
CREATE VIEW event_log AS
WITH step_names (result_type, event_type) AS (VALUES
    ('success', 'command_committed'),
    ('pure', 'command_committed'),
    ('side_effect_committed', 'tool_invocation_finished'),
    ('side_effect_committed', 'command_committed'),
    (NULL, 'node_finished')  -- of every step, whatever came of it
),
readable AS (
    SELECT
        namespace, task_id, version, type, actor, attempt_id, epoch,
        CAST(data AS TEXT) AS payload_json,
        strftime('%Y-%m-%dT%H:%M:%S', at / 1000000, 'unixepoch') || printf('.%06dZ', at % 1000000) AS ts
    FROM events
)
SELECT
    e.task_id || '.' || e.version AS id, e.task_id, e.type AS event_type, e.payload_json, e.ts,
    e.namespace, e.version, e.actor, e.attempt_id, e.epoch
FROM readable AS e
WHERE e.type <> 'step.recorded'
UNION ALL
SELECT
    e.task_id || '.' || e.version || '.' || n.event_type, e.task_id, n.event_type, e.payload_json, e.ts,
    e.namespace, e.version, e.actor, e.attempt_id, e.epoch
FROM readable AS e
JOIN step_names AS n
    ON n.result_type IS NULL
    OR n.result_type = coalesce(json_extract(e.payload_json, '$.result_type'), 'success')
WHERE e.type = 'step.recorded';
