-- The "supersedes" edges from and to the items :ids: imports bring versions in any order. One
-- statement for both columns takes five times as long.

INSERT OR IGNORE INTO graph_edges(from_id, to_id, edge_type, strength, last_at, created_at)
    SELECT i.successor, i.id, 'supersedes', 1.0, i.ended_at, i.ended_at
    FROM json_each(:ids) j CROSS JOIN items i ON i.id = j.value JOIN items s ON s.id = i.successor;
INSERT OR IGNORE INTO graph_edges(from_id, to_id, edge_type, strength, last_at, created_at)
    SELECT i.successor, i.id, 'supersedes', 1.0, i.ended_at, i.ended_at
    FROM json_each(:ids) j CROSS JOIN items i ON i.successor = j.value
    JOIN items s ON s.id = i.successor;
