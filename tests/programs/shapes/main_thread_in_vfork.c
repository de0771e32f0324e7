/* The main thread stands in vfork, another verifies until stage 1. */
#include "cold.h"

static void *work(void *nothing) {
    say("ready");
    _exit(verdict(wrong_until(1)));
    return nothing;
}

int main(void) {
    pthread_t thread;
    fill();
    pthread_create(&thread, NULL, work, NULL);
    if (!vfork()) {
        struct timespec long_enough = {.tv_sec = 150};
        prctl(PR_SET_PDEATHSIG, SIGKILL);
        nanosleep(&long_enough, NULL);
        _exit(0);
    }
    return 0;
}
