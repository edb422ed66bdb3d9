-- Nothing changes here: the store itself rolls back a batch that lost a race.
SELECT 1;
