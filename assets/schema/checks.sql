-- What must not be there: each query gives the ids or numbers of such rows, and the line above it
-- says what they are.

-- texts without chunks
SELECT seq FROM items WHERE seq NOT IN (SELECT item FROM chunks);

-- chunks without an item
SELECT id FROM chunks WHERE item NOT IN (SELECT seq FROM items);

-- chunks out of the order of their items
SELECT id FROM (SELECT id, item, lag(item) OVER (ORDER BY id) AS before FROM chunks)
    WHERE item < before;

-- chunks with neither vector nor a place in the queue, or with both
SELECT id FROM chunks
    WHERE (id IN (SELECT chunk FROM vectors)) = (id IN (SELECT chunk FROM pending));

-- vectors without a chunk
SELECT chunk FROM vectors EXCEPT SELECT id FROM chunks;

-- queued chunks that are not there
SELECT chunk FROM pending EXCEPT SELECT id FROM chunks;

-- words without a chunk
SELECT id FROM words_docsize EXCEPT SELECT id FROM chunks;

-- chunks without words
SELECT id FROM chunks EXCEPT SELECT id FROM words_docsize;

-- texts without their graph node
SELECT id FROM (SELECT id, coalesce(project_id, '') FROM items
    EXCEPT SELECT id, project_id FROM graph_nodes);

-- graph nodes without an item
SELECT id FROM graph_nodes EXCEPT SELECT id FROM items;

-- edges to nowhere
SELECT from_id FROM graph_edges UNION SELECT to_id FROM graph_edges EXCEPT SELECT id FROM items;

-- accesses to nothing
SELECT item_id FROM access_log EXCEPT SELECT id FROM items;

-- queued pairs of nothing
SELECT item_id_a FROM consolidation_queue
    UNION SELECT item_id_b FROM consolidation_queue
    EXCEPT SELECT id FROM items;

-- queued pairs out of order
SELECT item_id_a FROM consolidation_queue WHERE item_id_a >= item_id_b;

-- pairs to review of nothing
SELECT old_id FROM reviews UNION SELECT new_id FROM reviews EXCEPT SELECT id FROM items;

-- history of nothing
SELECT item_id FROM history
    UNION SELECT other_id FROM history WHERE other_id IS NOT NULL
    EXCEPT SELECT id FROM items;

-- parts of files that are not known
SELECT id FROM items WHERE file IS NOT NULL AND file NOT IN (SELECT id FROM files);

-- files of sources that are not known
SELECT path FROM files WHERE source NOT IN (SELECT id FROM sources);

-- parts of another project than their file
SELECT i.id FROM items i JOIN files f ON f.id = i.file
    WHERE coalesce(i.project_id, '') <> f.project_id;

-- files of another project than their source
SELECT f.path FROM files f JOIN sources s ON s.id = f.source WHERE f.project_id <> s.project_id;

-- chunks made anew of nothing
SELECT item FROM staged EXCEPT SELECT seq FROM items;

-- hidden versions with nothing in their place
SELECT id FROM items WHERE (ended_at IS NULL) != (successor IS NULL) AND ended_by IS NOT 'prune';
