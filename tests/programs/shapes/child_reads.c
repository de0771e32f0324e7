/* A child that only reads what it has inherited is paged like any other. */
#include "cold.h"

int main(void) {
    int status;
    fill();
    say("ready");
    await(1);
    pid_t child = fork();
    if (!child) {
        say("child");
        _exit(wrong_until(2) != 0);
    }
    waitpid(child, &status, 0);
    return verdict(wrong() + (size_t)status);
}
