/* cudriver._core: the module, what it is made of, its end; the functions about the driver itself.
 */
#include "arrays/dlpack.h"
#include "driver/driver.h"
#include "driver/platform.h"
#include "python/error.h"
#include "contexts/event.h"
#include "pinned/host_memory.h"
#include "hostmem/hostmem.h"
#include "ladder/ladder.h"
#include "python/call.h"
#include "contexts/work.h"
#include "docstrings.h"

static PyObject *module_init(PyObject *Py_UNUSED(module), PyObject *Py_UNUSED(ignored))
{
    CUDRIVER_LOCK();
    return cudriver_none(cudriver_require());
}

static PyObject *module_driver(PyObject *Py_UNUSED(module), PyObject *Py_UNUSED(ignored))
{
    CUDRIVER_LOCK();
    if (cudriver_require_loaded() < 0) {
        return NULL;
    }
    return Py_BuildValue("(NiN)", PyUnicode_DecodeFSDefault(cudriver_driver.path),
                         cudriver_driver.version, PyBool_FromLong(cudriver_driver.simulated));
}

static PyObject *module_drop_driver(PyObject *Py_UNUSED(module), PyObject *Py_UNUSED(ignored))
{
    CUDRIVER_LOCK();
    return PyBool_FromLong(cudriver_driver_drop());
}

static PyObject *module_live(PyObject *module, PyObject *Py_UNUSED(ignored))
{
    CUDRIVER_LOCK();
    CoreState *state = cudriver_state_of_module(module);

    cudriver_works_reap(state, NULL);
    return cudriver_live_list(state);
}

static PyObject *module_trace(PyObject *module, PyObject *enabled)
{
    CUDRIVER_LOCK();
    cudriver_state_of_module(module)->live.tracing = enabled == Py_True;
    Py_RETURN_NONE;
}

/* Called by atexit: ends calls of other threads, and waits for work in flight before its memory
 * goes. */
static PyObject *module_shutdown(PyObject *module, PyObject *Py_UNUSED(ignored))
{
    CUDRIVER_LOCK();
    CoreState *state = cudriver_state_of_module(module);

    if (cudriver_driver_ready) {
        cudriver_context_stop_others(state);
        cudriver_works_drain(state);
        if (state->live.reporting) {
            PyGC_Collect(); /* what only a cycle keeps alive is not a leak */
            if (cudriver_do(CALL_live_report) < 0) {
                PyErr_WriteUnraisable(NULL);
            }
        }
        Py_BEGIN_ALLOW_THREADS
        cudriver_staging_shutdown(2000);
        Py_END_ALLOW_THREADS
    }
    state->exiting = true;
    Py_RETURN_NONE;
}

static PyMethodDef methods[] = {
    {"init", module_init, METH_NOARGS, DOC_init},
    {"_driver", module_driver, METH_NOARGS, DOC__driver},
    {"_drop_driver", module_drop_driver, METH_NOARGS, DOC__drop_driver},
    {"_live", module_live, METH_NOARGS, DOC__live},
    {"_trace", module_trace, METH_O, DOC__trace},
    {"_shutdown", module_shutdown, METH_NOARGS, NULL},
    {"_copy_many", cudriver_copy_many, METH_VARARGS, DOC__copy_many},
    {"_copy_rows", cudriver_copy_rows, METH_VARARGS, DOC__copy_rows},
    {"_read_files", cudriver_read_files, METH_VARARGS, DOC__read_files},
    {NULL},
};

/* Reads the environment, and registers _shutdown with atexit. 0 or -1. */
static int environment_read(PyObject *module)
{
    PyObject *read = cudriver_call(CALL_loading_begin, module);
    int processors, huge, coherent, reporting, failed = -1;

    if (read != NULL && PyArg_ParseTuple(read, "iipp", &processors, &huge, &coherent, &reporting)) {
        platform_processors_set(processors);
        cudriver_hostmem_set_huge(huge);
        cudriver_staging_set_coherent(coherent != 0);
        cudriver_state_of_module(module)->live.reporting = reporting != 0;
        failed = cudriver_do(CALL_loading_set_threads, module);
    }
    Py_XDECREF(read);
    return failed;
}

