-- Nothing changes here: one writer at a time draws each `seq`, so events are numbered in the order of commits.
SELECT 1;
