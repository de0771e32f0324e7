/* What the programs of this folder share: memory that must leave ("the filler"), and stages at
   which they are told to go on. Stage N has come when the file $SHAPES_GO holds N bytes. Without
   that variable nothing waits: that is how a program is tried natively. */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <linux/futex.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>
#define UNUSED __attribute__((unused))
#define PAGE 4096ul
#define MIB (1ul << 20)
/* Exit codes besides 0 (right), 1 (wrong): the program could not do what it is for, and nobody
   told it to go on. */
enum { UNABLE = 97, FORGOTTEN = 98 };

static char *filler;
static size_t filler_len = 40 * MIB;

UNUSED static double now(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + (double)t.tv_nsec / 1e9;
}

/* One line, in one write: processes that share memory and threads may say it at the same time. */
__attribute__((format(printf, 1, 2))) UNUSED static void say(const char *format, ...) {
    char line[512];
    va_list arguments;
    va_start(arguments, format);
    int length = vsnprintf(line, sizeof line - 1, format, arguments);
    va_end(arguments);
    line[length++] = '\n';
    if (write(1, line, (size_t)length) != length) _exit(UNABLE);
}

UNUSED static void unable(const char *what) {
    say("can't %s: %s", what, strerror(errno));
    _exit(UNABLE);
}

UNUSED static int told(int stage) {
    const char *path = getenv("SHAPES_GO");
    struct stat s;
    return !path || (stat(path, &s) == 0 && s.st_size >= stage);
}

UNUSED static void await(int stage) {
    for (double end = now() + 150; !told(stage);) {
        if (now() > end) _exit(FORGOTTEN);
        usleep(2000);
    }
}

UNUSED static void *fresh(size_t length) {
    void *at = mmap(NULL, length, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (at == MAP_FAILED) unable("map memory");
    return at;
}

/* Every page holds its number, at its beginning and at its end. */
UNUSED static void fill(void) {
    filler = fresh(filler_len);
    for (size_t at = 0; at < filler_len; at += PAGE) {
        *(size_t *)(filler + at) = at / PAGE + 1;
        *(size_t *)(filler + at + PAGE - 8) = ~(at / PAGE);
    }
}

/* How many pages of a part of the filler are wrong. */
UNUSED static size_t wrong_in(size_t from, size_t to) {
    size_t bad = 0;
    for (size_t at = from; at < to && at < filler_len; at += PAGE)
        bad += *(volatile size_t *)(filler + at) != at / PAGE + 1 || *(volatile size_t *)(filler + at + PAGE - 8) != ~(at / PAGE);
    return bad;
}

/* How many of all of it. */
UNUSED static size_t wrong(void) { return wrong_in(0, filler_len); }

/* Goes through the filler until the stage has come, and once more: how many pages were wrong. */
UNUSED static size_t wrong_until(int stage) {
    size_t bad = 0;
    for (double end = now() + 150; !told(stage); usleep(1000)) {
        if (now() > end) _exit(FORGOTTEN);
        bad += wrong();
        if (bad) return bad;
    }
    return wrong();
}

UNUSED static int is_out(const void *at) {
    int file = open("/proc/thread-self/pagemap", O_RDONLY);
    uint64_t entry = 1ull << 63;
    if (file < 0 || pread(file, &entry, 8, (off_t)((uintptr_t)at / PAGE * 8)) != 8) unable("read the pagemap");
    close(file);
    return !(entry >> 63);
}

/* Goes through the filler, so many times and for so long at most, until the page is out: "out".
   "in" if that does not come. It looks again and again on the way: what lies beside the filler's end
   may be brought in each time that that is read. */
UNUSED static const char *cool(const void *at, int passes, double seconds) {
    if (!getenv("SHAPES_GO")) return "in";
    for (double end = now() + seconds; passes > 0 && now() < end; passes--)
        for (size_t from = 0; from < filler_len; from += MIB) {
            if (is_out(at)) return "out";
            if (wrong_in(from, from + MIB)) return "in, and the filler is wrong";
        }
    return "in";
}

/* Of a page that is to go. */
UNUSED static const char *chill(const void *at) { return cool(at, 1 << 30, 60); }

/* Of a page that is to stay, whose going is not waited for as long, on a slow machine neither. */
UNUSED static const char *linger(const void *at) { return cool(at, 60, 20); }

/* Waits until some of the filler is out, as it is once there is more than the limit. */
UNUSED static void until_paged(void) {
    if (!getenv("SHAPES_GO")) return;
    for (double end = now() + 60; now() < end; usleep(2000))
        for (size_t at = 0; at < filler_len; at += MIB)
            if (is_out(filler + at)) return;
    say("nothing of it was paged out in a minute");
    _exit(UNABLE);
}

UNUSED static long futex(void *word, int operation, unsigned value, const void *timeout, void *other, unsigned third) {
    return syscall(SYS_futex, word, operation, value, timeout, other, third);
}

/* The last word. */
UNUSED static int verdict(size_t bad) {
    if (bad) say("WRONG: %zu", bad);
    else say("right");
    return bad != 0;
}
