/* explain_copy: the plan of a copy as a named tuple. */
#include "copy.h"

#include "engine/engine.h"
#include "python/types.h"
#include "docstrings.h"

static PyStructSequence_Field plan_fields[] = {
    {"path", DOC_CopyPlan_path},
    {"why", DOC_CopyPlan_why},
    {"nbytes", DOC_CopyPlan_nbytes},
    {"page_locked", DOC_CopyPlan_page_locked},
    {"staging", DOC_CopyPlan_staging},
    {"chunk", DOC_CopyPlan_chunk},
    {"threads", DOC_CopyPlan_threads},
    {"crossover", DOC_CopyPlan_crossover},
    {NULL, NULL},
};

static PyStructSequence_Desc plan_desc = {
    .name = "cudriver.CopyPlan",
    .doc = DOC_CopyPlan,
    .fields = plan_fields,
    .n_in_sequence = 8,
};

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
     DOC_explain_copy},
    {NULL},
};

int cudriver_explain_setup(PyObject *module)
{
    CoreState *state = cudriver_state_of_module(module);

    return cudriver_tuple_add(module, &state->copy_plan_type, &plan_desc) < 0
               ? -1
               : PyModule_AddFunctions(module, functions);
}
