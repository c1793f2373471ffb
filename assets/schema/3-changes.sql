-- Which items ended, came back, moved or went, for those who keep in memory what is live.

CREATE TABLE changes(
    number INTEGER PRIMARY KEY AUTOINCREMENT, item INTEGER NOT NULL) STRICT;
CREATE TRIGGER item_changed AFTER UPDATE OF ended_at, project_id ON items
    BEGIN INSERT INTO changes(item) VALUES(old.seq); END;
CREATE TRIGGER item_erased AFTER DELETE ON items
    BEGIN INSERT INTO changes(item) VALUES(old.seq); END;
