-- What people say of a memory beside its text: its tags, each with the value 1, and under the name
-- '' when it expires, in unix seconds. One that has expired counts as pruned, though nothing is
-- written then.

CREATE TABLE marks(
    item INTEGER NOT NULL REFERENCES items ON DELETE CASCADE,
    name TEXT NOT NULL, value INTEGER NOT NULL,
    PRIMARY KEY(item, name)) STRICT, WITHOUT ROWID;
CREATE INDEX marks_name ON marks(name, value);
CREATE VIEW past AS SELECT item FROM marks WHERE name = '' AND value <= unixepoch();
