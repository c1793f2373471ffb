-- A hub: what `sediment hub init` makes in a PostgreSQL database (15 or newer). Run again, it
-- changes nothing. People read what row-level security shows them, and write through push alone.

CREATE SCHEMA IF NOT EXISTS sediment;
CREATE TABLE IF NOT EXISTS sediment.meta(version int NOT NULL, oldest int NOT NULL);
INSERT INTO sediment.meta SELECT 1, 1 WHERE NOT EXISTS(SELECT FROM sediment.meta);
CREATE TABLE IF NOT EXISTS sediment.space(
    id text COLLATE "C" PRIMARY KEY,
    version bigint NOT NULL DEFAULT 0); -- each push takes the next one, in the order of commits
CREATE TABLE IF NOT EXISTS sediment.member(
    space text COLLATE "C" REFERENCES sediment.space, person name,
    writes boolean NOT NULL DEFAULT true, PRIMARY KEY(person, space));
CREATE TABLE IF NOT EXISTS sediment.machine(
    space text COLLATE "C" NOT NULL REFERENCES sediment.space, name text COLLATE "C" NOT NULL,
    person name NOT NULL, host text NOT NULL, pulled bigint NOT NULL, seen_at bigint NOT NULL,
    PRIMARY KEY(space, name));
CREATE TABLE IF NOT EXISTS sediment.item(
    space text COLLATE "C" NOT NULL REFERENCES sediment.space,
    id text COLLATE "C" NOT NULL CHECK(length(id) BETWEEN 1 AND 255),
    version bigint NOT NULL, gone boolean NOT NULL,
    put_t bigint, put_w text COLLATE "C",
    content text COLLATE "C" CHECK(octet_length(content) BETWEEN 1 AND 1000000), created bigint,
    end_t bigint, end_w text COLLATE "C", ended_by text COLLATE "C", ended_at bigint,
    successor text COLLATE "C", ok jsonb NOT NULL,
    author name, ender name,  -- who brought the text, and its end: as they logged in
    model text, e bytea,      -- vectors of 16 bits, and the model and chunker that they are of
    PRIMARY KEY(space, id));
-- What somebody decided should stand in its place, or itself, where others decided differently.
ALTER TABLE sediment.item ADD COLUMN IF NOT EXISTS rivals jsonb NOT NULL DEFAULT '[]';
-- Of the text as it was written: what somebody or a disk changed since is taken by no machine.
ALTER TABLE sediment.item ADD COLUMN IF NOT EXISTS digest bytea;
-- Tags, and under '' the end, each as [time, machine, value].
ALTER TABLE sediment.item ADD COLUMN IF NOT EXISTS marks jsonb NOT NULL DEFAULT '{}';
CREATE INDEX IF NOT EXISTS item_version ON sediment.item(space, version, id);

ALTER TABLE sediment.space ENABLE ROW LEVEL SECURITY;
ALTER TABLE sediment.member ENABLE ROW LEVEL SECURITY;
ALTER TABLE sediment.machine ENABLE ROW LEVEL SECURITY;
ALTER TABLE sediment.item ENABLE ROW LEVEL SECURITY;
DROP POLICY IF EXISTS mine ON sediment.member;
DROP POLICY IF EXISTS mine ON sediment.space;
DROP POLICY IF EXISTS mine ON sediment.machine;
DROP POLICY IF EXISTS mine ON sediment.item;
CREATE POLICY mine ON sediment.member FOR SELECT USING (person = session_user);
CREATE POLICY mine ON sediment.space FOR SELECT USING
    (id = ANY(ARRAY(SELECT space FROM sediment.member WHERE person = session_user)));
CREATE POLICY mine ON sediment.machine FOR SELECT USING
    (space = ANY(ARRAY(SELECT space FROM sediment.member WHERE person = session_user)));
CREATE POLICY mine ON sediment.item FOR SELECT USING
    (space = ANY(ARRAY(SELECT space FROM sediment.member WHERE person = session_user)));

CREATE OR REPLACE FUNCTION sediment.most(a jsonb, b jsonb) RETURNS jsonb
LANGUAGE sql IMMUTABLE SET search_path = pg_catalog AS $$
    SELECT coalesce(jsonb_object_agg(key, n), '{}') FROM (
        SELECT key, max(value::bigint) AS n FROM (
            SELECT * FROM jsonb_each_text(a) UNION ALL SELECT * FROM jsonb_each_text(b)) both_of_them
        GROUP BY key) counts
$$;

