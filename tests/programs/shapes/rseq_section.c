/* Two threads on one CPU add to one counter, each in a restartable sequence that lasts long,
   until stage 1: no addition may be lost. */
#include "cold.h"
#include <sys/rseq.h>

static volatile long counter __attribute__((aligned(64)));
static volatile long done[2];

static struct rseq *area(void) { return (struct rseq *)((char *)__builtin_thread_pointer() + __rseq_offset); }

static int add_one(struct rseq *rs) {
    __asm__ volatile goto(
        ".pushsection __rseq_cs, \"aw\"\n.balign 32\n3:\n.long 0, 0\n.quad 1f, (2f-1f), 4f\n.popsection\n"
        "leaq 3b(%%rip), %%rax\n movq %%rax, %[cs]\n"
        "1:\n movq %[v], %%rcx\n movl $20000, %%edx\n5: pause\n decl %%edx\n jnz 5b\n incq %%rcx\n movq %%rcx, %[v]\n2:\n jmp 6f\n"
        ".pushsection __rseq_failure, \"ax\"\n.byte 0x0f, 0xb9, 0x3d\n.long 0x53053053\n4:\n jmp %l[abort]\n.popsection\n6:\n" ::[cs] "m"(
            rs->rseq_cs),
        [v] "m"(counter)
        : "rax", "rcx", "rdx", "memory", "cc"
        : abort);
    return 1;
abort:
    return 0;
}

static void *work(void *nth) {
    struct rseq *rs = area();
    cpu_set_t first;
    CPU_ZERO(&first);
    CPU_SET(0, &first);
    sched_setaffinity(0, sizeof first, &first);
    for (long turns = 0; turns % 64 || !told(1) || !turns; turns++)
        if (add_one(rs)) done[(long)nth]++;
    return NULL;
}

int main(void) {
    pthread_t thread;
    if (!__rseq_size) unable("use restartable sequences");
    fill();
    say("ready");
    pthread_create(&thread, NULL, work, (void *)1);
    work((void *)0);
    pthread_join(thread, NULL);
    long lost = done[0] + done[1] - counter;
    say("added %ld, counted %ld", done[0] + done[1], counter);
    return verdict((size_t)(lost < 0 ? -lost : lost) + wrong());
}
