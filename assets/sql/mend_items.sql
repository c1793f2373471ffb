-- Let what hangs on items agree with them, and no item be hidden behind nothing.

DELETE FROM chunks WHERE item NOT IN (SELECT seq FROM items);
DELETE FROM consolidation_queue WHERE item_id_a >= item_id_b;
UPDATE items SET ended_at = NULL, ended_by = NULL, successor = NULL
    WHERE (ended_at IS NULL) != (successor IS NULL) AND ended_by IS NOT 'prune'
    OR successor NOT IN (SELECT id FROM items);
DELETE FROM graph_nodes;
INSERT INTO graph_nodes SELECT id, coalesce(project_id, ''), created_at FROM items;
