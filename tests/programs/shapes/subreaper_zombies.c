/* A master (PID 1 of a container, or a subreaper) that waits for each worker by its PID: nothing
   may be left for it to reap. */
#include "cold.h"

int main(void) {
    int status;
    size_t failed = 0, left = 1;
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
    /* What it has adopted ends soon, and somebody else waits for it. */
    siginfo_t stray;
    for (double end = now() + 60; now() < end; usleep(5000)) {
        left = waitid(P_ALL, 0, &stray, WEXITED | WNOHANG | WNOWAIT | __WALL) == 0;
        if (!left) break;
    }
    say("%zu workers failed, %zu strange children", failed, left);
    return verdict(failed + left);
}
