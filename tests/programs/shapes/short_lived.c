/* Many children that live for a moment only, some at a time: `fork`, `vfork` or `spawn`, and how
   many, which is done twice. Each ends with a status of its own, and whoever is waited for is a
   child that was started and has not been waited for. */
#include "cold.h"
#include <spawn.h>

enum { AT_A_TIME = 6, MOST_STATUS = 100 };
extern char **environ;

static pid_t begin(const char *how, int status) {
    char number[16], *arguments[] = {"/proc/self/exe", "ends", number, NULL};
    pid_t pid = -1;
    snprintf(number, sizeof number, "%d", status);
    if (*how == 's') return posix_spawn(&pid, *arguments, NULL, NULL, arguments, environ) ? -1 : pid;
    if (*how == 'v') {
        pid = vfork();
        if (pid == 0) {
            execve(*arguments, arguments, environ);
            _exit(UNABLE);
        }
        return pid;
    }
    pid = fork();
    if (pid == 0) {
        /* A page of its parent's, which may be out. */
        size_t at = (size_t)status * 97 % (filler_len / PAGE) * PAGE;
        _exit(*(volatile size_t *)(filler + at) == at / PAGE + 1 ? status : UNABLE + MOST_STATUS);
    }
    return pid;
}

/* As many children as that. False: a stranger was waited for. */
static int go_through(const char *how, int all, size_t *bad) {
    int begun = 0, ended = 0, status, expected[AT_A_TIME];
    pid_t running[AT_A_TIME] = {0};
    double started = now();
    while (ended < all) {
        for (int i = 0; i < AT_A_TIME && begun < all; i++) {
            if (running[i]) continue;
            expected[i] = begun++ % MOST_STATUS;
            running[i] = begin(how, expected[i]);
            if (running[i] < 0) unable("start a child");
        }
        pid_t pid = waitpid(-1, &status, __WALL);
        int i = 0;
        while (i < AT_A_TIME && running[i] != pid) i++;
        if (pid <= 0 || i == AT_A_TIME) {
            say("waited for %d, which is no child that was started: %s", pid, pid < 0 ? strerror(errno) : "");
            return 0;
        }
        if (!WIFEXITED(status) || WEXITSTATUS(status) != expected[i]) {
            say("child %d, of %d, ended with %#x instead of %d", pid, ended, status, expected[i]);
            ++*bad;
        }
        running[i] = 0;
        ended++;
    }
    say("%d children by %s: %.0f a second", all, how, all / (now() - started));
    pid_t rest = waitpid(-1, &status, __WALL | WNOHANG);
    if (rest < 0 && errno == ECHILD) return 1;
    say("there is another child: %d", rest);
    return 0;
}

int main(int argc, char **argv) {
    if (argc > 2 && !strcmp(argv[1], "ends")) return atoi(argv[2]);
    const char *how = argc > 1 ? argv[1] : "fork";
    int all = argc > 2 ? atoi(argv[2]) : 1000;
    size_t bad = 0;
    fill();
    say("ready");
    await(1);
    until_paged();
    if (!go_through(how, all, &bad)) return verdict(bad + 1);
    say("once");
    await(2);
    if (!go_through(how, all, &bad)) return verdict(bad + 1);
    say("twice");
    await(3);
    return verdict(bad + wrong());
}
