-- Count that items were shown, and that the best of them (:pairs) answered a question together.

INSERT OR IGNORE INTO graph_nodes
    SELECT i.id, coalesce(i.project_id, ''), i.created_at
    FROM json_each(:ids) j JOIN items i ON i.id = j.value;
INSERT INTO access_log(item_id, access_count, last_accessed_at, created_at)
    SELECT i.id, 1, :now, i.created_at FROM json_each(:ids) j JOIN items i ON i.id = j.value
    WHERE true
    ON CONFLICT(item_id) DO UPDATE
    SET access_count = access_count + 1, last_accessed_at = excluded.last_accessed_at;
INSERT INTO graph_edges(from_id, to_id, edge_type, count, last_at, created_at, questions)
    SELECT a.id, b.id, 'co_accessed', 1, :now, :now, :question
    FROM json_each(:pairs) p
    JOIN items a ON a.id = p.value ->> 0 JOIN items b ON b.id = p.value ->> 1
    WHERE true
    ON CONFLICT(from_id, to_id, edge_type) DO UPDATE
    SET count = count + 1, last_at = excluded.last_at,
        questions = CAST(questions || :question AS BLOB)
    WHERE NOT instr(questions, :question) AND length(questions) < :most;
