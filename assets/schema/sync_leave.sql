-- Takes out all that sync.sql has made: nothing is noted any more.

DROP TRIGGER IF EXISTS replica_barred;
DROP TRIGGER IF EXISTS replica_put;
DROP TRIGGER IF EXISTS replica_end;
DROP TRIGGER IF EXISTS replica_gone;
DROP TRIGGER IF EXISTS replica_move;
DROP TRIGGER IF EXISTS replica_ok;
DROP TRIGGER IF EXISTS replica_moved;
DROP INDEX items_same;
DROP VIEW states;
DROP TABLE replica;
DROP TABLE clock;
DROP TABLE spaces;
DROP TABLE machines;
