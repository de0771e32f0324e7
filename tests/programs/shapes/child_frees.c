/* Forks a child while memory is paged out, ends it, and forks another, which gives all memory
   away (MADV_FREE) and ends. Then the parent asks the kernel to reclaim its memory: what the
   child gave away is its parent's still. */
#include "cold.h"

static pid_t started(void) {
    pid_t child = fork();
    if (child < 0) unable("fork");
    return child;
}

static void ended(pid_t child) {
    int status;
    if (waitpid(child, &status, 0) != child) unable("wait for a child");
}

int main(void) {
    size_t bad = 0;
    fill();
    say("ready");
    await(1);
    for (int round = 0; round < 12 && !bad; round++) {
        pid_t child = started();
        if (!child) for (;;) pause();
        bad += wrong();
        kill(child, SIGKILL);
        ended(child);
        if (!(child = started())) _exit(madvise(filler, filler_len, MADV_FREE) != 0);
        ended(child);
        if (madvise(filler, filler_len, MADV_PAGEOUT)) unable("have memory reclaimed");
        bad += wrong();
    }
    return verdict(bad);
}
