/* Unmaps all that it has, its own code too: it dies of that, and nothing of it may stay. */
#include "cold.h"

int main(void) {
    fill();
    say("ready");
    await(1);
    if (wrong()) return 1;
    munmap(NULL, 0x7ffffffff000ul - PAGE);
    return UNABLE;
}
