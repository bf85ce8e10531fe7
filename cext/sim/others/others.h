/*
 * A libcuda for libraries that call more than cudriver does. It has every function of CUDA 13.0's
 * cuda.h:
 *
 *   SIM_FUNCTIONS of functions.h   works
 *   SIM_PER_THREAD, there          works, on the thread's default stream instead of the NULL stream
 *   SIM_ABSENT of absent.h         only answers: NOT_SUPPORTED, and a line on standard error
 */
#ifndef CUDRIVER_SIM_OTHERS_H
#define CUDRIVER_SIM_OTHERS_H

#include "sim/sim.h"

/* A function that is made of others: it counts, and fails when told so, under its own name too. */
#define SIM_MADE_OF(name, parameters, call)              \
    CUresult name parameters                             \
    {                                                    \
        CUresult result = sim_enter(CALL_##name);        \
        return result != CUDA_SUCCESS ? result : (call); \
    }

#endif
