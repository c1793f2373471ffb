-- What hooks have shown in which session, and the sessions that wait to be read.

CREATE TABLE shown(
    session TEXT NOT NULL, item_id TEXT NOT NULL, shown_at INTEGER NOT NULL,
    PRIMARY KEY(session, item_id)) STRICT, WITHOUT ROWID;
CREATE INDEX shown_item ON shown(item_id);
CREATE TABLE captures(
    client TEXT NOT NULL, session TEXT NOT NULL, path TEXT NOT NULL,
    number INTEGER NOT NULL, PRIMARY KEY(client, session)) STRICT, WITHOUT ROWID;
