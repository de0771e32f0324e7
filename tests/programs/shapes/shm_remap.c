/* Shared memory is attached over memory that is out (SHM_REMAP): the kernel tells nobody that this
   is gone. When new memory comes to lie there, it is zeros. With an argument all of it is out, and
   all of the new is used: annex has nothing of it to look at but what it knows wrongly. */
#include "cold.h"
#include <sys/shm.h>

int main(int argc, char **argv) {
    (void)argv;
    const size_t length = 4 * MIB, step = argc > 1 ? PAGE : 2 * PAGE;
    char *at = fresh(length);
    for (size_t i = 0; i < length; i += PAGE) *(size_t *)(at + i) = i + 3;
    fill();
    say("ready");
    await(1);
    const char *first = chill(at + 10 * PAGE);
    for (size_t i = 0; argc > 1 && i < length; i += PAGE) first = chill(at + i);
    say("first %s", first);
    int id = shmget(IPC_PRIVATE, length, 0600 | IPC_CREAT);
    if (id < 0 || shmat(id, at, SHM_REMAP) != at) unable("attach shared memory");
    shmctl(id, IPC_RMID, NULL);
    size_t bad = wrong();
    for (size_t i = 0; i < length; i += PAGE) bad += *(size_t *)(at + i) != 0;
    shmdt(at);
    int flags = MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED_NOREPLACE;
    if (mmap(at, length, PROT_READ | PROT_WRITE, flags, -1, 0) != at) unable("map memory there");
    /* Every other page: the rest is looked at once annex has some of them. */
    for (size_t i = 0; i < length; i += step) {
        bad += *(size_t *)(at + i) != 0;
        *(size_t *)(at + i) = i + 55;
    }
    say("then %s", chill(at + 10 * PAGE));
    for (size_t i = 0; i < length; i += PAGE) bad += *(size_t *)(at + i) != (i % step ? 0 : i + 55);
    return verdict(bad + wrong());
}
