/* explain_copy: the plan of a copy as a named tuple. */
#include "copy.h"

#include "engine/engine.h"
#include "python/types.h"

static PyStructSequence_Field plan_fields[] = {
    {"path",
     "'direct', '2D', '3D', 'staged', 'kernel', 'temporary', 'peer', 'bounced', 'host', 'same' or "
     "'empty'"},
    {"why", "the reason, in a sentence"},
    {"nbytes", "bytes to be moved"},
    {"page_locked", "whether the host side is page-locked"},
    {"staging",
     "how a staged copy travels: 'staged', 'staged, packed', 'staged, rows', 'staged, permuted', "
     "'one slot' or 'driver'; else None"},
    {"chunk", "bytes of one page-locked slot of a staged copy; else 0"},
    {"threads", "threads that may work on a staged copy; else 0"},
    {"crossover", "bytes from which on a dense pageable copy is staged; 0 where not staged"},
    {NULL, NULL},
};

static PyStructSequence_Desc plan_desc = {
    .name = "cudriver.CopyPlan",
    .doc = "Which path a copy takes, and why; see explain_copy().",
    .fields = plan_fields,
    .n_in_sequence = 8,
};

PyDoc_STRVAR(explain_copy_doc,
             "explain_copy(dst, src, /)\n"
             "--\n"
             "\n"
             "Return which path a copy would take, and why. Copies nothing.\n"
             "\n"
             "Parameters\n"
             "----------\n"
             "dst : array\n"
             "    As for `copy`.\n"
             "src : array\n"
             "    As for `copy`.\n"
             "\n"
             "Returns\n"
             "-------\n"
             "CopyPlan\n"
             "    A named tuple, with the path's name and the reason first.\n"
             "\n"
             "Raises\n"
             "------\n"
             "TypeError, ValueError\n"
             "    An end is not an array, or the two do not fit.\n"
             "\n"
             "Notes\n"
             "-----\n"
             "The paths ``'kernel'`` and ``'temporary'`` become ``'bounced'`` if the driver\n"
             "refuses the kernel or has no memory left.\n"
             "\n"
             "Examples\n"
             "--------\n"
             ">>> there = cu.device_empty(1000)\n"
             ">>> cu.explain_copy(there, cu.pinned_zeros(1000)).path\n"
             "'direct'");

static PyObject *module_explain_copy(PyObject *module, PyObject *const *args, Py_ssize_t count)
{
    CoreState *state = cudriver_state_of_module(module);
    struct cudriver_copy_plan plan;
    const struct staging_plan *staged = &plan.staged;
    bool is_staged;

    if (count != 2) {
        PyErr_SetString(PyExc_TypeError, "explain_copy(dst, src) takes two arguments");
        return NULL;
    }
    if (cudriver_copy_explain(state, args[0], args[1], &plan) < 0) {
        return NULL;
    }
    is_staged = plan.kind == CUDRIVER_COPY_STAGED;
    return cudriver_tuple_new(
        state->copy_plan_type, 8, PyUnicode_FromString(cudriver_copy_kind_name(plan.kind)),
        PyUnicode_FromString(plan.why), PyLong_FromSize_t(plan.bytes),
        PyBool_FromLong(plan.page_locked),
        is_staged ? PyUnicode_FromString(cudriver_staging_path_name(staged->path))
                  : Py_NewRef(Py_None),
        PyLong_FromSize_t(is_staged ? staged->chunk : 0),
        PyLong_FromLong(is_staged ? staged->threads : 0),
        PyLong_FromSize_t(is_staged ? staged->crossover : 0));
}

static PyMethodDef functions[] = {
    {"explain_copy", (PyCFunction)(void (*)(void))module_explain_copy, METH_FASTCALL,
     explain_copy_doc},
    {NULL},
};

int cudriver_explain_setup(PyObject *module)
{
    CoreState *state = cudriver_state_of_module(module);

    return cudriver_tuple_add(module, &state->copy_plan_type, &plan_desc) < 0
               ? -1
               : PyModule_AddFunctions(module, functions);
}
