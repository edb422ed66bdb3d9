-- Which approval each worker asks for before a task of an agent may start. Only workers that ask for one are here.
-- Not folded. Rows outlive their session until another worker registers the agent.
CREATE TABLE agent_rules (
    namespace     TEXT NOT NULL,
    agent         TEXT NOT NULL,
    session_id    TEXT NOT NULL,
    rule          TEXT NOT NULL,
    registered_at INTEGER NOT NULL,
    PRIMARY KEY (namespace, agent, session_id)
) STRICT;
