/* Event: a marker in a stream's work. */
#ifndef CUDRIVER_EVENT_H
#define CUDRIVER_EVENT_H

#include "stream.h"

/* New reference: an event in `context`. */
PyObject *cudriver_event_new(CoreState *state, ContextObject *context, bool timing);

/* Records `event` on a stream argument (cudriver_stream_parse). 0 or -1. */
int cudriver_event_record(CoreState *state, PyObject *event, PyObject *stream);

/* Records `event` on a stream that was read. 0 or -1. */
int cudriver_event_record_on(CoreState *state, PyObject *event,
                             const struct cudriver_stream *stream);

/* Makes a stream argument wait for `event`. 0 or -1. */
int cudriver_event_wait(CoreState *state, PyObject *event, PyObject *stream);

int cudriver_event_setup(PyObject *module);

#endif
