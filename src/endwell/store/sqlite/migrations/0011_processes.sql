-- What tells the process of a session from a later one with the same number.
ALTER TABLE sessions ADD COLUMN process TEXT NOT NULL DEFAULT '';
-- Which version of each agent its worker serves.
ALTER TABLE sessions ADD COLUMN versions TEXT NOT NULL DEFAULT '';
