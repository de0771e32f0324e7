/* A parent that stands in vfork until stage 1, with two children that hold memory until then.
   Usage: vfork_parent HOLDS */
#include "cold.h"

int main(int argc, char **argv) {
    int status;
    if (argc != 2) return UNABLE;
    for (int i = 0; i < 2; i++)
        if (!fork()) {
            execl(argv[1], "holds", "30", NULL);
            _exit(UNABLE);
        }
    if (!vfork()) {
        say("in vfork");
        await(1);
        _exit(0);
    }
    size_t bad = 0;
    while (wait(&status) > 0) bad += status != 0;
    say(bad ? "WRONG: %zu children failed" : "all %zu failed: right", bad);
    return bad != 0;
}
