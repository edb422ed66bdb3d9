-- When the record of a namespace was last restored from a backup, or imported. Not folded.
CREATE TABLE restores (namespace TEXT PRIMARY KEY, restored_at INTEGER NOT NULL, restored_by TEXT NOT NULL) STRICT;
