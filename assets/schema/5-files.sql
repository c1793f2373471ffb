-- Folders and files that are indexed, whose parts are items; and vectors of what left them.

CREATE TABLE sources(
    id INTEGER PRIMARY KEY, path TEXT NOT NULL, project_id TEXT NOT NULL,
    options TEXT NOT NULL, UNIQUE(path, project_id)) STRICT;
CREATE TABLE files(
    id INTEGER PRIMARY KEY, source INTEGER NOT NULL REFERENCES sources,
    path TEXT NOT NULL, project_id TEXT NOT NULL, size INTEGER NOT NULL,
    changed_at INTEGER NOT NULL, touched_at INTEGER NOT NULL, read_at INTEGER NOT NULL,
    digest BLOB NOT NULL, dated INTEGER NOT NULL, UNIQUE(path, project_id)) STRICT;
CREATE TABLE embeddings(
    hash BLOB PRIMARY KEY, vector BLOB NOT NULL, used_at INTEGER NOT NULL) STRICT;
ALTER TABLE items ADD COLUMN file INTEGER REFERENCES files;
ALTER TABLE items ADD COLUMN first_line INTEGER;
ALTER TABLE items ADD COLUMN last_line INTEGER;
CREATE INDEX items_file ON items(file) WHERE file IS NOT NULL;
