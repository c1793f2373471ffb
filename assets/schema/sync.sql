-- What sync has to know of each memory. Made by the first `sync --to`: before it there is none of
-- this, and nothing costs anything. A row of `replica` is a memory's state as the machines agree on
-- it; what follows from the states of several, twins and circles, stands in `items` alone. That
-- something ended `beside` its successor means: replaced by what was live already, and so stays when
-- this is undone.

CREATE TABLE clock(
    t INTEGER NOT NULL,        -- hybrid: milliseconds << 16, and a count within them
    machine TEXT NOT NULL,     -- this file's name among the machines
    mark TEXT NOT NULL,        -- the host and path that have that name
    number INTEGER NOT NULL,   -- of the last change
    applying INTEGER NOT NULL, -- whether what is written came from others
    place TEXT NOT NULL,       -- where it syncs
    cursor TEXT NOT NULL) STRICT;
CREATE TABLE replica(
    id TEXT NOT NULL, project TEXT NOT NULL, put_t INTEGER, put_w TEXT,
    end_t INTEGER, end_w TEXT, ended_by TEXT, ended_at INTEGER, successor TEXT,
    gone INTEGER NOT NULL DEFAULT 0, -- when it was forgotten here; -1 where others forgot it
    ok TEXT NOT NULL DEFAULT '{}',
    number INTEGER,                  -- of the last change, NULL once that is sent
    author TEXT,                     -- who brought it, as a hub says
    marks TEXT NOT NULL DEFAULT '{}', -- by name: time, machine and value, which is 0 of one taken away
    PRIMARY KEY(id, project)) STRICT, WITHOUT ROWID;
CREATE VIEW states AS SELECT r.id, r.project, put_t, put_w, content, created_at, end_t, end_w,
    r.ended_by, r.ended_at, r.successor, gone, ok, marks, number, text_hash,
    i.id IS NOT NULL AND r.project = coalesce(i.project_id, '') AS here,
    r.project IN (SELECT project FROM spaces) AS shared
    FROM replica r LEFT JOIN items i ON i.id = r.id AND i.file IS NULL;
CREATE INDEX replica_waiting ON replica(project, number) WHERE number IS NOT NULL;
CREATE INDEX replica_successor ON replica(successor) WHERE successor <> '';
CREATE INDEX items_same ON items(text_hash) WHERE file IS NULL;
CREATE TABLE spaces(space TEXT PRIMARY KEY, project TEXT NOT NULL UNIQUE) STRICT, WITHOUT ROWID;
CREATE TABLE machines(
    name TEXT PRIMARY KEY, host TEXT NOT NULL, person TEXT NOT NULL,
    mine INTEGER NOT NULL) STRICT, WITHOUT ROWID;

-- What was there before counts as done when it was done.
INSERT INTO clock SELECT CAST(unixepoch('subsec') * 1000 AS INTEGER) << 16, :machine, :mark, 0, 0,
    :place, '{}';
INSERT INTO replica
    SELECT id, coalesce(project_id, ''), min(stored_at * 1000 << 16, t), machine,
        min(at * 1000 << 16, t), iif(at IS NULL, NULL, machine), iif(at IS NULL, NULL, iif(stood_beside, 'beside', ended_by)),
        iif(at IS NULL, NULL, ended_at), iif(at IS NULL, NULL, successor), 0,
        iif(confirmed, json_object(machine, confirmed), '{}'), row_number() OVER (ORDER BY seq),
        NULL, (SELECT json_group_object(name, json_array(t, machine, value)) FROM marks WHERE item = seq)
    FROM (SELECT seq, id, project_id, stored_at, coalesce(ended_by, '') AS ended_by,
        coalesce(ended_at, 0) AS ended_at, coalesce(successor, '') AS successor,
        iif(ended_at IS NULL,
            (SELECT max(at) FROM history WHERE item_id = i.id AND action = 'undo'),
            coalesce((SELECT max(at) FROM history WHERE other_id = i.id AND action = ended_by),
                ended_at)) AS at,
        (SELECT detail ->> 'beside' FROM history h WHERE h.other_id = i.id
            AND h.item_id = i.successor AND h.action = i.ended_by ORDER BY h.id DESC LIMIT 1)
            AS stood_beside,
        (SELECT count(*) FROM history WHERE item_id = i.id AND action = 'confirm') AS confirmed
        FROM items i WHERE file IS NULL), clock;
UPDATE clock SET number = (SELECT count(*) FROM replica);

-- What was forgotten comes back by no import.
CREATE TRIGGER replica_barred BEFORE INSERT ON items
    WHEN new.file IS NULL AND EXISTS(SELECT 1 FROM replica WHERE id = new.id AND gone)
    BEGIN SELECT RAISE(IGNORE); END;
CREATE TRIGGER replica_put AFTER INSERT ON items
    WHEN new.file IS NULL AND NOT (SELECT applying FROM clock) BEGIN
    UPDATE clock SET number = number + 1,
        t = max(t + 1, CAST(unixepoch('subsec') * 1000 AS INTEGER) << 16);
    INSERT OR IGNORE INTO replica(id, project) VALUES(new.id, coalesce(new.project_id, ''));
    UPDATE replica SET (put_t, put_w, number) = (SELECT t, machine, number FROM clock)
        WHERE id = new.id AND project = coalesce(new.project_id, '');
    UPDATE replica SET (end_t, end_w) = (SELECT t, machine FROM clock), ended_by = new.ended_by,
        ended_at = new.ended_at, successor = coalesce(new.successor, '')
        WHERE id = new.id AND project = coalesce(new.project_id, '')
        AND new.ended_at IS NOT NULL;
    END;
