-- Memories of these ids, texts and times in a project that is shared by nobody and of no folder here,
-- and that were never in this one.

SELECT i.id, i.project_id FROM json_each(?1) j JOIN items i ON i.id = j.value ->> 0
    AND i.file IS NULL AND i.content = j.value ->> 1 AND i.created_at = j.value ->> 2
    WHERE i.project_id NOT IN (SELECT project FROM spaces UNION SELECT project_id FROM projects)
    AND NOT EXISTS (SELECT 1 FROM replica WHERE id = i.id AND project = ?2);
