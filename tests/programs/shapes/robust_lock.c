/* A thread ends while it holds a robust lock whose page nobody has touched for long: whoever
   waits is told so. */
#include "cold.h"

static int gate[2];
static volatile int is_held;
static pthread_mutex_t *locks[3];

static void *run(void *nothing) {
    char byte;
    (void)nothing;
    for (int i = 0; i < 3; i++)
        if (pthread_mutex_lock(locks[i])) unable("lock");
    is_held = 1;
    if (read(gate[0], &byte, 1) != 1) _exit(UNABLE);
    return NULL;
}

int main(void) {
    pthread_mutexattr_t robust;
    pthread_t thread;
    size_t bad = 0;
    pthread_mutexattr_init(&robust);
    pthread_mutexattr_setrobust(&robust, PTHREAD_MUTEX_ROBUST);
    for (int i = 0; i < 3; i++) pthread_mutex_init(locks[i] = fresh(256 << 10), &robust);
    if (pipe(gate)) unable("make a pipe");
    fill();
    if (pthread_create(&thread, NULL, run, NULL)) unable("make a thread");
    while (!is_held) usleep(1000);
    say("ready");
    await(1);
    say("the first lock's page is %s", linger(locks[0]));
    if (write(gate[1], "x", 1) != 1) return UNABLE;
    for (int i = 0; i < 3; i++) {
        struct timespec patience;
        clock_gettime(CLOCK_REALTIME, &patience);
        patience.tv_sec += 3;
        int came = pthread_mutex_timedlock(locks[i], &patience);
        bad += came != EOWNERDEAD;
        say("lock %d: %s", i, strerror(came));
    }
    pthread_join(thread, NULL);
    return verdict(bad + wrong());
}
