-- The tables of `user_version` 13, the first one. A new file gets these and then what MIGRATIONS in
-- sediment.py change.

CREATE TABLE meta(key TEXT PRIMARY KEY, value TEXT NOT NULL) STRICT, WITHOUT ROWID;
CREATE TABLE projects(
    location TEXT PRIMARY KEY, project_id TEXT NOT NULL) STRICT, WITHOUT ROWID;

-- Items, their chunks, vectors and words. `text_hash` tells that a text is stored again; `file` and
-- the lines are set for a part of a file.
CREATE TABLE items(
    seq INTEGER PRIMARY KEY AUTOINCREMENT, id TEXT NOT NULL UNIQUE,
    content TEXT NOT NULL, content_type TEXT NOT NULL, project_id TEXT,
    created_at INTEGER NOT NULL, stored_at INTEGER NOT NULL,
    ended_at INTEGER, ended_by TEXT, successor TEXT,
    text_hash INTEGER NOT NULL DEFAULT 0,
    file INTEGER REFERENCES files, first_line INTEGER, last_line INTEGER) STRICT;
CREATE INDEX items_live ON items(project_id, created_at, file) WHERE ended_at IS NULL;
CREATE INDEX items_successor ON items(successor) WHERE successor IS NOT NULL;
CREATE INDEX items_text ON items(text_hash) WHERE ended_at IS NULL;
CREATE INDEX items_file ON items(file) WHERE file IS NOT NULL;
CREATE TABLE chunks(
    id INTEGER PRIMARY KEY AUTOINCREMENT,
    item INTEGER NOT NULL REFERENCES items ON DELETE CASCADE,
    position INTEGER NOT NULL, start INTEGER NOT NULL, "end" INTEGER NOT NULL,
    context TEXT NOT NULL DEFAULT '', UNIQUE(item, position)) STRICT;
CREATE TABLE vectors(
    chunk INTEGER PRIMARY KEY REFERENCES chunks ON DELETE CASCADE,
    vector BLOB NOT NULL) STRICT;
CREATE TABLE pending(
    chunk INTEGER PRIMARY KEY REFERENCES chunks ON DELETE CASCADE) STRICT;
CREATE VIRTUAL TABLE words USING fts5(
    text, context, content='', tokenize='porter unicode61 remove_diacritics 2');
INSERT INTO words(words, rank) VALUES('secure-delete', 1);

-- New chunks and vectors wait here while `reindex` makes all of them again.
CREATE TABLE staged(
    item INTEGER NOT NULL REFERENCES items ON DELETE CASCADE,
    position INTEGER NOT NULL, start INTEGER NOT NULL, "end" INTEGER NOT NULL,
    context TEXT NOT NULL, vector BLOB NOT NULL,
    PRIMARY KEY(item, position)) STRICT;

-- Graph, access and queue, with the names that the original gives them. `questions` has hashes of
-- the questions that two items were the answer to.
CREATE TABLE graph_nodes(
    id TEXT PRIMARY KEY, project_id TEXT NOT NULL DEFAULT '',
    created_at INTEGER NOT NULL) STRICT;
CREATE TABLE graph_edges(
    from_id TEXT NOT NULL, to_id TEXT NOT NULL, edge_type TEXT NOT NULL,
    strength REAL NOT NULL DEFAULT 0, rel_type TEXT NOT NULL DEFAULT '',
    count INTEGER NOT NULL DEFAULT 0, last_at INTEGER NOT NULL DEFAULT 0,
    created_at INTEGER NOT NULL, questions BLOB NOT NULL DEFAULT x'',
    UNIQUE(from_id, to_id, edge_type)) STRICT;
CREATE INDEX graph_edges_from ON graph_edges(from_id, edge_type);
CREATE INDEX graph_edges_to ON graph_edges(to_id, edge_type);
CREATE TABLE access_log(
    item_id TEXT PRIMARY KEY, access_count INTEGER NOT NULL DEFAULT 0,
    last_accessed_at INTEGER, created_at INTEGER NOT NULL,
    validation_count INTEGER NOT NULL DEFAULT 0) STRICT;
CREATE TABLE consolidation_queue(
    item_id_a TEXT NOT NULL, item_id_b TEXT NOT NULL, similarity REAL NOT NULL,
    status TEXT NOT NULL DEFAULT 'pending', created_at INTEGER NOT NULL,
    UNIQUE(item_id_a, item_id_b)) STRICT;
CREATE INDEX consolidation_queue_b ON consolidation_queue(item_id_b);

-- What was done to items, and the pairs of which the newer item may make the older one obsolete.
CREATE TABLE history(
    id INTEGER PRIMARY KEY, action TEXT NOT NULL, item_id TEXT NOT NULL,
    other_id TEXT, at INTEGER NOT NULL, detail TEXT NOT NULL DEFAULT '{}') STRICT;
CREATE INDEX history_item ON history(item_id);
CREATE INDEX history_other ON history(other_id);
CREATE TABLE reviews(
    old_id TEXT NOT NULL, new_id TEXT NOT NULL, probability REAL NOT NULL,
    kept INTEGER NOT NULL DEFAULT 0, PRIMARY KEY(old_id, new_id)) STRICT;
CREATE INDEX reviews_new ON reviews(new_id);

-- The items that ended, came back, moved or were erased, for processes that keep rows in memory.
CREATE TABLE changes(
    number INTEGER PRIMARY KEY AUTOINCREMENT, item INTEGER NOT NULL) STRICT;
CREATE TRIGGER item_changed AFTER UPDATE OF ended_at, project_id ON items
    BEGIN INSERT INTO changes(item) VALUES(old.seq); END;
CREATE TRIGGER item_erased AFTER DELETE ON items
    BEGIN INSERT INTO changes(item) VALUES(old.seq); END;

-- Indexed folders and files, whose parts are items; and vectors of parts that have left them.
CREATE TABLE sources(
    id INTEGER PRIMARY KEY, path TEXT NOT NULL, project_id TEXT NOT NULL,
    options TEXT NOT NULL, UNIQUE(path, project_id)) STRICT;
CREATE TABLE files(
    id INTEGER PRIMARY KEY, source INTEGER NOT NULL REFERENCES sources,
    path TEXT NOT NULL, project_id TEXT NOT NULL, size INTEGER NOT NULL,
    changed_at INTEGER NOT NULL, touched_at INTEGER NOT NULL, read_at INTEGER NOT NULL,
    digest BLOB NOT NULL, dated INTEGER NOT NULL, UNIQUE(path, project_id)) STRICT;
CREATE INDEX files_away ON files(id) WHERE size = -1;
CREATE TABLE embeddings(
    hash BLOB PRIMARY KEY, vector BLOB NOT NULL, used_at INTEGER NOT NULL) STRICT;

-- What hooks have shown in which session, and the sessions that wait to be read.
CREATE TABLE shown(
    session TEXT NOT NULL, item_id TEXT NOT NULL, shown_at INTEGER NOT NULL,
    PRIMARY KEY(session, item_id)) STRICT, WITHOUT ROWID;
CREATE INDEX shown_item ON shown(item_id);
CREATE TABLE captures(
    client TEXT NOT NULL, session TEXT NOT NULL, path TEXT NOT NULL,
    number INTEGER NOT NULL, PRIMARY KEY(client, session)) STRICT, WITHOUT ROWID;

-- The tokens that open the memory over the network; of each only a hash.
CREATE TABLE tokens(
    name TEXT NOT NULL PRIMARY KEY, hash BLOB NOT NULL, reads INTEGER NOT NULL, project_id TEXT,
    created_at INTEGER NOT NULL) STRICT, WITHOUT ROWID;
