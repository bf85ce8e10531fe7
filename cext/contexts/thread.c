/* A thread's contexts. See thread.h. */
#include "thread.h"

#include "driver/platform.h"

ThreadObject *cudriver_thread_find(CoreState *state)
{
    uint64_t id = PyThreadState_GetID(PyThreadState_Get());
    PyObject *dict, *found;

    if (state->thread_seen_id == id) {
        return state->thread_seen;
    }
    dict = PyThreadState_GetDict(); /* borrowed */
    found = dict != NULL ? PyDict_GetItemWithError(dict, state->thread_key) : NULL;
    if (found == NULL) {
        PyErr_Clear();
    }
    state->thread_seen = (ThreadObject *)found;
    state->thread_seen_id = id;
    return state->thread_seen;
}

/* This thread's record, created at first use. Borrowed; NULL with an exception set. */
static ThreadObject *thread_get(CoreState *state)
{
    ThreadObject *self = cudriver_thread_find(state);
    PyObject *dict = PyThreadState_GetDict();

    if (self != NULL) {
        return self;
    }
    if (dict == NULL) {
        PyErr_SetString(PyExc_RuntimeError, "this thread has no Python state to keep contexts in");
        return NULL;
    }
    self = (ThreadObject *)state->thread_type->tp_alloc(state->thread_type, 0);
    if (self == NULL) {
        return NULL;
    }
    self->id = platform_thread_id();
    if (PyDict_SetItem(dict, state->thread_key, (PyObject *)self) < 0) {
        Py_DECREF(self);
        return NULL;
    }
    Py_DECREF(self);           /* the dictionary keeps it alive */
    state->thread_seen_id = 0; /* look it up again */
    return self;
}

/* Makes room for one more context. 0 or -1. */
static int room_for_one(ThreadObject *self)
{
    Py_ssize_t wanted = self->context_room == 0 ? 4 : self->context_room * 2;
    ContextObject **grown;

    if (self->context_count < self->context_room) {
        return 0;
    }
    grown = PyMem_Realloc(self->contexts, (size_t)wanted * sizeof *grown);
    if (grown == NULL) {
        PyErr_NoMemory();
        return -1;
    }
    self->contexts = grown;
    self->context_room = wanted;
    return 0;
}

int cudriver_thread_push(CoreState *state, ContextObject *context)
{
    ThreadObject *self = thread_get(state);

    if (self == NULL || room_for_one(self) < 0) {
        return -1;
    }
    self->contexts[self->context_count++] = (ContextObject *)Py_NewRef((PyObject *)context);
    context->pushes++;
    context->pushed_by = self->id;
    return 0;
}

/* Removes the entry at `index`; may drop the context's last reference. */
static void context_drop(ThreadObject *self, Py_ssize_t index)
{
    ContextObject *context = self->contexts[index];

    self->context_count--;
    for (Py_ssize_t i = index; i < self->context_count; i++) {
        self->contexts[i] = self->contexts[i + 1];
    }
    context->pushes--;
    Py_DECREF(context);
}

/* The index of the topmost entry with a handle, or -1. */
static Py_ssize_t context_find(const ThreadObject *self, CUcontext handle)
{
    Py_ssize_t i = self != NULL ? self->context_count - 1 : -1;

    while (i >= 0 && self->contexts[i]->handle != handle) {
        i--;
    }
    return i;
}

void cudriver_thread_pop(CoreState *state, CUcontext handle)
{
    ThreadObject *self = cudriver_thread_find(state);
    Py_ssize_t at = context_find(self, handle);

    if (at >= 0) {
        context_drop(self, at);
    }
}

ContextObject *cudriver_thread_pushed(CoreState *state, CUcontext handle)
{
    ThreadObject *self = cudriver_thread_find(state);
    Py_ssize_t at = context_find(self, handle);

    return at >= 0 ? self->contexts[at] : NULL;
}

void cudriver_thread_reconcile(CoreState *state, const CUcontext *stack, Py_ssize_t count)
{
    ThreadObject *self = cudriver_thread_find(state);

    for (Py_ssize_t i = self != NULL ? self->context_count - 1 : -1; i >= 0; i--) {
        CUcontext handle = self->contexts[i]->handle;
        Py_ssize_t noted = 0, real = 0;
        for (Py_ssize_t j = 0; j <= i; j++) {
            noted += self->contexts[j]->handle == handle;
        }
        for (Py_ssize_t j = 0; j < count; j++) {
            real += stack[j] == handle;
        }
        if (noted > real) {
            context_drop(self, i);
        }
    }
}

/* The thread has ended, and its driver stack with it; or the interpreter is ending. */
static void thread_dealloc(PyObject *object)
{
    ThreadObject *self = (ThreadObject *)object;
    PyTypeObject *type = Py_TYPE(object);
    CoreState *state = cudriver_state_of(object);

    if (state->thread_seen == self) {
        state->thread_seen = NULL;
        state->thread_seen_id = 0;
    }
    while (self->context_count > 0) {
        context_drop(self, self->context_count - 1);
    }
    PyMem_Free(self->contexts);
    type->tp_free(object);
    Py_DECREF(type);
}

static PyType_Slot thread_slots[] = {
    {Py_tp_dealloc, thread_dealloc},
    {0, NULL},
};

static PyType_Spec thread_spec = {
    .name = "cudriver._Thread",
    .basicsize = sizeof(ThreadObject),
    .flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_IMMUTABLETYPE | Py_TPFLAGS_DISALLOW_INSTANTIATION,
    .slots = thread_slots,
};

int cudriver_thread_setup(PyObject *module)
{
    CoreState *state = cudriver_state_of_module(module);

    state->thread_key = PyUnicode_FromString("cudriver");
    state->thread_type = (PyTypeObject *)PyType_FromModuleAndSpec(module, &thread_spec, NULL);
    return state->thread_key == NULL || state->thread_type == NULL ? -1 : 0;
}
