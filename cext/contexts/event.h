/* Event: a marker in a stream's work. */
#ifndef CUDRIVER_EVENT_H
#define CUDRIVER_EVENT_H

#include "stream.h"

typedef struct EventObject {
    PyObject_HEAD
    struct cudriver_live live;
    ContextObject *context; /* owned */
    PyObject *owner; /* owned: of another library's event, or None; NULL: the event is ours */
    CUevent handle;  /* owned while not closed, if it is ours */
    bool timing;
    bool recorded;
    bool captured; /* last recorded in a capture: it marks a point in a graph */
    bool closed;
    struct cudriver_users users;
    PyObject *weak;
} EventObject;

extern PyType_Spec cudriver_event_spec;

#endif
