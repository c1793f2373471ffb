-- What every recall asks of the file as a whole: the fields of FileState.

SELECT
    (SELECT count(*) FROM chunks),
    (SELECT coalesce(max(id), 0) FROM chunks),
    (SELECT coalesce(max(number), 0) FROM changes),
    coalesce((SELECT length(vector) / 4 FROM vectors LIMIT 1), 0),
    (SELECT value FROM meta WHERE key = 'generation'),
    (SELECT value FROM meta WHERE key = 'model_digest'),
    (SELECT value FROM meta WHERE key = 'model_probe'),
    EXISTS(SELECT 1 FROM pending),
    EXISTS(SELECT 1 FROM sources WHERE path <> 'conversations:');
