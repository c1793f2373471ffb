-- Let parts, files and sources agree: what is nobody's goes.

UPDATE items SET project_id = nullif(f.project_id, '') FROM files f WHERE f.id = items.file;
DELETE FROM items WHERE file IN (SELECT f.id FROM files f JOIN sources s ON s.id = f.source
    WHERE f.project_id <> s.project_id);
DELETE FROM items WHERE file IS NOT NULL AND file NOT IN
    (SELECT f.id FROM files f JOIN sources s ON s.id = f.source);
DELETE FROM files WHERE (source, project_id) NOT IN (SELECT id, project_id FROM sources);
DELETE FROM staged WHERE item NOT IN (SELECT seq FROM items);
