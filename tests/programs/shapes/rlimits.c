/* A program that has used up what it may have. Usage: rlimits nofile|nproc|as */
#include "cold.h"

int main(int argc, char **argv) {
    struct rlimit limit = {0, 0};
    unsigned long pages = 0;
    if (argc != 2) return UNABLE;
    fill();
    if (!strcmp(argv[1], "nofile")) {
        /* $SHAPES_GO is looked up by name: no descriptor is needed to be told. */
        setrlimit(RLIMIT_NOFILE, &limit);
    } else if (!strcmp(argv[1], "nproc")) {
        limit.rlim_cur = limit.rlim_max = 1;
        if (setuid(12345) || setrlimit(RLIMIT_NPROC, &limit)) unable("limit its processes");
    } else {
        FILE *file = fopen("/proc/self/statm", "r");
        if (!file || fscanf(file, "%lu", &pages) != 1) unable("read its size");
        fclose(file);
        limit.rlim_cur = limit.rlim_max = (pages + 256) * PAGE;
        setrlimit(RLIMIT_AS, &limit);
    }
    say("ready");
    return verdict(wrong_until(1));
}
