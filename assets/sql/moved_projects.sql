-- The projects whose files, or what was said of hooks in them, stayed behind when their memories
-- went to another, and which that is.

SELECT substr(key, length('hooks_off:') + 1), project_id FROM meta
    JOIN projects ON key = replace(location, 'moved:', 'hooks_off:')
    WHERE location GLOB 'moved:*'
UNION
SELECT DISTINCT f.project_id, coalesce(i.project_id, '') FROM items i JOIN files f ON f.id = i.file
    WHERE f.project_id <> coalesce(i.project_id, '')
        AND f.project_id NOT IN (SELECT coalesce(project_id, '') FROM items);
