/* PID 1 of a PID namespace: ends at stage 1, and the kernel ends its children with it. */
#include "cold.h"

int main(void) {
    if (getpid() != 1) say("not PID 1 (natively)");
    fill();
    for (int i = 0; i < 2; i++) {
        if (fork()) continue;
        fill();
        _exit(verdict(wrong_until(3)));
    }
    say("ready");
    return verdict(wrong_until(1));
}
