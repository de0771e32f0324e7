/* Two processes with one memory (CLONE_VM without CLONE_THREAD). One ends at stage 1, the other
   verifies until stage 2. Usage: clone_vm parent|child, whoever ends first. */
#include "cold.h"

static int parent_first;

static int child(void *nothing) {
    (void)nothing;
    if (!parent_first) {
        await(1);
        _exit(0);
    }
    _exit(verdict(wrong_until(2)));
}

int main(int argc, char **argv) {
    int status = 0;
    parent_first = argc > 1 && !strcmp(argv[1], "parent");
    fill();
    char *stack = fresh(256 << 10);
    pid_t pid = clone(child, stack + (256 << 10) - 64, CLONE_VM | SIGCHLD, NULL);
    if (pid < 0) unable("clone");
    say("other %d ready", pid);
    if (parent_first) {
        await(1);
        _exit(0);
    }
    size_t bad = wrong_until(1);
    if (waitpid(pid, &status, 0) != pid || status) bad++;
    say("child ended");
    return verdict(bad + wrong_until(2));
}
