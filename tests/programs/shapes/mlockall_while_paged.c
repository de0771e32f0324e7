/* mlockall at stage 1, of a program that is being paged, while a thread verifies. Usage:
   mlockall_while_paged cur|fut|both */
#include "cold.h"

static size_t bad;
static volatile int locked;

static void *look(void *nothing) {
    for (int after = 0; after < 20 && !bad; after += locked) bad += wrong();
    return nothing;
}

int main(int argc, char **argv) {
    struct rlimit none = {RLIM_INFINITY, RLIM_INFINITY};
    pthread_t thread;
    if (argc != 2) return UNABLE;
    fill();
    setrlimit(RLIMIT_MEMLOCK, &none);
    pthread_create(&thread, NULL, look, NULL);
    say("ready");
    await(1);
    int how = !strcmp(argv[1], "cur") ? MCL_CURRENT : !strcmp(argv[1], "fut") ? MCL_FUTURE : MCL_CURRENT | MCL_FUTURE;
    if (mlockall(how)) unable("lock its memory");
    locked = 1;
    say("locked");
    await(2);
    pthread_join(thread, NULL);
    return verdict(bad + wrong());
}
