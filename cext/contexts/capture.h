/*
 * Streams that are being captured into a graph. What is queued on such a stream becomes a node of
 * the graph and runs whenever that is launched. To wait for the stream, or to ask how far it is,
 * breaks the capture, so each call that would do so asks here first.
 */
#ifndef CUDRIVER_CAPTURE_H
#define CUDRIVER_CAPTURE_H

#include "state.h"

/* Whether the stream is being captured: 1 or 0; -1 with CudaError if its capture is broken already,
 * or if the stream is the default one and waits for another that is being captured. Between begin
 * and end of the stream's context. */
int cudriver_capture_check(CUstream stream);

/* 0 if the stream is not being captured; else -1 with CudaError, whose message says that `call`
 * cannot be captured. */
int cudriver_capture_refuse(CUstream stream, const char *call);

/* Raises that error with a reason: a clause that says why. */
void cudriver_capture_raise(CUstream stream, const char *call, const char *why);

/* Whether asking about the stream's work, or queueing an event behind it, would spoil a capture.
 * Raises nothing. Between begin and end of the stream's context. */
bool cudriver_capture_forbids(CUstream stream);

#endif
