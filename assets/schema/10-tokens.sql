-- Who may ask over the network; of the token itself a hash alone.

CREATE TABLE tokens(
    name TEXT NOT NULL PRIMARY KEY, hash BLOB NOT NULL, reads INTEGER NOT NULL, project_id TEXT,
    created_at INTEGER NOT NULL) STRICT, WITHOUT ROWID;
