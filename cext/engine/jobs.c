/* Jobs, routes and worker threads. See private.h. */
#define _GNU_SOURCE
#include "private.h"

#include <stdlib.h>
#include <time.h>

#include "driver/driver.h"
#include "driver/platform.h"

#define LANES_MOST 8 /* more threads for one dense copy do not move it faster */
#define LINGER_NS 200000

/* Held for moments: worth a short wait before a thread sleeps for it. */
#ifdef PTHREAD_ADAPTIVE_MUTEX_INITIALIZER_NP
#define STAGING_MUTEX PTHREAD_ADAPTIVE_MUTEX_INITIALIZER_NP
#else
#define STAGING_MUTEX PTHREAD_MUTEX_INITIALIZER
#endif

struct staging_engine staging = {
    .lock = STAGING_MUTEX,
};

/* ---- the lock and its conditions ---- */

void staging_condition_init(pthread_cond_t *condition)
{
    pthread_condattr_t attributes;

    pthread_condattr_init(&attributes);
    pthread_condattr_setclock(&attributes, CLOCK_MONOTONIC);
    pthread_cond_init(condition, &attributes);
    pthread_condattr_destroy(&attributes);
}

/* Locked. */
static int calls_take(void)
{
    int calls = staging.ring_calls;

    staging.ring_calls = 0;
    return calls;
}

static void calls_send(int calls)
{
    for (; calls > 0; calls--) {
        sem_post(&staging.ring_sleep);
    }
}

void staging_condition_wait(pthread_cond_t *condition, unsigned long long nanoseconds)
{
    unsigned long long until = platform_nanoseconds() + nanoseconds;
    struct timespec time = {.tv_sec = (time_t)(until / 1000000000ull),
                            .tv_nsec = (long)(until % 1000000000ull)};

    calls_send(calls_take());
    pthread_cond_timedwait(condition, &staging.lock, &time);
}

/* Threads for one direction: half of a large machine, nearly all of a small one. */
static int lanes_default(int processors)
{
    return processors <= 4 ? processors : 4 + (processors - 4) / 3;
}

static pthread_once_t wish_once = PTHREAD_ONCE_INIT;
static int wish;

static void wish_read(void)
{
    const char *text = getenv(CUDRIVER_STAGING_VARIABLE);
    char *end;
    long count;

    if (text == NULL || text[0] == '\0') {
        return;
    }
    count = strtol(text, &end, 10); /* LONG_MAX past its range */
    wish = *end == '\0' && count >= 1 && count <= CUDRIVER_STAGING_THREADS_MOST ? (int)count : -1;
}

int cudriver_staging_wish(void)
{
    pthread_once(&wish_once, wish_read);
    return wish;
}

void staging_settings_default(struct cudriver_staging_settings *settings)
{
    int given = cudriver_staging_wish();
    int processors = platform_processor_count();
    int threads = processors <= 4 ? processors : processors > 66 ? 64 : processors - 2;
    int lanes = lanes_default(processors);

    *settings = (struct cudriver_staging_settings){
        .crossover_up = (size_t)3 << 19,
        .crossover_down = (size_t)3 << 19,
        .streaming = (size_t)64 << 20,
        .slot = (size_t)16 << 20,
        .slot_up = (size_t)5 << 20,
        .slots = 4,
        .medium = 4,
        .linger = processors > 4 ? LINGER_NS : 0,
    };
    settings->threads = threads;
    settings->lanes = lanes > LANES_MOST ? LANES_MOST : lanes;
    if (given > 0) {
        staging_settings_threads(settings, given);
    }
}

void staging_settings_threads(struct cudriver_staging_settings *settings, int threads)
{
    settings->threads =
        threads > CUDRIVER_STAGING_THREADS_MOST ? CUDRIVER_STAGING_THREADS_MOST : threads;
    settings->lanes = settings->threads < LANES_MOST ? settings->threads : LANES_MOST;
}

/* In a forked child no thread holds the lock any more, whoever held it. */
static void lock_renew(void)
{
    const pthread_mutex_t fresh = STAGING_MUTEX;

    staging.lock = fresh;
}

void staging_lock(void)
{
    pthread_mutex_lock(&staging.lock);
    if (!staging.ready) {
        pthread_atfork(NULL, NULL, lock_renew);
        staging_condition_init(&staging.work);
        sem_init(&staging.ring_sleep, 0, 0);
        staging_condition_init(&staging.quiet);
        staging_settings_default(&staging.settings);
        staging.ready = true;
    }
}

/* Waking a thread takes microseconds: not while others wait for the lock. */
void staging_unlock(void)
{
    int calls = calls_take();

    pthread_mutex_unlock(&staging.lock);
    calls_send(calls);
}

/* ---- jobs ---- */

