-- Lets the project :new have all that :old has. Its files are read again, since the ids of their
-- parts tell the project; what both have indexed becomes one.

UPDATE items SET project_id = nullif(:new, '') WHERE project_id = :old;
UPDATE graph_nodes SET project_id = :new WHERE project_id = :old;

UPDATE items SET file = coalesce(
    (SELECT mine.id FROM files mine JOIN files theirs USING(path)
        WHERE mine.project_id = :new AND theirs.project_id = :old AND theirs.id = file), file)
    WHERE file IN (SELECT id FROM files WHERE project_id = :old);
UPDATE files SET digest = x'' WHERE project_id IN (:old, :new);
UPDATE OR IGNORE files SET project_id = :new WHERE project_id = :old;
DELETE FROM files WHERE project_id = :old;

UPDATE files SET source = coalesce(
    (SELECT mine.id FROM sources mine JOIN sources theirs USING(path)
        WHERE mine.project_id = :new AND theirs.project_id = :old AND theirs.id = source), source)
    WHERE source IN (SELECT id FROM sources WHERE project_id = :old);
UPDATE OR IGNORE sources SET project_id = :new WHERE project_id = :old;
DELETE FROM sources WHERE project_id = :old;

-- What is switched off in either stays off; at home, which is no project, it is another matter.
INSERT INTO meta SELECT 'hooks_off:' || :new, value FROM meta
    WHERE key = 'hooks_off:' || :old AND '' NOT IN (:old, :new)
    ON CONFLICT DO UPDATE SET value = value || ' ' || excluded.value;
DELETE FROM meta WHERE key = 'hooks_off:' || :old AND '' NOT IN (:old, :new);
