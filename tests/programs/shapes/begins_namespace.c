/* The next process that it makes is the first of a new PID namespace: its own, not one of ours.
 * With an argument that one has ended, and the kernel lets it make no other. */
#include "cold.h"

static int child_is_first(void) {
    pid_t child = fork();
    if (child < 0) unable("fork");
    if (child == 0) _exit(getpid() == 1 ? 0 : 1);
    int status = 0;
    if (waitpid(child, &status, 0) != child) unable("wait for the child");
    return status == 0;
}

int main(int argc, char **argv) {
    (void)argv;
    if (unshare(CLONE_NEWPID)) unable("unshare the PID namespace");
    fill();
    if (argc > 1 && !child_is_first()) return 1;
    say("ready");
    await(1);
    return verdict(wrong() + (argc == 1 && !child_is_first()));
}
