-- When the record of a namespace was last restored from a backup, or imported. Not folded.
CREATE TABLE restores (namespace TEXT COLLATE "C" PRIMARY KEY, restored_at BIGINT NOT NULL, restored_by TEXT NOT NULL);
