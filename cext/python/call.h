/* Calling the part of the memory half that is written in Python. */
#ifndef CUDRIVER_CALL_H
#define CUDRIVER_CALL_H

#include "compat.h"

/* Calls cudriver.memory.<module>.<function>, which is imported at its first use, with arguments as
 * for Py_BuildValue: a tuple ("(Oi)"). New reference, or NULL with an exception set. */
PyObject *cudriver_call(const char *module, const char *function, const char *format, ...);

#endif
