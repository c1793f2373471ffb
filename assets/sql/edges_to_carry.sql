-- The edges of the item ?1 that its successor ?2 also gets.

SELECT from_id, to_id, edge_type, strength, rel_type, last_at, created_at, count, questions
    FROM graph_edges
    WHERE (from_id = ?1 OR to_id = ?1) AND ?2 NOT IN (from_id, to_id) AND edge_type <> 'supersedes'
