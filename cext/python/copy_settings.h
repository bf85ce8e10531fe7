/* How many threads the copy engine may use: copy_threads(), set_copy_threads(). */
#ifndef CUDRIVER_COPY_SETTINGS_H
#define CUDRIVER_COPY_SETTINGS_H

#include "compat.h"

int cudriver_copy_settings_setup(PyObject *module);

#endif
