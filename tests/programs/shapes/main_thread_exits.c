/* The main thread ends by pthread_exit at stage 1, another verifies until stage 2. With an
   argument it does nothing before stage 2. */
#include "cold.h"

static void *work(void *idle) {
    if (idle) await(2);
    _exit(verdict(wrong_until(2)));
}

int main(int argc, char **argv) {
    pthread_t thread;
    fill();
    say("ready");
    pthread_create(&thread, NULL, work, argc > 1 ? argv[1] : NULL);
    await(1);
    pthread_exit(NULL);
}
