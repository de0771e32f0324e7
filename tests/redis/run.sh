#!/bin/sh
# Runs the units of Redis 7.0's own test suite that are about what this server serves, against one
# that is running.
#
#   run.sh SUITE_DIR HOST PORT
#
# SUITE_DIR is an unpacked Redis 7.0 source tree (runtest and tests/), with redis-server, redis-cli
# and redis-benchmark in src/ (links to the installed ones do: the suite wants to see them and, in
# external mode, only uses the last two). Needs tclsh. All databases of the server are flushed.
# skip.txt names the tests that are left out and says why.
set -eu

if [ $# -ne 3 ]; then
    echo "usage: $0 SUITE_DIR HOST PORT" >&2
    exit 2
fi
here=$(cd "$(dirname "$0")" && pwd)
skip=$(mktemp)
trap 'rm -f "$skip"' EXIT
# The suite knows no comments, and would take an empty line for a test's name.
grep -v -e '^#' -e '^$' "$here/skip.txt" >"$skip"
cd "$1"
mkdir -p tests/tmp

units="protocol auth multi keyspace expire scan bitops bitfield info info-command introspection introspection-2
       querybuf pause quit limits networking slowlog latency-monitor obuf-limits other type/string type/incr"
singles=""
for unit in $units; do
    singles="$singles --single unit/$unit"
done
# shellcheck disable=SC2086 # one word each
./runtest --host "$2" --port "$3" --skipfile "$skip" $singles \
    --durable --tags "-needs:repl -needs:save -cluster -needs:latency"
