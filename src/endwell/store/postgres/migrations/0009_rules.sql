-- Which approval each worker asks for before a task of an agent may start. Only workers that ask for one are here.
-- Not folded. Rows outlive their session until another worker registers the agent.
CREATE TABLE agent_rules (
    namespace     TEXT COLLATE "C" NOT NULL,
    agent         TEXT COLLATE "C" NOT NULL,
    session_id    TEXT COLLATE "C" NOT NULL,
    rule          TEXT COLLATE "C" NOT NULL,
    registered_at BIGINT NOT NULL,
    PRIMARY KEY (namespace, agent, session_id)
);
