-- What `sediment hub init --recall` adds to a hub, with pgvector 0.8 or newer: the nearest vectors
-- and words of every space. {dimension} and {model} are of the program that ran it.

CREATE EXTENSION IF NOT EXISTS vector;
CREATE TABLE IF NOT EXISTS sediment.chunk(
    space text COLLATE "C" NOT NULL, id text COLLATE "C" NOT NULL, position int NOT NULL,
    v halfvec({dimension}) NOT NULL, PRIMARY KEY(space, id, position),
    FOREIGN KEY(space, id) REFERENCES sediment.item ON DELETE CASCADE);
ALTER TABLE sediment.chunk ENABLE ROW LEVEL SECURITY;
DROP POLICY IF EXISTS mine ON sediment.chunk;
CREATE POLICY mine ON sediment.chunk FOR SELECT USING
    (space = ANY(ARRAY(SELECT space FROM sediment.member WHERE person = session_user)));
-- English stems of all words: those that are common everywhere count in a file, too.
DO $$ BEGIN
    IF NOT EXISTS(SELECT FROM pg_ts_config WHERE cfgname = 'words'
            AND cfgnamespace = 'sediment'::regnamespace) THEN
        CREATE TEXT SEARCH DICTIONARY sediment.stems(TEMPLATE = snowball, LANGUAGE = english);
        CREATE TEXT SEARCH CONFIGURATION sediment.words(COPY = pg_catalog.english);
        ALTER TEXT SEARCH CONFIGURATION sediment.words ALTER MAPPING FOR asciiword, word,
            asciihword, hword, hword_asciipart, hword_part WITH sediment.stems;
    END IF;
END $$;
-- A text may have a megabyte of words, and a tsvector not.
ALTER TABLE sediment.item ADD COLUMN IF NOT EXISTS terms tsvector
    GENERATED ALWAYS AS (to_tsvector('sediment.words', left(content, 100000))) STORED;

-- Numbers of 16 bits, as IEEE 754 has them, the lower byte first.
CREATE OR REPLACE FUNCTION sediment.numbers(e bytea, first int, count int) RETURNS real[]
LANGUAGE sql IMMUTABLE PARALLEL SAFE SET search_path = pg_catalog AS $$
    SELECT array_agg((CASE WHEN half & 31744 = 0 THEN (half & 1023) * power(2, -24)
        ELSE (1024 + (half & 1023)) * power(2, (half >> 10 & 31) - 25) END
        * CASE WHEN half & 32768 = 0 THEN 1 ELSE -1 END)::real ORDER BY at)
    FROM (SELECT at, get_byte(e, 2 * at) | (get_byte(e, 2 * at + 1) << 8) AS half
        FROM generate_series(first, first + count - 1) at) halves
$$;

CREATE OR REPLACE FUNCTION sediment.cut() RETURNS trigger
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, public AS $$
BEGIN
    DELETE FROM sediment.chunk WHERE space = NEW.space AND id = NEW.id;
    IF NEW.e IS NOT NULL AND NEW.model = '{model}' THEN
        INSERT INTO sediment.chunk SELECT NEW.space, NEW.id, position,
            sediment.numbers(NEW.e, position * {dimension}, {dimension})::halfvec
        FROM generate_series(0, octet_length(NEW.e) / (2 * {dimension}) - 1) position;
    END IF;
    RETURN NULL;
END $$;
DROP TRIGGER IF EXISTS came ON sediment.item;
DROP TRIGGER IF EXISTS changed ON sediment.item;
CREATE TRIGGER came AFTER INSERT ON sediment.item FOR EACH ROW EXECUTE FUNCTION sediment.cut();
CREATE TRIGGER changed AFTER UPDATE ON sediment.item FOR EACH ROW
    WHEN (OLD.e IS DISTINCT FROM NEW.e OR OLD.model IS DISTINCT FROM NEW.model)
    EXECUTE FUNCTION sediment.cut();
DELETE FROM sediment.chunk;
INSERT INTO sediment.chunk SELECT space, id, position,
    sediment.numbers(e, position * {dimension}, {dimension})::halfvec
FROM sediment.item, generate_series(0, octet_length(e) / (2 * {dimension}) - 1) position
WHERE model = '{model}';
CREATE INDEX IF NOT EXISTS item_terms ON sediment.item USING gin(terms);
CREATE INDEX IF NOT EXISTS item_successor ON sediment.item(space, successor) WHERE successor <> '';
CREATE INDEX IF NOT EXISTS item_created ON sediment.item(created);
CREATE INDEX IF NOT EXISTS chunk_near ON sediment.chunk USING hnsw(v halfvec_cosine_ops);
ANALYZE sediment.item;

DROP VIEW IF EXISTS sediment.memory;
ALTER TABLE sediment.item DROP COLUMN IF EXISTS words;
REVOKE ALL ON FUNCTION sediment.numbers, sediment.cut FROM public;
GRANT SELECT ON sediment.chunk TO public;
