-- A hash of each text, by which a text that is stored again is known. `hash_of` is `text_hash`.

ALTER TABLE items ADD COLUMN text_hash INTEGER NOT NULL DEFAULT 0;
UPDATE items SET text_hash = hash_of(content);
CREATE INDEX items_text ON items(text_hash) WHERE ended_at IS NULL;
