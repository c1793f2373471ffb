-- An index on every column that names an item; of which questions two items were the answer: what
-- was counted before took weak hits and the same question again; files where their parts went when
-- their project moved. The last by `reunite_files`.

CREATE INDEX history_item ON history(item_id);
CREATE INDEX history_other ON history(other_id);
CREATE INDEX consolidation_queue_b ON consolidation_queue(item_id_b);
CREATE TABLE reviews(
    old_id TEXT NOT NULL, new_id TEXT NOT NULL, probability REAL NOT NULL,
    kept INTEGER NOT NULL DEFAULT 0, PRIMARY KEY(old_id, new_id)) STRICT;
CREATE INDEX reviews_new ON reviews(new_id);
ALTER TABLE graph_edges ADD COLUMN questions BLOB NOT NULL DEFAULT x'';
DELETE FROM graph_edges WHERE edge_type = 'co_accessed';
