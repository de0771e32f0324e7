/* Futex operations on a page that is out. Usage: futexes wake_op|lock_pi|wait */
#include "cold.h"

int main(int argc, char **argv) {
    static int elsewhere;
    int *word = fresh(256 << 10), answer = 0;
    struct timespec soon = {.tv_nsec = 1000};
    long r;
    if (argc != 2) return UNABLE;
    *word = !strcmp(argv[1], "lock_pi") ? 0 : 7;
    word[1] = 1;
    fill();
    say("ready");
    await(1);
    const char *where = chill(word);
    if (!strcmp(argv[1], "wake_op"))
        r = futex(&elsewhere, FUTEX_WAKE_OP_PRIVATE, 1, (void *)1, word, FUTEX_OP(FUTEX_OP_ADD, 1, FUTEX_OP_CMP_EQ, 0));
    else if (!strcmp(argv[1], "lock_pi"))
        r = futex(word, FUTEX_LOCK_PI_PRIVATE, 0, NULL, NULL, 0);
    else
        r = futex(word, FUTEX_WAIT_PRIVATE, 7, &soon, NULL, 0), answer = ETIMEDOUT;
    int came = r < 0 ? errno : 0;
    say("on a page that is %s: %s", where, came ? strerror(came) : "done");
    return verdict(wrong() + (came != answer));
}
