/*
 * The functions of cudriver.memory that the core calls: X(module, function, format of the arguments
 * as for Py_BuildValue, a tuple). NULL: of a method, whose arguments are passed as they came, after
 * the object. A test imports each and compares the number of arguments.
 */
#ifndef CUDRIVER_PYTHON_FUNCTIONS_H
#define CUDRIVER_PYTHON_FUNCTIONS_H

/* clang-format off */
#define CUDRIVER_PYTHON_FUNCTIONS(X) \
    X(arrays, array_function, NULL) \
    X(arrays, flags, "(OOO)") \
    X(arrays, formatted, NULL) \
    X(arrays, index, "(N)") \
    X(arrays, interface, "(OOO)") \
    X(arrays, refuse_computing, "(OO)") \
    X(arrays, refuse_conversion, NULL) \
    X(arrays, refuse_pickle, NULL) \
    X(arrays, reshape, NULL) \
    X(arrays, text, "(O)") \
    X(arrays, transpose, NULL) \
    X(contexts, api_version, "(O)") \
    X(contexts, cache_config, "(O)") \
    X(contexts, exists, "(O)") \
    X(contexts, flags, "(O)") \
    X(contexts, limits, "(O)") \
    X(contexts, memory_info_of, NULL) \
    X(contexts, refuse_at_exit, "(O)") \
    X(contexts, refuse_during_reset, "(i)") \
    X(contexts, refuse_end, "(OsO)") \
    X(contexts, refuse_pop, "(OO)") \
    X(contexts, refuse_reset, "(iN)") \
    X(contexts, refuse_use, "(OO)") \
    X(contexts, set_cache_config, "(OO)") \
    X(contexts, stream_priority_range, "(O)") \
    X(copies, bounce, "(NN)") \
    X(copies, bounce_by_host, "(NN)") \
    X(copies, on_host, "(NN)") \
    X(device_pool, pool_of, "(O)") \
    X(devices, context_arguments, "(ON)") \
    X(devices, device_at, "(i)") \
    X(devices, ordinal_of, "(O)") \
    X(dlpack, allocate, "(iiiiiN)") \
    X(dlpack, ask, "(OOLiO)") \
    X(dlpack, dtype_of, "(iiiO)") \
    X(dlpack, export, NULL) \
    X(dlpack, refuse, "(Oz)") \
    X(dlpack, refuse_lender, "(O)") \
    X(dlpack, type_of, "(O)") \
    X(driver, library, "()") \
    X(driver, refuse, "(yyii)") \
    X(events, elapsed_time, NULL) \
    X(events, refuse_captured, "(O)") \
    X(events, refuse_stream, "(OO)") \
    X(failures, captured, "(Ksz)") \
    X(failures, forked, "()") \
    X(failures, raised, "(issssO)") \
    X(foreign, handle_argument, "(Os)") \
    X(foreign, memory_of, "(OO)") \
    X(foreign, stream_handle, "(O)") \
    X(live, line_running, "()") \
    X(live, report, "()") \
    X(loading, begin, "(O)") \
    X(loading, set_threads, "(O)") \
    X(moving, assign, "(OOO)") \
    X(moving, copy, NULL) \
    X(moving, deepcopy, NULL) \
    X(moving, fill, NULL) \
    X(moving, to_numpy, NULL) \
    X(names, keyword, "(sO)") \
    X(names, missing, "(OO)") \
    X(numa, prepare, "()") \
    X(refusals, ends, "(NNOO)") \
    X(refusals, fields, "(O)") \
    X(refusals, pin, "(iKnOKn)") \
    X(refusals, pool, "(isnnK)") \
    X(refusals, read_only, "(O)") \
    X(refusals, size, "(Nn)") \
    X(refusals, unmapped, "(KK)") \
    X(refusals, used, "(OsninO)") \
    X(room, host_room, "()") \
    X(rows, refuse_overlap, "(OOO)") \
    X(rows, refuse_overlap_of_runs, "(y#)") \
    X(stack, correct, "(NO)") \
    X(stack, holder, "(O)") \
    X(stack, new, "()") \
    X(streams, arguments, "(NO)") \
    X(streams, enter, "(O)") \
    X(streams, leave, NULL) \
    X(streams, protocol, NULL) \
    X(streams, record, NULL) \
    X(streams, wait, NULL) \
    X(waiting, text, "(O)") \
    X(waiting, wait, "(O)")
/* clang-format on */

/* CALL_<module>_<function> */
enum cudriver_function {
#define X(module, function, format) CALL_##module##_##function,
    CUDRIVER_PYTHON_FUNCTIONS(X)
#undef X
};

#endif
