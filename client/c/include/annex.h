/*
 * annex-client: a region of memory whose cold pages lie with donors, brought in by the thread
 * that touches them.
 *
 * What a program must know:
 *
 * - A system call that is given memory of the region fails with EFAULT where a page of that is
 *   not there. annex_region_touch brings pages in beforehand, as a best effort: they may go
 *   again. Better: buffers elsewhere.
 * - No thread that uses the region may block SIGBUS, and the program may not replace the handler
 *   for it but by one that passes on what it does not know.
 * - A child process does not have the region.
 * - Signals that come while a thread waits for a page are handled when it has it; only SIGKILL
 *   ends the wait.
 * - One region per process, and none for a process that annex has attached as a whole.
 *
 * A page that no donor has any more is lost: touching it is SIGBUS, to which the program's own
 * handler, or the end, answers.
 *
 * Link with -lannex_client (libannex_client.so, or libannex_client.a with -lpthread -ldl -lm).
 * Threads may use all of these.
 */
#ifndef ANNEX_H
#define ANNEX_H

#include <stddef.h>

#ifdef __cplusplus
extern "C" {
#endif

typedef struct annex_region annex_region;

/*
 * Opens the region of this process, zeros at first. socket: annexd's, NULL for
 * /run/annex/annexd.sock. length: bytes, 64 KiB at least; rounded up to whole pages. local: how
 * much of it may be in local memory, such as "512M" or "25%"; NULL for annexd's default. name: as
 * `annex apps` lists it, NULL for one made from the program's name.
 *
 * NULL if it can't be: then the reason is in error, if there is room for it.
 */
annex_region *annex_region_open(const char *socket, size_t length, const char *local,
                                const char *name, char *error, size_t error_size);

/* Its first byte, and how many there are. */
void *annex_region_address(const annex_region *region);
size_t annex_region_length(const annex_region *region);

/* Brings the pages of these bytes in, for a system call to find them there. */
void annex_region_touch(const annex_region *region, size_t offset, size_t length);

/* Ends it. What was in it is gone, and no thread may use it any more. */
void annex_region_close(annex_region *region);

#ifdef __cplusplus
}
#endif

#endif
