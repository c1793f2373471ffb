-- The edges of the items ?1 that are strong (?2) or counted often (?3), and lead to a live item that
-- the project (?5, or any with ?4) may read.

SELECT e.from_id AS id, e.to_id AS other, edge_type, rel_type, strength, count
    FROM json_each(?1) j JOIN graph_edges e ON e.from_id = j.value JOIN items i ON i.id = e.to_id
    WHERE i.ended_at IS NULL AND i.seq NOT IN past AND (strength >= ?2 OR count >= ?3)
    AND (?4 OR i.project_id IS NULL OR i.project_id IS ?5)
UNION ALL
SELECT e.to_id AS id, e.from_id AS other, edge_type, rel_type, strength, count
    FROM json_each(?1) j JOIN graph_edges e ON e.to_id = j.value JOIN items i ON i.id = e.from_id
    WHERE i.ended_at IS NULL AND i.seq NOT IN past AND (strength >= ?2 OR count >= ?3)
    AND (?4 OR i.project_id IS NULL OR i.project_id IS ?5)
ORDER BY count DESC, strength DESC, other
