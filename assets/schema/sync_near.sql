-- The states of those to whom the view of some may be due, or whose view may be due to them: behind
-- one another, or of one text.

WITH RECURSIVE near(id) AS (SELECT value FROM json_each(?)
    UNION SELECT r.successor FROM near JOIN replica r USING(id) WHERE r.successor <> ''
    UNION SELECT r.id FROM near JOIN replica r ON r.successor <> '' AND r.successor = near.id
    UNION SELECT i.id FROM near JOIN items i ON i.successor = near.id
    UNION SELECT b.id FROM near JOIN items a USING(id) JOIN items b
        ON b.text_hash = a.text_hash AND b.file IS NULL AND b.project_id IS a.project_id)
SELECT * FROM states WHERE id IN near AND here;
