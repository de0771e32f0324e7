/* A C program with a region: writes all of it, reads it back with its pages in another order, and
   says so. Usage: region SOCKET LENGTH LOCAL */
#include <annex.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

int main(int argc, char **argv) {
    char why[512];
    if (argc != 4) return 2;
    size_t length = strtoull(argv[2], NULL, 10);
    annex_region *region = annex_region_open(argv[1], length, argv[3], "c-program", why, sizeof why);
    if (!region) {
        fprintf(stderr, "%s\n", why);
        return 1;
    }
    uint64_t *words = annex_region_address(region);
    size_t count = annex_region_length(region) / sizeof *words;
    for (size_t i = 0; i < count; i++) words[i] = i * 2654435761u;
    /* annexd looks ten times a second whether there is too much. */
    sleep(1);
    annex_region_touch(region, 0, length);
    size_t wrong = 0;
    for (size_t n = 0; n < count / 512; n++) {
        size_t first = n * 514229 % (count / 512) * 512;
        for (size_t i = first; i < first + 512; i++) wrong += words[i] != i * 2654435761u;
    }
    annex_region_close(region);
    printf("%zu words, %zu wrong\n", count, wrong);
    return wrong != 0;
}
