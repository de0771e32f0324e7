/* A thread whose TID the kernel clears at an address that no C library would choose, on a page
   that is out by then. */
#include "cold.h"

static int gate[2];

static int run(void *nothing) {
    char byte;
    (void)nothing;
    syscall(SYS_read, gate[0], &byte, 1);
    syscall(SYS_exit, 0);
    return 0;
}

int main(void) {
    int *tid = fresh(256 << 10);
    char *stack = fresh(256 << 10);
    if (pipe(gate)) unable("make a pipe");
    fill();
    *tid = -1;
    int flags = CLONE_VM | CLONE_FS | CLONE_FILES | CLONE_SIGHAND | CLONE_THREAD | CLONE_SYSVSEM;
    int t = clone(run, stack + (256 << 10) - 64, flags | CLONE_PARENT_SETTID | CLONE_CHILD_CLEARTID, NULL, tid, NULL, tid);
    if (t < 0) unable("clone");
    say("ready");
    await(1);
    say("the page of the TID is %s", linger(tid));
    if (write(gate[1], "x", 1) != 1) return UNABLE;
    while (syscall(SYS_tgkill, getpid(), t, 0) == 0) usleep(1000);
    struct timespec patience = {.tv_sec = 3};
    int value;
    long r = 0;
    while ((value = *(volatile int *)tid) && r == 0) r = futex(tid, FUTEX_WAIT, (unsigned)value, &patience, NULL, 0);
    say("the TID was %s", *tid ? "not cleared" : "cleared");
    return verdict(wrong() + (*tid != 0));
}
