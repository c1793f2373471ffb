-- The files that are away are found at once; and what the step before did not have yet when it was
-- new. Signs as words come into the word index by a later step.

CREATE INDEX files_away ON files(id) WHERE size = -1;
CREATE TABLE IF NOT EXISTS reviews(
    old_id TEXT NOT NULL, new_id TEXT NOT NULL, probability REAL NOT NULL,
    kept INTEGER NOT NULL DEFAULT 0, PRIMARY KEY(old_id, new_id)) STRICT;
CREATE INDEX IF NOT EXISTS reviews_new ON reviews(new_id);
