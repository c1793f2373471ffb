-- Who on other machines stored and ended memories, as "person, host"; the id of a machine that does
-- not say who it is.

SELECT r.id, iif(coalesce(p.mine, 0), NULL, coalesce(nullif(
        concat_ws(', ', nullif(coalesce(author, p.person), ''), nullif(p.host, '')), ''),
        'machine ' || put_w)),
    iif(coalesce(e.mine, 0) OR r.ended_by = '', NULL, coalesce(nullif(
        concat_ws(', ', nullif(e.person, ''), nullif(e.host, '')), ''), 'machine ' || end_w))
FROM replica r JOIN items i ON i.id = r.id AND r.project = coalesce(i.project_id, '')
    LEFT JOIN machines p ON p.name = put_w LEFT JOIN machines e ON e.name = end_w
WHERE r.id IN (SELECT value FROM json_each(?)) AND NOT gone;
