-- Dead letters by when they last changed: a follower of them reads on from where it was, however many there are.
CREATE INDEX dead_letters_changed ON dead_letters (namespace, coalesce(closed_at, failed_at), task_id);
