/* Gives a page to a pipe, and writes to it when it has been out: a pipe shows the new bytes
   natively. */
#include "cold.h"
#include <sys/uio.h>

int main(void) {
    static char read_back[PAGE];
    char *memory = fresh(256 << 10);
    int ends[2];
    memset(memory, 'A', 256 << 10);
    fill();
    say("ready");
    await(1);
    struct iovec page = {memory + 2 * PAGE, PAGE};
    if (pipe(ends) || vmsplice(ends[1], &page, 1, 0) != (long)PAGE) unable("splice");
    const char *where = chill(memory + 2 * PAGE);
    memset(memory + 2 * PAGE, 'B', PAGE);
    if (read(ends[0], read_back, PAGE) != (long)PAGE) unable("read the pipe");
    say("a page that is %s: pipe has %c, memory has %c", where, read_back[0], memory[2 * PAGE]);
    return verdict(wrong() + (read_back[0] != 'B'));
}
