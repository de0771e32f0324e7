/* Numbers that look random but are the same each time. */
CREATE TABLE people (id INTEGER PRIMARY KEY, town INTEGER, age INTEGER, name TEXT);
WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < ROWS)
INSERT INTO people SELECT i, (i * 2654435761) % 9973, (i * 40503) % 97, printf('%016x-%032d', i * 7919 % ROWS, i) FROM n;
CREATE INDEX by_name ON people (name);
CREATE INDEX by_town ON people (town, age);
SELECT count(*), sum(age) FROM people WHERE town % 7 = 3;
SELECT town, avg(age) a FROM people GROUP BY town ORDER BY a DESC, town LIMIT 3;
WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < ROWS / 4)
SELECT sum(p.age) FROM n JOIN people p ON p.id = (n.i * 48271) % ROWS + 1;
SELECT max(name) FROM people WHERE name > '00000000000a';
UPDATE people SET age = age + 1 WHERE town < 2000;
SELECT sum(age) FROM people;