static const struct {
    PyType_Spec *spec;
    size_t kept; /* where the state owns the type */
} types[] = {
    {&cudriver_context_spec, offsetof(CoreState, context_type)},
    {&cudriver_stream_spec, offsetof(CoreState, stream_type)},
    {&cudriver_event_spec, offsetof(CoreState, event_type)},
    {&cudriver_transfer_spec, offsetof(CoreState, transfer_type)},
    {&cudriver_device_array_spec, offsetof(CoreState, device_array_type)},
    {&cudriver_host_memory_spec, offsetof(CoreState, host_memory_type)},
    {&cudriver_page_lock_spec, offsetof(CoreState, page_lock_type)},
};

static PyMethodDef *const functions[] = {
    cudriver_query_functions,         cudriver_context_functions,
    cudriver_context_stack_functions, cudriver_copy_functions,
    cudriver_ladder_functions,        cudriver_device_make_functions,
    cudriver_dlpack_from_functions,   cudriver_dlpack_export_functions,
    cudriver_host_functions,          cudriver_pinned_numpy_functions,
};

static int module_exec(PyObject *module)
{
    CoreState *state = cudriver_state_of_module(module);

    /* The driver and page-locked memory belong to the process: the end of a second interpreter
     * would stop the first one's copies. */
    if (PyInterpreterState_Get() != PyInterpreterState_Main()) {
        PyErr_SetString(PyExc_ImportError,
                        "cudriver._core works in the process's main interpreter only, and this is "
                        "a subinterpreter: the CUDA driver is one for the whole process");
        return -1;
    }
    for (size_t i = 0; i < sizeof types / sizeof types[0]; i++) {
        PyTypeObject **kept = (PyTypeObject **)((char *)state + types[i].kept);
        *kept = (PyTypeObject *)PyType_FromModuleAndSpec(module, types[i].spec, NULL);
        if (*kept == NULL || PyModule_AddType(module, *kept) < 0) {
            return -1;
        }
        (*kept)->tp_getattro = cudriver_getattro;
    }
    for (size_t i = 0; i < sizeof functions / sizeof functions[0]; i++) {
        if (PyModule_AddFunctions(module, functions[i]) < 0) {
            return -1;
        }
    }
    state->stream_scope = PyContextVar_New("cudriver.stream", NULL);
    state->dlpack_words = cudriver_dlpack_words();
    state->dlpack_types = PyDict_New();
    return state->dlpack_words == NULL || state->dlpack_types == NULL ||
                   PyModule_AddObjectRef(module, "_stream_scope", state->stream_scope) < 0 ||
                   cudriver_dlpack_exchange_setup(state) < 0
               ? -1
               : environment_read(module);
}

static int module_traverse(PyObject *module, visitproc visit, void *arg)
{
    PyObject **owned = (PyObject **)cudriver_state_of_module(module);

    for (size_t i = 0; i < CUDRIVER_STATE_OWNED; i++) {
        Py_VISIT(owned[i]);
    }
    return 0;
}

static int module_clear(PyObject *module)
{
    CUDRIVER_LOCK();
    CoreState *state = cudriver_state_of_module(module);
    PyObject **owned = (PyObject **)state;

    cudriver_contexts_unkeep(state, true); /* while their type still exists */
    for (size_t i = 0; i < CUDRIVER_STATE_OWNED; i++) {
        Py_CLEAR(owned[i]);
    }
    return 0;
}

static void module_free(void *module)
{
    module_clear((PyObject *)module);
}

static PyModuleDef_Slot slots[] = {
    {Py_mod_exec, module_exec},
#ifdef Py_mod_multiple_interpreters
    /* Not so: but then module_exec refuses all of them, and says why. */
    {Py_mod_multiple_interpreters, Py_MOD_PER_INTERPRETER_GIL_SUPPORTED},
#endif
#ifdef CUDRIVER_FREE_THREADED
    {Py_mod_gil, Py_MOD_GIL_NOT_USED},
#endif
    {0, NULL},
};

struct PyModuleDef cudriver_core_module = {
    PyModuleDef_HEAD_INIT,         .m_name = "cudriver._core", .m_doc = DOC_module,
    .m_size = sizeof(CoreState),   .m_methods = methods,       .m_slots = slots,
    .m_traverse = module_traverse, .m_clear = module_clear,    .m_free = module_free,
};

PyMODINIT_FUNC PyInit__core(void)
{
    return PyModuleDef_Init(&cudriver_core_module);
}
