-- Where new chunks and vectors wait for their day while all are made anew.

CREATE TABLE staged(
    item INTEGER NOT NULL REFERENCES items ON DELETE CASCADE,
    position INTEGER NOT NULL, start INTEGER NOT NULL, "end" INTEGER NOT NULL,
    context TEXT NOT NULL, vector BLOB NOT NULL,
    PRIMARY KEY(item, position)) STRICT;
