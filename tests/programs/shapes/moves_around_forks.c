/* A thread moves a mapping to and fro while the main thread forks. A child finds it in one of two
   places, whole, whatever it changes in its own mappings meanwhile. */
#include "cold.h"
#define FAR ((char *)0x200000000000)
#define FARTHER ((char *)0x210000000000)
#define PAGES 64ul
#define CHILDREN 80

static volatile int over;
static volatile unsigned long moves;

static void *move_to_and_fro(void *_) {
    char *from = FAR, *to = FARTHER;
    while (!over) {
        if (mremap(from, PAGES * PAGE, PAGES * PAGE, MREMAP_MAYMOVE | MREMAP_FIXED, to) != to) unable("move a mapping");
        char *there = to;
        to = from;
        from = there;
        moves++;
        usleep(10);
    }
    return _;
}

/* What a child finds: wrong pages. It was forked with the mapping in one place. */
static int look(void) {
    unsigned char vec[PAGES];
    char *at = mincore(FAR, PAGES * PAGE, vec) == 0 ? FAR : FARTHER;
    size_t wrong = 0;
    for (size_t page = 0; page < PAGES; page++) wrong += *(size_t *)(at + page * PAGE) != page + 1;
    if (wrong) say("wrong: %zu of %lu moving pages", wrong, PAGES);
    return wrong != 0;
}

int main(void) {
    pthread_t mover;
    int wrong_children = 0;
    fill();
    char *moving = mmap(FAR, PAGES * PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED_NOREPLACE, -1, 0);
    if (moving != FAR) unable("map memory far away");
    for (size_t page = 0; page < PAGES; page++) *(size_t *)(moving + page * PAGE) = page + 1;
    say("ready");
    await(1);
    pthread_create(&mover, NULL, move_to_and_fro, NULL);
    for (int n = 0; n < CHILDREN; n++) {
        pid_t child = fork();
        if (child < 0) unable("fork");
        if (!child) {
            char *own = filler + (size_t)(n % 16) * 64 * PAGE;
            for (size_t page = 0; page < 48; page += 2) {
                madvise(own + page * PAGE, PAGE, MADV_DONTNEED);
                munmap(own + (page + 1) * PAGE, PAGE);
            }
            _exit(look());
        }
        int status;
        waitpid(child, &status, 0);
        wrong_children += status != 0;
        if (n % 10 == 9) usleep(1000);
    }
    over = 1;
    pthread_join(mover, NULL);
    say("%lu moves, %d children wrong", moves, wrong_children);
    return verdict(wrong() + (size_t)wrong_children);
}
