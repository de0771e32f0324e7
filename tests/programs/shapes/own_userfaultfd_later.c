/* A program that makes a userfaultfd of its own, and registers memory that is out. */
#include "cold.h"
#include <linux/userfaultfd.h>
#include <sys/ioctl.h>

int main(void) {
    size_t length = 2 * MIB;
    char *memory = fresh(length);
    memset(memory, 7, length);
    fill();
    say("ready");
    await(1);
    const char *where = chill(memory);
    int fd = (int)syscall(SYS_userfaultfd, O_CLOEXEC | O_NONBLOCK);
    struct uffdio_api api = {.api = UFFD_API};
    if (fd < 0 || ioctl(fd, UFFDIO_API, &api)) unable("make a userfaultfd");
    struct uffdio_register all = {.range = {(uintptr_t)memory, length}, .mode = UFFDIO_REGISTER_MODE_MISSING};
    int r = ioctl(fd, UFFDIO_REGISTER, &all);
    say("registered memory that is %s: %s", where, r ? strerror(errno) : "done");
    return verdict(wrong() + (r != 0));
}
