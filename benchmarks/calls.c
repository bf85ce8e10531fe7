/*
 * Driver calls in a loop, as a C program would make them. `benchmarks` compiles this file when it
 * starts and times it beside Python. It is no part of the package.
 */
#define _POSIX_C_SOURCE 199309L
#include <stdint.h>
#include <time.h>

#define MOST_ARGUMENTS 6

/*
 * One call. Every parameter of the functions called here is an integer or a pointer. x86-64 and
 * aarch64 pass the first six of those in a register each, and a function ignores the registers
 * that it has no parameter for, so one type fits all.
 */
struct call {
    int (*function)(uint64_t, uint64_t, uint64_t, uint64_t, uint64_t, uint64_t);
    uint64_t arguments[MOST_ARGUMENTS];
    uint64_t loads; /* bit i: argument i is the address of the value, not the value */
};

static double seconds(void)
{
    struct timespec now;

    clock_gettime(CLOCK_MONOTONIC, &now);
    return (double)now.tv_sec + (double)now.tv_nsec / 1e9;
}

static int make(const struct call *call)
{
    uint64_t words[MOST_ARGUMENTS];

    for (int i = 0; i < MOST_ARGUMENTS; i++) {
        words[i] = call->arguments[i];
        if (call->loads >> i & 1) {
            words[i] = *(const uint64_t *)(uintptr_t)words[i];
        }
    }
    return call->function(words[0], words[1], words[2], words[3], words[4], words[5]);
}

/*
 * Makes `length` calls in order, `repeats` times, and returns the seconds of one time. The `after`
 * calls that follow them in the array are made once, when the clock has stopped. A driver's error
 * ends it; the result is then minus the code.
 */
double calls_seconds(const struct call *calls, int length, int after, int repeats)
{
    double begin = seconds(), taken;
    int code = 0;

    for (int turn = 0; turn < repeats; turn++) {
        for (int i = 0; i < length && code == 0; i++) {
            code = make(&calls[i]);
        }
    }
    taken = seconds() - begin;
    for (int i = length; i < length + after && code == 0; i++) {
        code = make(&calls[i]);
    }
    return code != 0 ? -code : taken / repeats;
}