struct staging_job *staging_job_new(struct staging_route *route, const struct staging_plan *plan,
                                    CUdeviceptr device, char *host, size_t begin, size_t end)
{
    struct staging_job *job = calloc(1, sizeof *job);

    if (job == NULL) {
        return NULL;
    }
    atomic_init(&job->references, 1);
    job->route = route;
    job->up = plan->up;
    job->host_dense = plan->host_dense;
    job->device_dense = plan->device_dense;
    job->streaming = plan->streaming;
    job->walk = plan->walk;
    job->host = host;
    job->device = device;
    job->begin = job->taken = begin;
    job->end = end;
    job->chunk = plan->chunk;
    if (plan->device_dense) {
        job->device += (CUdeviceptr)(plan->up ? plan->walk.dst_offset : plan->walk.src_offset);
    } else {
        staging_rows_make(&plan->walk, plan->up, &job->rows);
        if (job->rows.itemsize <= job->chunk) { /* whole rows */
            job->chunk -= job->chunk % job->rows.itemsize;
        }
    }
    staging_condition_init(&job->done);
    staging_lock();
    route->place->jobs++;
    staging.jobs++;
    staging_unlock();
    return job;
}

void staging_job_drop(struct staging_job *job)
{
    if (atomic_fetch_sub_explicit(&job->references, 1, memory_order_acq_rel) == 1) {
        pthread_cond_destroy(&job->done);
        free(job);
    }
}

static void ring_remove(struct staging_job *job)
{
    struct staging_route *route = job->route;
    struct staging_job *before = route->last;

    while (before->next != job) {
        before = before->next;
    }
    if (before == job) {
        route->last = NULL;
    } else {
        before->next = job->next;
        if (route->last == job) {
            route->last = before;
        }
    }
    job->queued = false;
}

/* Locked: nothing of it is left to do. */
static void job_end(struct staging_job *job)
{
    job->over = true;
    job->route->place->jobs--;
    staging.jobs--;
    staging.copies++;
    if (job->result == CUDA_SUCCESS) {
        staging.bytes += job->end - job->begin;
    }
    pthread_cond_broadcast(&job->done);
    pthread_cond_broadcast(&staging.quiet);
}

void staging_job_stop(struct staging_job *job, CUresult result)
{
    if (job->over) {
        return;
    }
    if (job->result == CUDA_SUCCESS) {
        job->result = result;
    }
    job->taken = job->end;
    if (job->queued) {
        ring_remove(job);
    }
    if (job->in_flight == 0) {
        job_end(job);
    }
}

/* A chunk that route_take gave out is done with. Drops the reference that came with it. */
void staging_job_credit(struct staging_job *job, CUresult result)
{
    staging_lock();
    job->in_flight--;
    if (result != CUDA_SUCCESS) {
        staging_job_stop(job, result);
    } else if (job->in_flight == 0 && job->taken == job->end) {
        job_end(job);
    }
    staging_unlock();
    staging_job_drop(job);
}

/* ---- threads and routes ---- */

static bool route_has_room(const struct staging_route *route)
{
    return route->last != NULL && route->active < route->limit;
}

/* The route that has work and the fewest threads on it. */
static struct staging_route *route_choose(void)
{
    struct staging_route *best = NULL;

    for (struct staging_place *place = staging.places; place != NULL; place = place->next) {
        for (int i = 0; i < 2; i++) {
            struct staging_route *route = &place->routes[i];
            if (route_has_room(route) && (best == NULL || route->active < best->active)) {
                best = route;
            }
        }
    }
    return best;
}

/* Whether a worker had better go to a route with fewer threads. */
static bool route_should_leave(const struct staging_route *route)
{
    const struct staging_route *other;

    if (staging.idle > 0) {
        return false;
    }
    other = route_choose();
    return other != NULL && other->active + 1 < route->active;
}

/* Locked: the next chunk, of each job in turn. A reference to the job comes with it. */
static bool route_take(struct staging_route *route, const struct staging_job *own,
                       struct staging_slot *slot)
{
    struct staging_job *job;

    if (route->last == NULL || (own != NULL && own->taken == own->end) ||
        (own == NULL && route_should_leave(route))) {
        return false;
    }
    job = route->last->next;
    slot->begin = job->taken;
    slot->end = job->end - job->taken > job->chunk ? job->taken + job->chunk : job->end;
    job->taken = slot->end;
    job->in_flight++;
    job->begun = true;
    atomic_fetch_add_explicit(&job->references, 1, memory_order_relaxed);
    if (job->taken == job->end) {
        ring_remove(job);
    } else {
        route->last = job;
    }
    slot->job = job;
    return true;
}

/* A lane of the route, with slots for the job whose turn it is. Where none can be had the others go
 * on without it; where there are no others that job fails. */
static struct staging_lane *route_lane(struct staging_route *route)
{
    struct staging_lane *lane;
    CUresult result;
    size_t bytes;

    staging_lock();
    if (route->last == NULL) {
        staging_unlock();
        return NULL;
    }
    bytes = route->last->next->chunk;
    lane = route->idle;
    if (lane != NULL) {
        route->idle = lane->next;
        lane->next = NULL;
    }
    staging_unlock();

