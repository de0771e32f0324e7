/* A program that sets its title on a page that is out. annexd sees that at its next look at the
   mappings, brings the page back and lets it stay; until then others read nothing. */
#include "cold.h"
#include <linux/prctl.h>

int main(void) {
    static const char title[] = "my-service: worker 7";
    char stat[1024] = "", shown[64] = "";
    unsigned long field[64] = {0};
    int n = 3;
    char *page = fresh(256 << 10);
    strcpy(page, title);
    fill();
    int file = open("/proc/self/stat", O_RDONLY);
    if (read(file, stat, sizeof stat - 1) <= 0) unable("read its numbers");
    for (char *word = strtok(strrchr(stat, ')') + 2, " "); word && n < 64; word = strtok(NULL, " ")) field[n++] = strtoul(word, NULL, 10);
    struct prctl_mm_map map = {.start_code = field[26], .end_code = field[27], .start_stack = field[28], .start_data = field[45],
                               .end_data = field[46], .start_brk = field[47], .brk = (uintptr_t)sbrk(0), .env_start = field[50],
                               .env_end = field[51], .arg_start = (uintptr_t)page, .arg_end = (uintptr_t)page + sizeof title, .exe_fd = (unsigned)-1};
    if (prctl(PR_SET_MM, PR_SET_MM_MAP, &map, sizeof map, 0)) unable("set its title");
    say("ready");
    await(1);
    /* It may come back as another page's neighbour, and go again, before annexd has looked. */
    const char *stays = "out";
    for (double end = now() + 60; !strcmp(stays, "out") && now() < end;) {
        if (!is_out(page)) stays = linger(page);
        else if (wrong()) break;
    }
    say("the title's page is %s", stays);
    file = open("/proc/self/cmdline", O_RDONLY);
    if (read(file, shown, sizeof shown - 1) < 0) unable("read its title");
    say("title: \"%s\"", shown);
    return verdict(wrong() + (strcmp(shown, title) != 0));
}
