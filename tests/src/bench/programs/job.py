# A data job as people write them: rows made, grouped, joined and sorted, all in Python's own
# objects.
import random
import sys

rows = int(sys.argv[1])
random.seed(1)
table = [(i, random.randrange(rows // 20 + 1), random.random(), "name-%d" % (i * 7919 % rows)) for i in range(rows)]
groups = {}
for number, group, value, name in table:
    groups.setdefault(group, []).append((value, name))
totals = {group: (len(items), sum(v for v, _ in items), max(items)[1]) for group, items in groups.items()}
by_name = {name: number for number, _, _, name in table}
joined = sum(by_name[totals[group][2]] for _, group, _, _ in table)
table.sort(key=lambda row: row[2])
print(len(groups), joined, table[0][0], table[-1][3], round(sum(t[1] for t in totals.values()), 6))
