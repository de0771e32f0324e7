#!/bin/sh
# Several programs at once, as a batch job starts them. Arguments: this directory, a directory to
# work in.
set -eu
programs=$1 work=$2
python3 "$programs/dicts.py" 48 > "$work/dicts.out" &
first=$!
node "$programs/objects.js" 48 > "$work/objects.out" &
second=$!
seq 1 1500000 | awk '{ print ($1 * 7919) % 1500007 }' > "$work/numbers"
sort -n -S 256M "$work/numbers" > "$work/sorted" &
third=$!
wait "$first"
wait "$second"
wait "$third"
sort -c -n "$work/sorted"
[ "$(wc -l < "$work/sorted")" = 1500000 ]
cat "$work/dicts.out" "$work/objects.out"
echo "all done"
