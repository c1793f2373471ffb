-- Copy the edges of the item ?1 to its successor ?2, unless that has such an edge.

INSERT OR IGNORE INTO graph_edges(
    from_id, to_id, edge_type, strength, rel_type, last_at, created_at, count, questions
)
WITH carried AS (
    SELECT iif(from_id = ?1, ?2, from_id) AS a, iif(to_id = ?1, ?2, to_id) AS b, *
        FROM graph_edges
        WHERE (from_id = ?1 OR to_id = ?1) AND ?2 NOT IN (from_id, to_id)
        AND edge_type <> 'supersedes'
)
SELECT iif(edge_type = 'co_accessed', min(a, b), a), iif(edge_type = 'co_accessed', max(a, b), b),
        edge_type, strength, rel_type, last_at, created_at, count, questions
    FROM carried WHERE true
RETURNING from_id, to_id, edge_type, count;
