/* Moves, in one call, memory that is out together with memory that was mapped beside it later. */
#include "cold.h"

int main(void) {
    size_t length = 2 * MIB, bad = 0;
    int fixed = MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED_NOREPLACE;
    char *area = mmap(NULL, 8 * length, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    munmap(area, 8 * length);
    char *first = mmap(area + length, length, PROT_READ | PROT_WRITE, fixed, -1, 0);
    if (first != area + length) unable("map memory");
    for (size_t at = 0; at < length; at += PAGE) *(size_t *)(first + at) = at + 9;
    fill();
    say("ready");
    await(1);
    const char *where = chill(first);
    if (mmap(first + length, length, PROT_READ | PROT_WRITE, fixed, -1, 0) != first + length) unable("map beside it");
    char *moved = mremap(first, 2 * length, 4 * length, MREMAP_MAYMOVE);
    say("moved memory that is %s: %s", where, moved == MAP_FAILED ? strerror(errno) : "done");
    char *at_last = moved == MAP_FAILED ? first : moved;
    for (size_t at = 0; at < length; at += PAGE) bad += *(size_t *)(at_last + at) != at + 9;
    say("%zu bytes of it lost", bad);
    return verdict(bad + wrong() + (moved == MAP_FAILED));
}