-- Twins that stood behind an item by themselves go with it.
CREATE TRIGGER replica_end AFTER UPDATE OF ended_at, ended_by, successor ON items
    WHEN new.file IS NULL AND NOT (SELECT applying FROM clock) BEGIN
    UPDATE clock SET number = number + 1,
        t = max(t + 1, CAST(unixepoch('subsec') * 1000 AS INTEGER) << 16);
    UPDATE replica SET (end_t, end_w, number) = (SELECT t, machine, number FROM clock),
        ended_by = coalesce(new.ended_by, ''), ended_at = coalesce(new.ended_at, 0),
        successor = coalesce(new.successor, '')
        WHERE id = new.id AND project = coalesce(new.project_id, '');
    UPDATE replica SET (end_t, end_w, number) = (SELECT t, machine, number FROM clock),
        ended_by = 'repeat', successor = new.id,
        ended_at = (SELECT ended_at FROM items WHERE items.id = replica.id)
        WHERE new.ended_at IS NOT NULL AND end_t IS NULL AND id <> new.id
        AND project = coalesce(new.project_id, '') AND id IN
        (SELECT id FROM items WHERE successor = new.id AND ended_by = 'repeat');
    END;
CREATE TRIGGER replica_beside AFTER INSERT ON history
    WHEN new.detail ->> 'beside' AND NOT (SELECT applying FROM clock) BEGIN
    UPDATE replica SET ended_by = 'beside' WHERE id = new.other_id AND successor = new.item_id
        AND ended_by = new.action;
    END;
-- What stands before an item by the rule of circles alone stays when that item goes.
CREATE TRIGGER replica_gone AFTER DELETE ON items
    WHEN old.file IS NULL AND NOT (SELECT applying FROM clock) BEGIN
    UPDATE clock SET number = number + 1,
        t = max(t + 1, CAST(unixepoch('subsec') * 1000 AS INTEGER) << 16);
    INSERT OR IGNORE INTO replica(id, project) VALUES(old.id, coalesce(old.project_id, ''));
    INSERT OR REPLACE INTO replica(id, project, gone, number)
        SELECT r.id, r.project, c.t, c.number FROM replica r, clock c WHERE r.id = old.id;
    UPDATE replica SET (end_t, end_w, number) = (SELECT t, machine, number FROM clock),
        ended_by = '', ended_at = 0, successor = '' WHERE successor = old.id AND (id, project) IN
        (SELECT id, coalesce(project_id, '') FROM items WHERE ended_at IS NULL);
    END;
-- What others know gets a new id instead.
CREATE TRIGGER replica_move AFTER INSERT ON history
    WHEN new.action = 'move' AND NOT (SELECT applying FROM clock) BEGIN
    UPDATE clock SET number = number + 1;
    UPDATE OR REPLACE replica SET number = (SELECT number FROM clock), project = coalesce(
        (SELECT project_id FROM items WHERE id = new.item_id), '')
        WHERE id = new.item_id AND project = coalesce(new.detail ->> 'from', '');
    END;
CREATE TRIGGER replica_ok AFTER INSERT ON history
    WHEN new.action = 'confirm' AND NOT (SELECT applying FROM clock) BEGIN
    UPDATE clock SET number = number + 1;
    UPDATE replica SET number = (SELECT number FROM clock), ok = (SELECT json_set(ok,
        '$."' || machine || '"', coalesce(json_extract(ok, '$."' || machine || '"'), 0) + 1)
        FROM clock) WHERE (id, project) IN
        (SELECT id, coalesce(project_id, '') FROM items WHERE id = new.item_id);
    END;
CREATE TRIGGER replica_mark AFTER INSERT ON marks WHEN NOT (SELECT applying FROM clock) BEGIN
    UPDATE clock SET number = number + 1,
        t = max(t + 1, CAST(unixepoch('subsec') * 1000 AS INTEGER) << 16);
    UPDATE replica SET number = (SELECT number FROM clock), marks = (SELECT json_patch(marks,
        json_object(new.name, json_array(t, machine, new.value))) FROM clock)
        WHERE (id, project) IN
        (SELECT id, coalesce(project_id, '') FROM items WHERE seq = new.item AND file IS NULL);
    END;
-- Nothing of an item that is erased: its row is gone by then.
CREATE TRIGGER replica_unmark AFTER DELETE ON marks WHEN NOT (SELECT applying FROM clock) BEGIN
    UPDATE clock SET number = number + 1,
        t = max(t + 1, CAST(unixepoch('subsec') * 1000 AS INTEGER) << 16);
    UPDATE replica SET number = (SELECT number FROM clock), marks = (SELECT json_patch(marks,
        json_object(old.name, json_array(t, machine, 0))) FROM clock)
        WHERE (id, project) IN
        (SELECT id, coalesce(project_id, '') FROM items WHERE seq = old.item AND file IS NULL);
    END;
CREATE TRIGGER replica_moved AFTER INSERT ON projects WHEN new.location GLOB 'moved:*' BEGIN
    UPDATE OR IGNORE spaces SET project = new.project_id
        WHERE project = substr(new.location, 7);
    UPDATE OR REPLACE replica SET project = new.project_id WHERE project = substr(new.location, 7);
    END;
