/* A program without children that asks whether it has any, in the way that shows all kinds of
   them. */
#include "cold.h"

int main(void) {
    int status;
    fill();
    say("ready");
    await(1);
    until_paged();
    pid_t r = waitpid(-1, &status, __WALL | WNOHANG);
    say("waitpid without children: %d %s", r, r < 0 ? strerror(errno) : "it has one");
    return verdict(wrong() + !(r < 0 && errno == ECHILD));
}
