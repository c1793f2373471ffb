-- Add an edge, or its counts to those of the same edge.

INSERT INTO graph_edges(
    from_id, to_id, edge_type, strength, rel_type, last_at, created_at, count, questions
) VALUES(?, ?, ?, ?, ?, ?, ?, ?, ?)
    ON CONFLICT(from_id, to_id, edge_type) DO UPDATE
    SET count = count + excluded.count,
        questions = CAST(questions || excluded.questions AS BLOB)
