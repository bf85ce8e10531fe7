/* PageLock: a page lock on memory of somebody else, behind pin(), pin_async() and SharedMemory. */
#ifndef CUDRIVER_PAGE_LOCK_H
#define CUDRIVER_PAGE_LOCK_H

#include "state.h"

extern PyType_Spec cudriver_page_lock_spec;
extern PyMethodDef cudriver_page_lock_functions[];

#endif
