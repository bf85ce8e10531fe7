/*
 * Driver calls in a loop, as a C program would make them. `benchmarks` compiles this file when it
 * starts and times it beside Python. It is not a part of the package.
 */
#define _POSIX_C_SOURCE 200112L
#include <pthread.h>
#include <stdint.h>
#include <time.h>

/*
 * One call, and where its arguments are read when it is made. Every parameter of the functions
 * called here is an integer or a pointer. x86-64 and aarch64 pass the first six of those in a
 * register each, and a function ignores the registers that it has no parameter for, so one type
 * fits all.
 */
struct call {
    int (*function)(uint64_t, uint64_t, uint64_t, uint64_t, uint64_t, uint64_t);
    const uint64_t *arguments[6];
};

static double seconds(void)
{
    struct timespec now;

    clock_gettime(CLOCK_MONOTONIC, &now);
    return (double)now.tv_sec + (double)now.tv_nsec / 1e9;
}

static int make(const struct call *call)
{
    const uint64_t *const *at = call->arguments;

    return call->function(*at[0], *at[1], *at[2], *at[3], *at[4], *at[5]);
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

/* One of several threads. It makes `first` once before the clock starts. */
struct member {
    const struct call *first, *calls;
    int length, repeats, code;
    pthread_barrier_t *gate;
    double begin, end;
};

static void *member_run(void *given)
{
    struct member *member = given;

    member->code = make(member->first);
    pthread_barrier_wait(member->gate);
    member->begin = seconds();
    for (int turn = 0; turn < member->repeats; turn++) {
        for (int i = 0; i < member->length && member->code == 0; i++) {
            member->code = make(&member->calls[i]);
        }
    }
    member->end = seconds();
    return NULL;
}

/*
 * As calls_seconds, in `count` threads at once, at most 64. Thread i makes `length` + 1 calls from
 * calls[i] on, the first one only once. Returns the seconds from the first thread's start to the
 * last one's end.
 */
double threads_seconds(const struct call *const *calls, int count, int length, int repeats)
{
    struct member members[64];
    pthread_t threads[64];
    pthread_barrier_t gate;
    double begin = 0, end = 0;
    int code = 0;

    pthread_barrier_init(&gate, NULL, (unsigned)count);
    for (int i = 0; i < count; i++) {
        members[i] = (struct member){calls[i], calls[i] + 1, length, repeats, 0, &gate, 0, 0};
        if (pthread_create(&threads[i], NULL, member_run, &members[i]) != 0) {
            return -999; /* those that have begun wait for ever */
        }
    }
    for (int i = 0; i < count; i++) {
        pthread_join(threads[i], NULL);
        begin = i == 0 || members[i].begin < begin ? members[i].begin : begin;
        end = members[i].end > end ? members[i].end : end;
        code = members[i].code != 0 ? members[i].code : code;
    }
    pthread_barrier_destroy(&gate);
    return code != 0 ? -code : end - begin;
}
