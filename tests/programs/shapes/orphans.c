/* Forks children that fork one of their own and end at once. Each grandchild looks at all of the
   filler. */
#include "cold.h"

static void grandchild(int answer) {
    size_t bad = wrong();
    if (write(answer, &bad, sizeof bad) != sizeof bad) _exit(UNABLE);
    _exit(0);
}

int main(void) {
    fill();
    until_paged();
    say("ready");
    size_t bad = 0, found = 0, rounds = 0;
    for (; !told(1) && !bad; rounds++) {
        int ends[2];
        if (pipe(ends)) unable("make a pipe");
        pid_t child = fork();
        if (child == 0) {
            if (fork() == 0) grandchild(ends[1]);
            _exit(0);
        }
        close(ends[1]);
        if (child < 0 || waitpid(child, NULL, 0) != child) unable("fork");
        if (read(ends[0], &found, sizeof found) != sizeof found) unable("hear of the grandchild");
        close(ends[0]);
        bad = found + wrong();
    }
    say("%zu grandchildren", rounds);
    return verdict(bad);
}
