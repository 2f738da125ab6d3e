/* timers SECONDS: nanosleep to an absolute time, a timerfd behind epoll, an interval timer, a POSIX timer, signalfd, eventfd, poll
   with a timeout: none may end early, none may be forgotten, the monotonic clock never goes back. Prints how often each came. */
#define _GNU_SOURCE
#include <errno.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/signalfd.h>
#include <sys/time.h>
#include <sys/timerfd.h>
#include <time.h>
#include <unistd.h>
static int seconds;
static long slept, fired, ticked, real, polled, backwards;

static int64_t now(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return t.tv_sec * 1000000000ll + t.tv_nsec;
}

static void *sleeper(void *arg) { /* 10 a second, each to an absolute time; too early is counted as an error */
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    for (int i = 0; i < seconds * 10; i++) {
        t.tv_nsec += 100000000;
        if (t.tv_nsec >= 1000000000) { t.tv_nsec -= 1000000000; t.tv_sec++; }
        while (clock_nanosleep(CLOCK_MONOTONIC, TIMER_ABSTIME, &t, NULL) == EINTR) {}
        if (now() < t.tv_sec * 1000000000ll + t.tv_nsec) backwards++;
        slept++;
    }
    return arg;
}

static void *poller(void *arg) {
    int event = eventfd(0, 0);
    struct pollfd p = {event, POLLIN, 0};
    for (int i = 0; i < seconds * 4; i++) {
        int64_t before = now();
        int left = 250;
        while (left > 0 && poll(&p, 1, left) < 0 && errno == EINTR) left = 250 - (now() - before) / 1000000;
        polled++;
        if (now() - before < 249000000) backwards++;
    }
    return arg;
}

int main(int argc, char **argv) {
    seconds = atoi(argv[1]);
    sigset_t set;
    sigemptyset(&set);
    sigaddset(&set, SIGALRM);
    sigaddset(&set, SIGUSR1);
    sigprocmask(SIG_BLOCK, &set, NULL);
    int signals = signalfd(-1, &set, SFD_NONBLOCK), timer = timerfd_create(CLOCK_MONOTONIC, TFD_NONBLOCK), all = epoll_create1(0);
    struct itimerspec often = {{0, 200000000}, {0, 200000000}};
    timerfd_settime(timer, 0, &often, NULL);
    struct itimerval each = {{0, 500000}, {0, 500000}};
    setitimer(ITIMER_REAL, &each, NULL);
    struct sigevent how = {.sigev_notify = SIGEV_SIGNAL, .sigev_signo = SIGUSR1};
    timer_t posix;
    timer_create(CLOCK_MONOTONIC, &how, &posix);
    struct itimerspec slow = {{1, 0}, {1, 0}};
    timer_settime(posix, 0, &slow, NULL);
    struct epoll_event a = {.events = EPOLLIN, .data.fd = timer}, b = {.events = EPOLLIN, .data.fd = signals};
    epoll_ctl(all, EPOLL_CTL_ADD, timer, &a);
    epoll_ctl(all, EPOLL_CTL_ADD, signals, &b);
    pthread_t one, two;
    pthread_create(&one, NULL, sleeper, NULL);
    pthread_create(&two, NULL, poller, NULL);
    int64_t last = now();
    while (fired < seconds * 5 || real < seconds || ticked < seconds) {
        struct epoll_event got;
        if (epoll_wait(all, &got, 1, 3000) == 0) { printf("a timer was forgotten: %ld %ld %ld\n", fired, real, ticked); return 1; }
        if (now() < last) backwards++;
        last = now();
        uint64_t times;
        struct signalfd_siginfo info;
        if (read(timer, &times, 8) == 8) fired += times;
        while (read(signals, &info, sizeof info) == sizeof info) {
            if (info.ssi_signo == SIGALRM) real++; else ticked += 1 + info.ssi_overrun;
        }
    }
    pthread_join(one, NULL);
    pthread_join(two, NULL);
    printf("slept %ld polled %ld backwards %ld\n", slept, polled, backwards);
    printf("timerfd %s itimer %s posix %s\n", fired >= seconds * 5 ? "ok" : "-", real >= seconds ? "ok" : "-", ticked >= seconds ? "ok" : "-");
    return argc != 2;
}
