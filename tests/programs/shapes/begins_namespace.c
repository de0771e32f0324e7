/* The next process that it makes is the first of a new PID namespace: its own, not one of ours. */
#include "cold.h"

int main(void) {
    if (unshare(CLONE_NEWPID)) unable("unshare the PID namespace");
    fill();
    say("ready");
    await(1);
    pid_t child = fork();
    if (child < 0) unable("fork");
    if (child == 0) _exit(getpid() == 1 ? 0 : 1);
    int status = 0;
    if (waitpid(child, &status, 0) != child) unable("wait for the child");
    return verdict(wrong() + (status != 0));
}
