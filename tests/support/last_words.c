#define _GNU_SOURCE
#include "support/last_words.h"
#include <dirent.h>
#include <execinfo.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/syscall.h>
#include <unistd.h>

enum { FRAMES = 40, LEFT = 5 /* seconds for saying it all */, TURN = 100000 /* microseconds for a thread's */ };

static void say_stack(int number)
{
    void *frames[FRAMES];
    (void)number;
    dprintf(STDERR_FILENO, "thread %ld:\n", (long)syscall(SYS_gettid));
    backtrace_symbols_fd(frames, backtrace(frames, FRAMES), STDERR_FILENO);
}

/* More than a handler may do. What it could hang in is ended by the alarm. */
static void say_all(int number)
{
    signal(SIGALRM, SIG_DFL);
    signal(number, SIG_DFL);
    alarm(LEFT);
    dprintf(STDERR_FILENO, number == SIGALRM ? "it has not ended in time\n" : "signal %d\n", number);
    say_stack(number);
    DIR *threads = opendir("/proc/self/task");
    for (struct dirent *e; threads && (e = readdir(threads));)
        if (atol(e->d_name) > 0 && atol(e->d_name) != syscall(SYS_gettid)) {
            syscall(SYS_tgkill, getpid(), atol(e->d_name), SIGUSR2);
            usleep(TURN);
        }
    syscall(SYS_tgkill, getpid(), syscall(SYS_gettid), number); /* comes when this returns */
}

void last_words(unsigned seconds)
{
    static const int ends[] = {SIGSEGV, SIGBUS, SIGILL, SIGFPE, SIGABRT, SIGALRM};
    void *frame;
    backtrace(&frame, 1); /* opens what it needs now, not in a handler */
    signal(SIGUSR2, say_stack);
    for (size_t i = 0; i < sizeof ends / sizeof *ends; i++)
        signal(ends[i], say_all);
    alarm(seconds);
}
