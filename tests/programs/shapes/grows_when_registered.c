/* Maps 64 small areas again and again, each with a gap above it. One after another grows into
   most of its gap, some before they are paged out, some after, and some just then; and is then
   resized as one. */
#include "cold.h"

enum { SLOTS = 64, ROUNDS = 6 };
static const size_t slot_len = MIB, small = 128 << 10, large = MIB - (64 << 10) - 2 * PAGE;
static char *slots[SLOTS];

static void put(char *at, size_t from, size_t to) {
    for (; from < to; from += PAGE) *(size_t *)(at + from) = ~(size_t)(at + from);
}

static size_t bad(const char *at, size_t len) {
    size_t count = 0;
    for (size_t n = 0; n < len; n += PAGE) count += *(volatile size_t *)(at + n) != ~(size_t)(at + n);
    return count;
}

/* 0 if something else has come to lie there. Nothing inaccessible is right below: it would look
   like a thread's stack. */
static int renew(char *at) {
    munmap(at - PAGE, large + 2 * PAGE);
    char *got = mmap(at, small, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED_NOREPLACE, -1, 0);
    if (got != at) return 0;
    put(at, 0, small);
    return 1;
}

/* Reads here and there in the filler for a while: what is read in order leaves before anything
   else does. */
static size_t read_on(double seconds) {
    static uint64_t dice = 1;
    size_t wrong_pages = 0;
    for (double until = now() + seconds; now() < until;) {
        dice = dice * 6364136223846793005ull + 1442695040888963407ull;
        size_t page = (dice >> 33) % (filler_len / PAGE);
        wrong_pages += *(volatile size_t *)(filler + page * PAGE) != page + 1;
    }
    return wrong_pages;
}

static volatile int is_over;
static size_t lost, split, grown, out;

/* Touches nothing that may be out before it has grown: a fault would wait until all is
   registered. */
static void *grow(void *unused) {
    for (int round = 0; round < ROUNDS && !split; round++) {
        char *there[SLOTS], *last = NULL;
        for (int n = 0; n < SLOTS; n++) there[n] = renew(slots[n]) ? slots[n] : NULL;
        for (int n = 0; n <= SLOTS; n++) {
            usleep(20000);
            /* What was split is put right when its other part is paged out, so it is not waited
               for long. */
            if (last) split += mremap(last, large, large + PAGE, 0) == MAP_FAILED && errno == EFAULT;
            last = n < SLOTS ? there[n * 27 % SLOTS] : NULL;
            if (!last) continue;
            out += is_out(last);
            grown++;
            if (mremap(last, small, large, 0) != last) unable("let an area grow");
            put(last, small, large);
        }
        for (int n = 0; n < SLOTS; n++)
            if (there[n]) lost += bad(there[n], large);
    }
    is_over = 1;
    return unused;
}

int main(void) {
    char *area = mmap(NULL, SLOTS * slot_len, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (area == MAP_FAILED) unable("reserve memory");
    for (int n = 0; n < SLOTS; n++) slots[n] = area + (size_t)n * slot_len + PAGE;
    fill();
    say("ready");
    await(1);
    pthread_t grower;
    size_t bad_pages = 0;
    if (pthread_create(&grower, NULL, grow, NULL)) unable("start a thread");
    while (!is_over) bad_pages += read_on(0.02);
    pthread_join(grower, NULL);
    say("%zu areas grew, of which %zu were out; %zu were split", grown, out, split);
    int proves_nothing = getenv("SHAPES_GO") && (out < SLOTS / 4 || out > grown - SLOTS / 4);
    return verdict(bad_pages + lost + wrong() + split + (proves_nothing && !split));
}
