/* A thread has a seccomp filter that the main thread has not, and is the one that can be borrowed:
   the main thread has ended. */
#include "cold.h"
#include <linux/audit.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <stddef.h>

#define KILLS(call) BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, call, 0, 1), BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_KILL_PROCESS)

static void *filtered(void *unused) {
    (void)unused;
    struct sock_filter program[] = {
        BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr)),
        KILLS(SYS_clone), KILLS(SYS_prctl), KILLS(SYS_mmap), KILLS(SYS_munmap), KILLS(SYS_wait4), KILLS(SYS_getpid),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
    };
    struct sock_fprog filter = {sizeof program / sizeof *program, program};
    if (prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) || syscall(SYS_seccomp, SECCOMP_SET_MODE_FILTER, 0, &filter))
        unable("set a filter");
    say("ready");
    size_t bad = wrong_until(1);
    verdict(bad);
    _exit(bad != 0);
}

int main(void) {
    fill();
    pthread_t thread;
    if (pthread_create(&thread, NULL, filtered, NULL)) unable("start a thread");
    pthread_exit(NULL);
}
