-- A table and two indexes in memory. Every row says what it must hold; the answers must be those of a native run.
CREATE TABLE t(id INTEGER PRIMARY KEY, a INTEGER, b TEXT);
WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < 400000)
INSERT INTO t SELECT i, (i * 7919) % 1000003, printf('%08x-%08x-%0100d', i * 2654435761, i, i) FROM n;
CREATE INDEX by_a ON t(a);
CREATE INDEX by_b ON t(b);
UPDATE t SET b = printf('%08x-%08x-%0100d', id * 40503, id, id + 1) WHERE id % 5 = 0;
DELETE FROM t WHERE id % 11 = 0;
SELECT 'wrong', count(*) FROM t WHERE b <> CASE id % 5 WHEN 0 THEN printf('%08x-%08x-%0100d', id * 40503, id, id + 1)
  ELSE printf('%08x-%08x-%0100d', id * 2654435761, id, id) END OR a <> (id * 7919) % 1000003;
SELECT 'rows', count(*), sum(id), sum(a), sum(length(b)) FROM t;
SELECT 'by a', count(*), sum(id) FROM t WHERE a BETWEEN 5000 AND 90000;
SELECT 'by b', group_concat(id) FROM (SELECT id FROM t ORDER BY b LIMIT 20);
SELECT 'join', count(*) FROM t x JOIN t y ON y.a = x.id WHERE x.id % 17 = 0;
PRAGMA integrity_check;
