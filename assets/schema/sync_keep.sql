-- A joined state takes the place of the one before it. One whose text others forgot is to be sent,
-- so that what was sent from here of it goes.

INSERT INTO replica SELECT ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, iif(?, number, NULL), ?, ? FROM clock
    WHERE true ON CONFLICT DO UPDATE SET put_t = excluded.put_t, put_w = excluded.put_w,
    end_t = excluded.end_t, end_w = excluded.end_w, ended_by = excluded.ended_by,
    ended_at = excluded.ended_at, successor = excluded.successor, ok = excluded.ok,
    marks = excluded.marks,
    gone = iif(gone, gone, excluded.gone), number = coalesce(excluded.number, number),
    author = coalesce(excluded.author, author);
