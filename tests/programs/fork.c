/* Fills 32 MiB and forks at SIGUSR1; the child writes what it finds there to a file: "reading",
   and "right" or "wrong" when it has come to the end. Usage: fork FILE */
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#define LENGTH ((size_t)32 << 20)

static volatile sig_atomic_t asked;

static void ask(int signal) { asked = signal; }

static void say(int file, const char *what) { (void)!write(file, what, strlen(what)); }

int main(int argc, char **argv) {
    if (argc != 2) return 2;
    unsigned char *memory = mmap(NULL, LENGTH, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (memory == MAP_FAILED) return 1;
    for (size_t page = 0; page < LENGTH / 4096; page++) memset(memory + page * 4096, (int)(page % 255) + 1, 4096);
    signal(SIGUSR1, ask);
    puts("filled");
    fflush(stdout);
    while (!asked) usleep(1000);
    int file = open(argv[1], O_WRONLY | O_CREAT | O_APPEND, 0600);
    pid_t child = fork();
    if (child == 0) {
        say(file, "reading\n");
        const char *found = "right\n";
        for (size_t page = 0; page < LENGTH / 4096; page++)
            if (memory[page * 4096] != page % 255 + 1) found = "wrong\n";
        say(file, found);
        _exit(0);
    }
    waitpid(child, NULL, 0);
    return 0;
}
