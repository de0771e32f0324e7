#!/bin/bash
# Waits until it has no children any more, as process-tree reapers do.
held=$(head -c 20000000 /dev/zero | tr '\0' x)
echo ready
while [ -n "$SHAPES_GO" ] && [ ! -s "$SHAPES_GO" ]; do sleep 0.05; done
sleep 0.5 &
for _ in $(seq 60); do
    read -r children < /proc/$$/task/$$/children
    [ -z "$children" ] && { [ ${#held} = 20000000 ] && echo right; exit; }
    wait -n 2> /dev/null
    sleep 0.05
done
for child in $children; do echo "still a child: $child $(cat "/proc/$child/comm")"; done
exit 1
