/*
 * Whether byte code is whole: walks the objects that marshal wrote, and makes none. (marshal itself
 * takes gigabytes for a number that is wrong.) Plain C; the bytes are untrusted.
 */
#ifndef CUDRIVER_ELF_BYTE_CODE_H
#define CUDRIVER_ELF_BYTE_CODE_H

#include <stddef.h>

/*
 * What Python 3.11 to 3.15 says of bytes that end too early; NULL where they do not, or where they
 * have what this does not know.
 */
const char *elf_byte_code_cut(const unsigned char *bytes, size_t size);

#endif
