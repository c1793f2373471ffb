-- Who on other machines stored and ended memories, as "person, host".

SELECT r.id, iif(coalesce(p.mine, 0), NULL,
        concat_ws(', ', nullif(coalesce(author, p.person), ''), nullif(p.host, ''))),
    iif(coalesce(e.mine, 0) OR r.ended_by = '', NULL,
        concat_ws(', ', nullif(e.person, ''), nullif(e.host, '')))
FROM replica r JOIN items i ON i.id = r.id AND r.project = coalesce(i.project_id, '')
    LEFT JOIN machines p ON p.name = put_w LEFT JOIN machines e ON e.name = end_w
WHERE r.id IN (SELECT value FROM json_each(?)) AND NOT gone;
