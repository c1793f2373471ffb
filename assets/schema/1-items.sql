-- Items, chunks, vectors, words; graph, access and queue as the original names them.

CREATE TABLE meta(key TEXT PRIMARY KEY, value TEXT NOT NULL) STRICT, WITHOUT ROWID;
CREATE TABLE items(
    seq INTEGER PRIMARY KEY AUTOINCREMENT, id TEXT NOT NULL UNIQUE,
    content TEXT NOT NULL, content_type TEXT NOT NULL, project_id TEXT,
    created_at INTEGER NOT NULL, stored_at INTEGER NOT NULL,
    ended_at INTEGER, ended_by TEXT, successor TEXT) STRICT;
CREATE INDEX items_live ON items(project_id, created_at) WHERE ended_at IS NULL;
CREATE INDEX items_successor ON items(successor) WHERE successor IS NOT NULL;
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
CREATE TABLE graph_nodes(
    id TEXT PRIMARY KEY, project_id TEXT NOT NULL DEFAULT '',
    created_at INTEGER NOT NULL) STRICT;
CREATE TABLE graph_edges(
    from_id TEXT NOT NULL, to_id TEXT NOT NULL, edge_type TEXT NOT NULL,
    strength REAL NOT NULL DEFAULT 0, rel_type TEXT NOT NULL DEFAULT '',
    count INTEGER NOT NULL DEFAULT 0, last_at INTEGER NOT NULL DEFAULT 0,
    created_at INTEGER NOT NULL, UNIQUE(from_id, to_id, edge_type)) STRICT;
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
CREATE TABLE history(
    id INTEGER PRIMARY KEY, action TEXT NOT NULL, item_id TEXT NOT NULL,
    other_id TEXT, at INTEGER NOT NULL, detail TEXT NOT NULL DEFAULT '{}') STRICT;
CREATE TABLE projects(
    location TEXT PRIMARY KEY, project_id TEXT NOT NULL) STRICT, WITHOUT ROWID;
