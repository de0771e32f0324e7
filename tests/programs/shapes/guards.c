/* Guards in memory that was never touched, in a mapping that is paged: touching what is beside
   them must not remove them. */
#include "cold.h"
#ifndef MADV_GUARD_INSTALL
#define MADV_GUARD_INSTALL 102
#endif
#define PAGES 1024ul

static int is_guarded(char *at) {
    int ends[2];
    if (pipe(ends)) unable("make a pipe");
    int guarded = write(ends[1], at, 1) < 0 && errno == EFAULT;
    close(ends[0]);
    close(ends[1]);
    return guarded;
}

int main(void) {
    char *area = fresh(PAGES * PAGE);
    size_t bad = 0;
    memset(area, 1, PAGES / 2 * PAGE);
    fill();
    say("ready");
    await(1);
    say("what was used is %s", chill(area));
    for (size_t page = PAGES / 2; page < PAGES; page += 16)
        if (madvise(area + (page + 5) * PAGE, PAGE, MADV_GUARD_INSTALL)) {
            say("no guards here: %s", strerror(errno));
            return verdict(wrong());
        }
    for (size_t page = PAGES / 2; page < PAGES; page += 16) area[page * PAGE] = 2;
    for (size_t page = PAGES / 2; page < PAGES; page += 16) bad += !is_guarded(area + (page + 5) * PAGE) || area[(page + 4) * PAGE];
    say("%zu guards of %lu are gone", bad, PAGES / 32);
    return verdict(bad + wrong());
}
