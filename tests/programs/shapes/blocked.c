/* Waits in one system call for four seconds, for something that does not come: whoever borrows
   the thread meanwhile must not end the wait early. Usage: blocked CALL */
#include "cold.h"
#include <linux/aio_abi.h>
#include <linux/io_uring.h>
#include <netinet/in.h>
#include <poll.h>
#include <sys/epoll.h>
#include <sys/msg.h>
#include <sys/sem.h>

#define LASTS 4

static int pair[2];
static struct timespec lasts = {.tv_sec = LASTS};

static long in_recv(void) {
    char byte;
    return recv(pair[0], &byte, 1, 0);
}
static long in_send(void) {
    static char bytes[1 << 16];
    long sent;
    while ((sent = send(pair[0], bytes, sizeof bytes, 0)) > 0) continue;
    return sent;
}
static long in_accept(void) {
    struct timeval timeout = {.tv_sec = LASTS};
    int listener = socket(AF_INET, SOCK_STREAM, 0);
    listen(listener, 1);
    setsockopt(listener, SOL_SOCKET, SO_RCVTIMEO, &timeout, sizeof timeout);
    return accept(listener, NULL, NULL);
}
static long in_epoll_wait(void) {
    struct epoll_event event;
    return epoll_wait(epoll_create1(0), &event, 1, LASTS * 1000);
}
static long in_epoll_pwait2(void) {
    struct epoll_event event;
    return syscall(SYS_epoll_pwait2, epoll_create1(0), &event, 1, &lasts, NULL, 8);
}
static long in_poll(void) {
    struct pollfd look = {.fd = pair[0], .events = POLLIN};
    return poll(&look, 1, LASTS * 1000);
}
static long in_sigtimedwait(void) {
    sigset_t none;
    sigemptyset(&none);
    sigaddset(&none, SIGUSR2);
    sigprocmask(SIG_BLOCK, &none, NULL);
    return sigtimedwait(&none, NULL, &lasts);
}
static long in_semtimedop(void) {
    struct sembuf take = {.sem_op = -1};
    int set = semget(IPC_PRIVATE, 1, 0600);
    long r = semtimedop(set, &take, 1, &lasts);
    int e = errno;
    semctl(set, 0, IPC_RMID);
    errno = e;
    return r;
}
static long in_futex(void) {
    static int word = 7;
    return futex(&word, FUTEX_WAIT_PRIVATE, 7, &lasts, NULL, 0);
}
static long in_nanosleep(void) { return nanosleep(&lasts, NULL); }
static long in_io_getevents(void) {
    aio_context_t context = 0;
    struct io_event event;
    if (syscall(SYS_io_setup, 1, &context)) unable("set up asynchronous I/O");
    return syscall(SYS_io_getevents, context, 1, 1, &event, &lasts);
}
static long in_io_uring_enter(void) {
    struct io_uring_params parameters = {0};
    int ring = (int)syscall(SYS_io_uring_setup, 4, &parameters);
    struct io_uring_getevents_arg argument = {.ts = (uint64_t)(uintptr_t)&lasts};
    if (ring < 0) return errno = ETIME, -1;
    return syscall(SYS_io_uring_enter, ring, 0, 1, IORING_ENTER_GETEVENTS | IORING_ENTER_EXT_ARG, &argument, sizeof argument);
}

static const struct {
    const char *name;
    long (*call)(void);
    int answer; /* 0, or the error that is natively given */
} calls[] = {
    {"recv", in_recv, EAGAIN},
    {"send", in_send, EAGAIN},
    {"accept", in_accept, EAGAIN},
    {"epoll_wait", in_epoll_wait, 0},
    {"epoll_pwait2", in_epoll_pwait2, 0},
    {"poll", in_poll, 0},
    {"sigtimedwait", in_sigtimedwait, EAGAIN},
    {"semtimedop", in_semtimedop, EAGAIN},
    {"futex", in_futex, ETIMEDOUT},
    {"nanosleep", in_nanosleep, 0},
    {"io_getevents", in_io_getevents, 0},
    {"io_uring_enter", in_io_uring_enter, ETIME},
};

int main(int argc, char **argv) {
    struct timeval timeout = {.tv_sec = LASTS};
    if (argc != 2 || socketpair(AF_UNIX, SOCK_STREAM, 0, pair)) return UNABLE;
    setsockopt(pair[0], SOL_SOCKET, SO_RCVTIMEO, &timeout, sizeof timeout);
    setsockopt(pair[0], SOL_SOCKET, SO_SNDTIMEO, &timeout, sizeof timeout);
    fill();
    for (size_t i = 0; i < sizeof calls / sizeof *calls; i++) {
        if (strcmp(calls[i].name, argv[1])) continue;
        say("blocked");
        long r = calls[i].call();
        int came = r < 0 ? errno : 0;
        say("%s: %ld %s", argv[1], r, strerror(came));
        await(1);
        return verdict(wrong() + (came != calls[i].answer));
    }
    return UNABLE;
}
