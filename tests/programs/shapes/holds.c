/* Holds MIB, verified all the time until stage 1; then grows to GROWN MiB, verified until stage
   2. Usage: holds MIB [GROWN] */
#include "cold.h"

int main(int argc, char **argv) {
    size_t bad;
    filler_len = strtoul(argc > 1 ? argv[1] : "40", NULL, 10) * MIB;
    fill();
    say("ready");
    bad = wrong_until(1);
    if (argc > 2) {
        filler_len = strtoul(argv[2], NULL, 10) * MIB;
        fill();
        say("grown");
        bad += wrong_until(2);
    }
    return verdict(bad);
}
