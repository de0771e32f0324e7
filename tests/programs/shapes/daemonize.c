/* Forks twice, with a session of its own in between, as daemons do: the grandchild fills memory
   and verifies until stage 1. */
#include "cold.h"

int main(void) {
    pid_t pid = fork();
    if (pid < 0) unable("fork");
    if (pid > 0) {
        int status;
        waitpid(pid, &status, 0);
        return status != 0;
    }
    setsid();
    if (fork() > 0) _exit(0);
    fill();
    say("ready");
    return verdict(wrong_until(1));
}
