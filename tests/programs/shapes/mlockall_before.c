/* mlockall first, then memory of which some is unlocked again and paged while MCL_FUTURE is on.
   It must not grow. Usage: mlockall_before cur|fut|onfault */
#include "cold.h"

static unsigned long resident(void) {
    unsigned long size, pages = 0;
    FILE *file = fopen("/proc/self/statm", "r");
    if (!file || fscanf(file, "%lu %lu", &size, &pages) != 2) unable("read its size");
    fclose(file);
    return pages * PAGE / MIB;
}

int main(int argc, char **argv) {
    struct rlimit none = {RLIM_INFINITY, RLIM_INFINITY};
    size_t bad = 0;
    if (argc != 2) return UNABLE;
    setrlimit(RLIMIT_MEMLOCK, &none);
    int more = !strcmp(argv[1], "cur") ? MCL_CURRENT : !strcmp(argv[1], "onfault") ? MCL_ONFAULT : 0;
    if (mlockall(MCL_FUTURE | more)) unable("lock its memory");
    filler_len = 24 * MIB;
    fill();
    munlock(filler, filler_len);
    unsigned long before = resident(), most = before;
    say("ready");
    for (double end = now() + 150; !told(1); usleep(1000)) {
        if (now() > end) _exit(FORGOTTEN);
        bad += wrong();
        unsigned long is = resident();
        most = is > most ? is : most;
    }
    say("%lu MiB resident at first, %lu MiB at most", before, most);
    return verdict(bad + wrong() + (most > before + 16));
}
