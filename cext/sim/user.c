/*
 * User objects: what the program frees when no graph, executable or launch needs it any more.
 *
 * An object counts its references: the program's own and those of graphs. When the last goes, its
 * destructor is due, and the next thread that leaves the monitor calls it. (The driver calls it on
 * a thread of its own.) Not modelled: retaining more references, and taking them from a graph.
 */
#include "sim.h"

#include <stdlib.h>

struct user {
    struct sim_object object;
    unsigned long long references; /* all; `owned` of them by the program */
    unsigned long long owned;
    struct sim_due *due; /* owned until the last reference goes */
};

struct sim_user_hold {
    struct sim_user_hold *next;
    struct user *user; /* holds a reference to the object */
    unsigned count;
};

static void user_drop(struct user *user, unsigned count)
{
    user->references -= count;
    if (user->references == 0) {
        user->due->next = sim.due;
        sim.due = user->due;
        sim_object_close(user);
    }
}

CUresult cuUserObjectCreate(CUuserObject *handle, void *data, CUhostFn destroy, unsigned int count,
                            unsigned int flags)
{
    CUresult result = sim_enter(CALL_cuUserObjectCreate);
    struct user *user;

    if (result != CUDA_SUCCESS) {
        return result;
    }
    if (handle == NULL || destroy == NULL || count == 0 || count > INT32_MAX ||
        flags != CU_USER_OBJECT_NO_DESTRUCTOR_SYNC) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    sim_lock();
    user = sim_object_new(KIND_USER, sizeof *user);
    if (user == NULL) {
        return sim_leave(CUDA_ERROR_OUT_OF_MEMORY);
    }
    user->due = malloc(sizeof *user->due);
    if (user->due == NULL) {
        sim_object_close(user);
        return sim_leave(CUDA_ERROR_OUT_OF_MEMORY);
    }
    *user->due = (struct sim_due){.destroy = destroy, .data = data};
    user->references = user->owned = count;
    *handle = sim_object_handle(user);
    return sim_leave(CUDA_SUCCESS);
}

CUresult cuUserObjectRelease(CUuserObject handle, unsigned int count)
{
    CUresult result = sim_enter(CALL_cuUserObjectRelease);
    struct user *user;

    if (result != CUDA_SUCCESS) {
        return result;
    }
    sim_lock();
    user = sim_object_find(KIND_USER, handle);
    if (user == NULL || count == 0 || count > user->owned) {
        return sim_leave(CUDA_ERROR_INVALID_VALUE);
    }
    user->owned -= count;
    user_drop(user, count);
    return sim_leave(CUDA_SUCCESS);
}

CUresult sim_user_hold(struct sim_user_hold **holds, CUuserObject handle, unsigned count,
                       unsigned flags)
{
    struct user *user = sim_object_find(KIND_USER, handle);
    bool move = (flags & CU_GRAPH_USER_OBJECT_MOVE) != 0;
    struct sim_user_hold *hold;

    if (user == NULL || count == 0 || count > INT32_MAX ||
        (flags & ~(unsigned)CU_GRAPH_USER_OBJECT_MOVE) != 0 || (move && count > user->owned)) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    hold = malloc(sizeof *hold);
    if (hold == NULL) {
        return CUDA_ERROR_OUT_OF_MEMORY;
    }
    *hold = (struct sim_user_hold){.next = *holds, .user = user, .count = count};
    *holds = hold;
    sim_object_hold(user);
    if (move) {
        user->owned -= count;
    } else {
        user->references += count;
    }
    return CUDA_SUCCESS;
}

void sim_user_drop_all(struct sim_user_hold **holds)
{
    while (*holds != NULL) {
        struct sim_user_hold *hold = *holds;
        *holds = hold->next;
        user_drop(hold->user, hold->count);
        sim_object_drop(hold->user);
        free(hold);
    }
}

long long sim_user_live(bool unused)
{
    long long count = 0;

    (void)unused;
    for (uint32_t i = 0; i < sim_object_slots(KIND_USER); i++) {
        count += sim_object_at(KIND_USER, i) != NULL;
    }
    return count;
}
