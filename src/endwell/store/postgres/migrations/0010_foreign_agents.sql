-- When an agent that only foreign workers have registered is forgotten; NULL for agents of Endwell's own workers.
ALTER TABLE agents ADD COLUMN foreign_until bigint;
