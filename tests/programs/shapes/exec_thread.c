/* A thread that is not the main one replaces the program at stage 1 while others read; the next
   one verifies until stage 2. */
#include "cold.h"

static char **self;

static void *reads(void *nothing) {
    while (!wrong()) continue;
    say("WRONG before exec");
    _exit(1);
    return nothing;
}

static void *replaces(void *nothing) {
    await(1);
    execl(self[0], self[0], "again", NULL);
    unable("exec");
    return nothing;
}

int main(int argc, char **argv) {
    pthread_t threads[2];
    self = argv;
    fill();
    if (argc > 1) {
        say("again");
        return verdict(wrong_until(2));
    }
    say("ready");
    pthread_create(&threads[0], NULL, reads, NULL);
    pthread_create(&threads[1], NULL, replaces, NULL);
    pthread_join(threads[0], NULL);
    return 1;
}