CREATE OR REPLACE FUNCTION sediment.latest(a jsonb, b jsonb) RETURNS jsonb
LANGUAGE sql IMMUTABLE SET search_path = pg_catalog AS $$
    SELECT coalesce(jsonb_object_agg(key, value), '{}') FROM (
        SELECT DISTINCT ON (key) key, value FROM (
            SELECT * FROM jsonb_each(a) UNION ALL SELECT * FROM jsonb_each(b)) both_of_them
        ORDER BY key, (value->>0)::bigint DESC, (value->>1) COLLATE "C" DESC,
            (value->>2)::bigint DESC) marks
$$;

CREATE OR REPLACE FUNCTION sediment.together(a jsonb, b jsonb) RETURNS jsonb
LANGUAGE sql IMMUTABLE SET search_path = pg_catalog AS $$
    SELECT coalesce(jsonb_agg(id), '[]') FROM (
        SELECT DISTINCT id COLLATE "C" AS id FROM jsonb_array_elements_text(a || b) id
        ORDER BY 1 LIMIT 20) ids
$$;

-- Joins states with what is there, as the program does: forgotten is forgotten, the later text and
-- the later end and mark hold, of one stamp the greater value, of confirmations the greater count.
CREATE OR REPLACE FUNCTION sediment.push(in_space text, rows jsonb) RETURNS bigint
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog AS $$
DECLARE
    new_version bigint;
    far bigint := (extract(epoch FROM clock_timestamp()) + 86400)::bigint * 1000 << 16;
