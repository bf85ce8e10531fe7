/*
 * The Python files that a wheel's RECORD lists, and whether they are there: a framework has
 * thousands of them, and the check's time is short. Plain C; the text is untrusted.
 */
#ifndef CUDRIVER_ELF_RECORD_H
#define CUDRIVER_ELF_RECORD_H

#include <stdbool.h>
#include <stddef.h>

/* A walk over one RECORD. Zero `at`, `number` and `modules` before the first step. */
struct elf_record {
    const char *text; /* borrowed */
    size_t size;
    int folder; /* borrowed: the descriptor of what the paths start from; -1: nothing is there */
    size_t at;
    size_t number;  /* of the line that was read last; the first is 1 */
    size_t modules; /* seen so far */
};

/*
 * Finds the line of the next module, tests aside, that is not there, or that is empty and that the
 * line gives bytes. *line points into the text, without a NUL behind it. False at the end.
 */
bool elf_record_next(struct elf_record *record, const char **line, size_t *length);

#endif
