/* Makes a part of its memory read-only (or, with an argument, inaccessible; `noreserve`: of
   memory that is not accounted for) while the rest is paged out, takes that back, and moves all
   of it in one call. */
#include "cold.h"

int main(int argc, char **argv) {
    size_t length = 6 * MIB, bad = 0;
    int unaccounted = argc > 1 && !strcmp(argv[1], "noreserve") ? MAP_NORESERVE : 0;
    char *area = mmap(NULL, 2 * length, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | unaccounted, -1, 0);
    char *first = area + length / 2;
    if (mprotect(first, length, PROT_READ | PROT_WRITE)) unable("map memory");
    for (size_t at = 0; at < length; at += PAGE) *(size_t *)(first + at) = at + 9;
    char *part = first + 2 * MIB;
    if (mprotect(part, 2 * MIB, argc > 1 ? PROT_NONE : PROT_READ)) unable("protect a part");
    fill();
    say("ready");
    await(1);
    const char *before = chill(first), *behind = chill(part + 2 * MIB);
    if (mprotect(part, 2 * MIB, PROT_READ | PROT_WRITE)) unable("take the protection back");
    char *moved = mremap(first, length, 2 * length, MREMAP_MAYMOVE);
    say("moved memory that is %s and %s: %s", before, behind, moved == MAP_FAILED ? strerror(errno) : "done");
    char *at_last = moved == MAP_FAILED ? first : moved;
    for (size_t at = 0; at < length; at += PAGE) bad += *(size_t *)(at_last + at) != at + 9;
    return verdict(bad + wrong() + (moved == MAP_FAILED));
}