    if (lane == NULL) {
        result = staging_lane_open(bytes, &lane);
    } else {
        result = staging_lane_fit(lane, bytes);
        if (result != CUDA_SUCCESS) {
            staging_lane_close(lane);
        }
    }
    if (result == CUDA_SUCCESS) {
        return lane;
    }
    staging_lock();
    if (route->active > 1) {
        route->limit = route->active - 1;
    } else if (route->last != NULL) {
        staging_job_stop(route->last->next, result);
    }
    staging_unlock();
    return NULL;
}

/* Moves chunks until there are none, or (own) none of one's own. False: interrupted. */
static bool route_serve(struct staging_route *route, struct staging_job *own,
                        bool (*interrupted)(void *), void *data)
{
    struct staging_lane *lane = route_lane(route);
    unsigned long long asked = platform_nanoseconds();
    bool go_on = true;

    if (lane == NULL) {
        return true;
    }
    while (go_on && !lane->broken) {
        struct staging_slot chunk = {.job = NULL};
        struct staging_slot *slot = &lane->slots[lane->turn];
        staging_lock();
        bool taken = route_take(route, own, &chunk);
        staging_unlock();
        if (!taken) {
            break;
        }
        if (chunk.job->chunk > lane->slot_bytes) {
            staging_lane_drain(lane);
            CUresult result =
                lane->broken ? CUDA_ERROR_UNKNOWN : staging_lane_fit(lane, chunk.job->chunk);
            slot = &lane->slots[lane->turn];
            if (result != CUDA_SUCCESS) {
                lane->broken = true;
                staging_job_credit(chunk.job, result);
                break;
            }
        }
        staging_slot_retire(lane, slot);
        slot->job = chunk.job;
        slot->begin = chunk.begin;
        slot->end = chunk.end;
        staging_slot_begin(lane, slot);
        lane->turn = (lane->turn + 1) % lane->depth;
        if (interrupted != NULL && platform_nanoseconds() - asked > STAGING_POLL_NS) {
            go_on = !interrupted(data);
            asked = platform_nanoseconds();
        }
    }
    staging_lane_drain(lane);
    if (lane->broken) {
        staging_lane_close(lane);
    } else {
        staging_lock();
        lane->next = route->idle;
        route->idle = lane;
        staging_unlock();
    }
    return go_on;
}

static void *worker_main(void *unused);

/* Locked. Wakes or starts up to `wanted` workers. */
static void workers_wake(int wanted)
{
    for (int i = 0; i < wanted; i++) {
        if (i < staging.idle) {
            pthread_cond_signal(&staging.work);
        } else if (staging.threads >= staging.settings.threads ||
                   !platform_thread_start(worker_main, NULL)) {
            break;
        } else {
            staging.threads++;
        }
    }
}

/* Locked: a thread is through with a route. What it leaves behind must not wait for the next job.
 */
static void route_leave(struct staging_route *route)
{
    route->active--;
    if (route_has_room(route)) {
        workers_wake(1);
    }
    pthread_cond_broadcast(&staging.quiet);
}

bool staging_job_help(struct staging_job *job, bool (*interrupted)(void *), void *data)
{
    struct staging_route *route = job->route;
    bool go_on = true;

    staging_lock();
    if (job->taken < job->end && route_has_room(route)) {
        route->active++;
        staging_unlock();
        go_on = route_serve(route, job, interrupted, data);
        staging_lock();
        route_leave(route);
    }
    staging_unlock();
    return go_on;
}

static void route_work(struct staging_route *route)
{
    CUcontext popped;
    CUresult result = cuda.cuCtxPushCurrent_v2(route->place->context);

    if (result == CUDA_SUCCESS) {
        route_serve(route, NULL, NULL, NULL);
        cuda.cuCtxPopCurrent_v2(&popped);
        return;
    }
    staging_lock();
    if (route->last != NULL) {
        staging_job_stop(route->last->next, result);
    }
    staging_unlock();
}

static void *worker_main(void *unused)
{
    (void)unused;
    platform_thread_name("cudriver-copy");
    staging_lock();
    for (;;) {
        struct staging_route *route = route_choose();
        if (route != NULL) {
            route->active++;
            staging_unlock();
            route_work(route);
            staging_lock();
            route_leave(route);
        } else if (staging.stopping) {
            break;
        } else {
            staging.idle++;
            pthread_cond_wait(&staging.work, &staging.lock);
            staging.idle--;
        }
    }
    staging.threads--;
    pthread_cond_broadcast(&staging.quiet);
    staging_unlock();
    return NULL;
}

void staging_job_submit(struct staging_job *job)
{
    struct staging_route *route = job->route;
    int wanted = staging_threads_wanted(job->end - job->begin,
                                        staging_runs_are_long(&job->walk, job->host_dense),
                                        &staging.settings) -
                 1;
    int room = staging.settings.lanes - route->active - 1; /* the caller works on it, too */
    size_t others = (job->end - job->taken - 1) / job->chunk;

    route->limit = staging.settings.lanes;
    if (route->last == NULL) {
        job->next = job;
    } else {
        job->next = route->last->next;
        route->last->next = job;
    }
    route->last = job;
    job->queued = true;
    wanted = wanted < room ? wanted : room;
    workers_wake((size_t)(wanted > 0 ? wanted : 0) < others ? wanted : (int)others);
}
