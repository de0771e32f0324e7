/* Maps memory into holes that it made in its own mappings, as is its right: nothing of the
   program's is there. */
#include "cold.h"
#define HOLE (16 * MIB)
#define HOLES 8

int main(void) {
    char *holes[HOLES];
    size_t bad = 0;
    for (int i = 0; i < HOLES; i++) {
        char *at = mmap(NULL, HOLE + 2 * PAGE, PROT_READ, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
        if (at == MAP_FAILED || munmap(at + PAGE, HOLE)) unable("make a hole");
        holes[i] = at + PAGE;
    }
    fill();
    say("ready");
    await(1);
    for (int i = 0; i < HOLES; i++) {
        if (mmap(holes[i], HOLE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0) == MAP_FAILED) unable("fill a hole");
        for (size_t at = 0; at < HOLE; at += PAGE) *(size_t *)(holes[i] + at) = at * 31 + (size_t)i + 5;
    }
    say("filled");
    bad += wrong_until(2);
    for (int i = 0; i < HOLES; i++)
        for (size_t at = 0; at < HOLE; at += PAGE) bad += *(volatile size_t *)(holes[i] + at) != at * 31 + (size_t)i + 5;
    return verdict(bad);
}
