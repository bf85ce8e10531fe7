/*
 * What a wheel's RECORD lists, and whether the disk has it so, by name, size and time: nothing is
 * opened. A framework lists thousands of files, and the check's time is short. Plain C; the text is
 * untrusted.
 */
#ifndef CUDRIVER_ELF_RECORD_H
#define CUDRIVER_ELF_RECORD_H

#include <stdbool.h>
#include <stddef.h>

/* A line of a RECORD. */
struct elf_line {
    const char *text; /* borrowed, without a NUL behind it */
    size_t length;
    size_t number; /* the first is 1 */
};

struct elf_record {
    const char *text; /* borrowed */
    size_t size;
    long long since;         /* in ns: what was changed later counts as well; LLONG_MAX: nothing */
    struct elf_line *absent; /* owned: what elf_record_read found. Start with NULL */
    size_t count;            /* of `absent` */
};

/*
 * Finds the lines of files with a hash that are not there, have another size than the line says, or
 * were changed after `since`. Left out is what no import opens: tests, documents, headers, static
 * libraries, type stubs. folder: the descriptor of what the paths start from; -1: nothing is there.
 * False: no memory. Release with free(record->absent).
 */
bool elf_record_read(struct elf_record *record, int folder);

#endif
