/* Enters the time namespace that it is in already, which only a process with a memory of its own
   may do. */
#include "cold.h"

int main(void) {
    fill();
    say("ready");
    await(1);
    until_paged();
    int mount = open("/proc/self/ns/mnt", O_RDONLY), time = open("/proc/self/ns/time", O_RDONLY);
    int r = setns(mount, CLONE_NEWNS);
    say("setns(mnt): %s", r ? strerror(errno) : "done");
    int t = setns(time, 0x80);
    say("setns(time): %s", t ? strerror(errno) : "done");
    return verdict(wrong() + (r != 0) + (t != 0));
}
