/* A program that emulates its own system calls (as Wine and FEX do): calls from outside the C
   library come as SIGSYS. */
#include "cold.h"
#include <ucontext.h>
#ifndef PR_SET_SYSCALL_USER_DISPATCH
#define PR_SET_SYSCALL_USER_DISPATCH 59
#endif

static volatile char selector;
static volatile long hits;

static void emulate(int signal, siginfo_t *info, void *context) {
    (void)signal, (void)info;
    hits++;
    ((ucontext_t *)context)->uc_mcontext.gregs[REG_RAX] = 4242;
}

int main(void) {
    char line[512];
    unsigned long from = 0, to = 0, a, b, answer = 0;
    long calls = 0;
    FILE *maps = fopen("/proc/self/maps", "r");
    while (maps && fgets(line, sizeof line, maps))
        if (strstr(line, "libc.so") && strstr(line, "r-xp") && sscanf(line, "%lx-%lx", &a, &b) == 2) from = a, to = b;
    fill();
    struct sigaction action = {.sa_sigaction = emulate, .sa_flags = SA_SIGINFO};
    sigaction(SIGSYS, &action, NULL);
    if (prctl(PR_SET_SYSCALL_USER_DISPATCH, 1, from, to - from, &selector)) unable("dispatch system calls");
    selector = 1;
    say("ready");
    while (!told(1) || !calls) {
        __asm__ volatile("syscall" : "=a"(answer) : "0"(39) : "rcx", "r11", "memory");
        calls++;
        if (answer != 4242) break;
        usleep(500);
    }
    selector = 0;
    say("%ld calls, %ld dispatched", calls, hits);
    return verdict(wrong() + (calls != hits));
}
