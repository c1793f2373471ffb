-- Takes out all that sync.sql has made: nothing is noted any more.

DROP TRIGGER replica_barred;
DROP TRIGGER replica_put;
DROP TRIGGER replica_end;
DROP TRIGGER replica_gone;
DROP TRIGGER replica_ok;
DROP TRIGGER replica_moved;
DROP INDEX items_same;
DROP VIEW states;
DROP TABLE replica;
DROP TABLE clock;
DROP TABLE spaces;
DROP TABLE machines;
