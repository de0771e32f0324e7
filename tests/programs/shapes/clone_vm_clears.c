/* A process with the same memory, but no thread, ends: its TID is cleared in a page that nobody has
   touched for long, and whoever waits for that goes on. */
#include "cold.h"

static int gate[2];

static int shares(void *unused) {
    (void)unused;
    char byte;
    if (read(gate[0], &byte, 1) != 1) _exit(UNABLE);
    syscall(SYS_exit, 0);
    return 0;
}

int main(void) {
    int *tid = fresh(256 << 10);
    char *stack = fresh(256 << 10);
    fill();
    if (pipe(gate)) unable("make a pipe");
    *tid = -1;
    int flags = CLONE_VM | CLONE_FS | CLONE_FILES | CLONE_CHILD_CLEARTID | CLONE_PARENT_SETTID | SIGCHLD;
    int child = clone(shares, stack + (256 << 10) - 64, flags, NULL, tid, NULL, tid);
    if (child < 0) unable("clone");
    say("ready");
    await(1);
    say("word %s", linger(tid));
    int status = 0;
    if (write(gate[1], "x", 1) != 1 || waitpid(child, &status, 0) != child) unable("end the process");
    for (double end = now() + 20; *(volatile int *)tid && now() < end;) {
        struct timespec most = {1, 0};
        futex(tid, FUTEX_WAIT, (unsigned)*(volatile int *)tid, &most, NULL, 0);
    }
    return verdict(wrong() + (*tid != 0));
}