BEGIN
    IF NOT EXISTS(SELECT FROM sediment.member
            WHERE space = in_space AND person = session_user AND writes) THEN
        RAISE insufficient_privilege USING MESSAGE = 'you may not write to ' || in_space;
    END IF;
    IF EXISTS(SELECT FROM jsonb_array_elements(rows) r WHERE greatest(
            (r->'text'->>0)::bigint, (r->'ending'->>0)::bigint,
            (SELECT max((mark.value->>0)::bigint) FROM jsonb_each(r->'marks') mark)) > far) THEN
        RAISE data_exception USING
            MESSAGE = 'the clock of this machine is more than a day ahead of the hub''s: set it';
    END IF;
    IF EXISTS(SELECT FROM jsonb_array_elements(rows) r, jsonb_each_text(r->'confirmations') one
            WHERE coalesce(one.value, '') !~ '^[0-9]{1,10}$' OR one.value::bigint > 2147483648) THEN
        RAISE data_exception USING MESSAGE = 'confirmations are whole numbers';
    END IF;
    IF EXISTS(SELECT FROM jsonb_array_elements(rows) r, jsonb_each(r->'marks') mark
            WHERE jsonb_array_length(mark.value) <> 3 OR mark.value @> '[null]'
            OR length(mark.key) > 64 OR mark.value->>1 = ''
            OR NOT (mark.value->>2)::bigint BETWEEN 0 AND 253402128000) THEN
        RAISE data_exception USING MESSAGE = 'a tag or the time of an end cannot be';
    END IF;
    IF EXISTS(SELECT FROM jsonb_array_elements(rows) r, (VALUES ('text', 4), ('ending', 5)) part(name, size)
            WHERE r ? name AND (jsonb_typeof(r->name) <> 'array' OR r->name @> '[null]'
                OR jsonb_array_length(r->name) <> size)) THEN
        RAISE data_exception USING MESSAGE = 'a text or an end has another form';
    END IF;
    IF EXISTS(SELECT FROM jsonb_array_elements(rows) r WHERE
            '' IN (r->'text'->>1, r->'ending'->>1) OR r->'confirmations' ? '' OR r->>'id' = r->'ending'->>4
            OR r->'ending'->>2 NOT IN ('', 'replace', 'beside', 'repeat', 'merge', 'undo',
                'prune')
            OR (r->'ending'->>4 = '' AND r->'ending'->>2 NOT IN ('', 'prune'))) THEN
        RAISE data_exception USING MESSAGE = 'a machine without a name, or an end that cannot be';
    END IF;
    IF EXISTS(SELECT FROM jsonb_array_elements(rows) r WHERE r ? 'rivals'
            AND (jsonb_typeof(r->'rivals') <> 'array' OR jsonb_array_length(r->'rivals') > 20
            OR EXISTS(SELECT FROM jsonb_array_elements(r->'rivals') one
                WHERE jsonb_typeof(one) <> 'string' OR length(one #>> '{}') > 255))) THEN
        RAISE data_exception USING MESSAGE = 'rivals are up to 20 ids';
    END IF;
    UPDATE sediment.space SET version = version + 1 WHERE id = in_space
        RETURNING version INTO new_version;
    INSERT INTO sediment.item AS old(space, id, version, gone, put_t, put_w, content, created, end_t,
        end_w, ended_by, ended_at, successor, ok, author, ender, model, e, rivals, digest, marks)
    SELECT in_space, id, new_version, is_gone,
        CASE WHEN is_gone THEN NULL WHEN puts THEN (put->>0)::bigint ELSE put_t END,
        CASE WHEN is_gone THEN NULL WHEN puts THEN put->>1 ELSE put_w END,
        CASE WHEN is_gone THEN NULL WHEN puts THEN put->>2 ELSE content END,
        CASE WHEN is_gone THEN NULL WHEN puts THEN (put->>3)::bigint ELSE created END,
        CASE WHEN is_gone THEN NULL WHEN ends THEN (ending->>0)::bigint ELSE end_t END,
        CASE WHEN is_gone THEN NULL WHEN ends THEN ending->>1 ELSE end_w END,
        CASE WHEN is_gone THEN NULL WHEN ends THEN ending->>2 ELSE ended_by END,
        CASE WHEN is_gone THEN NULL WHEN ends THEN (ending->>3)::bigint ELSE ended_at END,
        CASE WHEN is_gone THEN NULL WHEN ends THEN ending->>4 ELSE successor END,
        CASE WHEN is_gone THEN '{}' ELSE counts END,
        CASE WHEN is_gone THEN NULL WHEN puts THEN session_user ELSE author END,
        CASE WHEN is_gone THEN session_user WHEN ends THEN session_user ELSE ender END,
        CASE WHEN is_gone THEN NULL WHEN puts THEN new_model ELSE model END,
        CASE WHEN is_gone THEN NULL WHEN puts THEN new_e ELSE e END,
        CASE WHEN is_gone THEN '[]' ELSE both_rivals END,
        CASE WHEN is_gone THEN NULL WHEN puts THEN sha256(convert_to(put->>2, 'UTF8'))
            ELSE digest END,
        CASE WHEN is_gone THEN '{}' ELSE both_marks END
    FROM (
        SELECT r->>'id' AS id, r->'text' AS put, r->'ending' AS ending,
            r->>'model' AS new_model, decode(r->>'e', 'base64') AS new_e,
            i.gone, i.put_t, i.put_w, i.content, i.created, i.end_t, i.end_w, i.ended_by,
            i.ended_at, i.successor, i.author, i.ender, i.model, i.e, i.ok, i.rivals, i.digest, i.marks,
            sediment.latest(coalesce(i.marks, '{}'), coalesce(r->'marks', '{}')) AS both_marks,
            sediment.together(coalesce(i.rivals, '[]'), coalesce(r->'rivals', '[]') || CASE
                WHEN i.successor <> r->'ending'->>4 THEN jsonb_build_array(
                    coalesce(nullif(i.successor, ''), i.id),
                    coalesce(nullif(r->'ending'->>4, ''), i.id)) ELSE '[]' END) AS both_rivals,
            i.id IS NULL AS fresh,
            coalesce(i.gone, false) OR coalesce((r->>'gone')::boolean, false) AS is_gone,
            r ? 'text' AND (i.put_t IS NULL OR i.digest <> sha256(convert_to(i.content, 'UTF8'))
                OR ((r->'text'->>0)::bigint, r->'text'->>1,
                r->'text'->>2, (r->'text'->>3)::bigint)
                > (i.put_t, i.put_w, i.content, i.created)) AS puts,
            r ? 'ending' AND (i.end_t IS NULL OR ((r->'ending'->>0)::bigint, r->'ending'->>1,
                r->'ending'->>2, (r->'ending'->>3)::bigint, r->'ending'->>4)
                > (i.end_t, i.end_w, i.ended_by, i.ended_at, i.successor)) AS ends,
            CASE WHEN i.id IS NULL THEN coalesce(r->'confirmations', '{}') WHEN NOT r ? 'confirmations' THEN i.ok
                ELSE sediment.most(i.ok, r->'confirmations') END AS counts
        FROM jsonb_array_elements(rows) r
        LEFT JOIN sediment.item i ON i.space = in_space AND i.id = r->>'id') came
    WHERE fresh OR (NOT gone AND (is_gone OR puts OR ends OR counts <> ok
        OR both_rivals <> rivals OR both_marks <> marks))
    ON CONFLICT (space, id) DO UPDATE SET version = excluded.version, gone = excluded.gone,
        put_t = excluded.put_t, put_w = excluded.put_w, content = excluded.content,
        created = excluded.created, end_t = excluded.end_t, end_w = excluded.end_w,
        ended_by = excluded.ended_by, ended_at = excluded.ended_at,
        successor = excluded.successor, ok = excluded.ok, author = excluded.author,
        ender = excluded.ender, model = excluded.model, e = excluded.e, rivals = excluded.rivals,
        digest = excluded.digest, marks = excluded.marks;
    PERFORM pg_notify('sediment', '');
    RETURN new_version;
END $$;

-- Notes up to which version a machine has read; a machine's name is one person's. Returns whether
-- this person is a member.
CREATE OR REPLACE FUNCTION sediment.seen(
    in_space text, this_machine text, on_host text, up_to bigint) RETURNS boolean
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog AS $$
BEGIN
    IF NOT EXISTS(SELECT FROM sediment.member WHERE space = in_space AND person = session_user) THEN
        RETURN false;
    END IF;
    INSERT INTO sediment.machine AS m VALUES(in_space, this_machine, session_user,
        left(on_host, 255), up_to, extract(epoch FROM clock_timestamp())::bigint)
        ON CONFLICT (space, name) DO UPDATE SET host = excluded.host, pulled = excluded.pulled,
            seen_at = excluded.seen_at WHERE m.person = session_user;
    IF NOT FOUND THEN
        RAISE insufficient_privilege USING MESSAGE = 'machine ' || this_machine || ' is not yours';
    END IF;
    RETURN true;
END $$;

CREATE OR REPLACE FUNCTION sediment.leave(this_machine text) RETURNS void
LANGUAGE sql SECURITY DEFINER SET search_path = pg_catalog AS $$
    DELETE FROM sediment.machine WHERE name = this_machine AND person = session_user
$$;

-- What the program reads: whom it speaks with, records as they are sent, and how far machines are.
CREATE OR REPLACE VIEW sediment.hello WITH (security_invoker = true) AS
    SELECT version, oldest, session_user::text AS person,
        extract(epoch FROM clock_timestamp())::float8 AS now FROM sediment.meta;
CREATE OR REPLACE VIEW sediment.record WITH (security_invoker = true) AS
    SELECT space, version, id, jsonb_build_object('v', 1, 'in', space, 'id', id, 'gone', gone,
        'altered', digest <> sha256(convert_to(content, 'UTF8')),
        'confirmations', ok, 'marks', marks, 'rivals', rivals, 'text', CASE WHEN put_t IS NOT NULL THEN
            jsonb_build_array(put_t, put_w, content, created) END,
        'ending', CASE WHEN end_t IS NOT NULL THEN
            jsonb_build_array(end_t, end_w, ended_by, ended_at, successor) END) AS record,
        coalesce(author, ender)::text AS author, model, e FROM sediment.item;
CREATE OR REPLACE VIEW sediment.progress WITH (security_invoker = true) AS
    SELECT name AS machine, min(host) AS host, min(person::text) AS person, max(seen_at) AS seen,
        sum((SELECT count(*) FROM sediment.item i WHERE i.space = m.space AND gone
            AND i.version > pulled))::int AS to_erase
    FROM sediment.machine m GROUP BY name;

-- For those who look after the hub: whether a role had to be made, and whether one was a member.
CREATE OR REPLACE FUNCTION sediment.add(who text, to_space text, may_write boolean) RETURNS boolean
LANGUAGE plpgsql SET search_path = pg_catalog AS $$
DECLARE made boolean := NOT EXISTS(SELECT FROM pg_roles WHERE rolname = who);
BEGIN
    IF made THEN EXECUTE format('CREATE ROLE %I LOGIN', who); END IF;
    INSERT INTO sediment.space(id) VALUES(to_space) ON CONFLICT DO NOTHING;
    INSERT INTO sediment.member VALUES(to_space, who, may_write)
        ON CONFLICT (person, space) DO UPDATE SET writes = excluded.writes;
    RETURN made;
END $$;
CREATE OR REPLACE FUNCTION sediment.remove(who text, from_space text) RETURNS boolean
LANGUAGE plpgsql SET search_path = pg_catalog AS $$
BEGIN
    DELETE FROM sediment.machine WHERE space = from_space AND person = who;
    DELETE FROM sediment.member WHERE space = from_space AND person = who;
    RETURN FOUND;
END $$;

REVOKE ALL ON ALL FUNCTIONS IN SCHEMA sediment FROM public;
GRANT USAGE ON SCHEMA sediment TO public;
GRANT SELECT ON ALL TABLES IN SCHEMA sediment TO public;
GRANT EXECUTE ON FUNCTION sediment.push, sediment.seen, sediment.leave TO public;
