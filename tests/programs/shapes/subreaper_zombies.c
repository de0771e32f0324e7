/* A master (PID 1 of a container, or a subreaper) that waits for each worker by its PID: nothing may be left for it to reap. */
#include "cold.h"

int main(void) {
    int status;
    size_t failed = 0, left = 0;
    prctl(PR_SET_CHILD_SUBREAPER, 1);
    for (int worker = 0; worker < 4; worker++) {
        pid_t pid = fork();
        if (!pid) {
            fill();
            until_paged();
            _exit(wrong() != 0);
        }
        waitpid(pid, &status, 0);
        failed += status != 0;
    }
    usleep(300000);
    pid_t stray;
    while ((stray = waitpid(-1, &status, WNOHANG | __WALL)) >= 0 && left < 100) {
        left++;
        if (stray == 0) break; /* a child that still runs */
    }
    say("%zu workers failed, %zu strange children", failed, left);
    return verdict(failed + left);
}
