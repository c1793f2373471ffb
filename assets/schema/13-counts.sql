-- Items are counted by this index alone, and none is looked up for whether it stands in a file.
DROP INDEX items_live;
CREATE INDEX items_live ON items(project_id, created_at, file) WHERE ended_at IS NULL;
