/* What the files of this folder share. Others include elf.h. */
#ifndef CUDRIVER_ELF_PRIVATE_H
#define CUDRIVER_ELF_PRIVATE_H

#include "elf.h"

#include <string.h>

#define ELF_MAX_STEPS ((uint64_t)1 << 28) /* chain entries visited in one call */

enum {
    ELF_MAX_NAME = 4096,           /* bytes of a SONAME, a needed name, a version */
    ELF_MAX_SYMBOL_NAME = 1 << 20, /* bytes; names of C++ templates exceed 64 KiB */
    ELF_MAX_NAME_BYTES = 1 << 28,  /* of all names in one result */
};

enum { STB_LOCAL = 0, STB_GLOBAL = 1, STB_WEAK = 2, STB_GNU_UNIQUE = 10 };
enum { STT_TLS = 6, STV_INTERNAL = 1, STV_HIDDEN = 2, SHN_UNDEF = 0, SHN_ABS = 0xfff1 };

struct elf_symbol {
    uint32_t name;
    uint8_t info, other;
    uint16_t section;
    uint64_t value, size;
};
_Static_assert(sizeof(struct elf_symbol) == 24, "structures lie as in the file");

/* A symbol to look up. */
struct elf_wanted {
    const char *name;
    size_t length;
    uint32_t gnu_hash, sysv_hash;
    const struct elf_meaning *version; /* NULL: none asked for */
};

/* bytes.c */

/* Records a fault and returns -EBADMSG. A file keeps its first fault. */
int elf_damaged(struct elf_file *file, const char *format, ...)
    __attribute__((format(printf, 2, 3)));
/* The same if memory ran out. Returns -ENOMEM. */
int elf_no_memory(struct elf_file *file);

/* Records a fault for which ld.so refuses the file, with its message (static). Returns -EBADMSG. */
int elf_refused(struct elf_file *file, const char *loader_text);

/* Records a failed system call. Returns -error. */
int elf_failed(struct elf_file *file, int error, const char *format, ...)
    __attribute__((format(printf, 3, 4)));

/*
 * Counts `bytes` more in *held and in the sum of the process; many small files can ask for any
 * amount of memory. 0 or -EFBIG.
 */
int elf_hold(struct elf_file *file, uint64_t *held, uint64_t bytes);
void elf_let_go(uint64_t *held);

/* Opens the file. The first call records its size and identity; later ones compare them. */
int elf_open_descriptor(struct elf_file *file, bool first);

enum {
    ELF_BLOCK_BITS = 14,             /* 4 KiB take twice the calls, 64 KiB read too much */
    ELF_BLOCK = 1 << ELF_BLOCK_BITS, /* bytes in a block; lookups are scattered */
    ELF_SHELF_BITS = 7,
    ELF_SHELF = 1 << ELF_SHELF_BITS, /* blocks on one shelf: 2 MiB of the file */
};

/* The cached block `number`, or NULL. */
static inline const uint8_t *elf_block_held(const struct elf_file *file, size_t number)
{
    uint8_t **shelf = file->shelves != NULL ? file->shelves[number >> ELF_SHELF_BITS] : NULL;
    return shelf != NULL ? shelf[number & (ELF_SHELF - 1)] : NULL;
}

/* The general case of elf_read: the bytes may lie in several blocks, or in none that is cached. */
int elf_read_pieces(struct elf_file *file, uint64_t offset, void *to, size_t length);

/*
 * Copies bytes [offset, offset + length) of the file, through the cache: for small lengths. Inline:
 * a lookup reads a few bytes in each of six tables.
 */
static inline int elf_read(struct elf_file *file, uint64_t offset, void *to, size_t length)
{
    size_t within = (size_t)(offset & (ELF_BLOCK - 1));
    if (offset <= file->size && length <= file->size - offset && within + length <= ELF_BLOCK) {
        const uint8_t *block = elf_block_held(file, (size_t)(offset >> ELF_BLOCK_BITS));
        if (block != NULL) {
            memcpy(to, block + within, length);
            return 0;
        }
    }
    return elf_read_pieces(file, offset, to, length);
}

/*
 * Copies the string at `index` of the string table; more than `limit` bytes are a fault. The caller
 * frees *out; *length does not count the NUL.
 */
int elf_string(struct elf_file *file, uint64_t index, size_t limit, char **out, size_t *length);

/* Appends that string and its NUL to `text`. On failure text->used is as it was. */
int elf_string_append(struct elf_file *file, uint64_t index, size_t limit, struct elf_text *text,
                      size_t *length);

/* Appends `length` bytes and a NUL. 0 or -ENOMEM. */
int elf_text_append(struct elf_text *text, const char *bytes, size_t length);

/* Whether the string at `index` of the string table equals `text`. 1, 0 or -errno. */
int elf_string_equals(struct elf_file *file, uint64_t index, const char *text, size_t length);

/* versions.c */

/* Read `table` into file->needs, and into file->versions. 0 or -errno. */
int elf_read_verneed(struct elf_file *file, const struct elf_table *table);
int elf_read_verdef(struct elf_file *file, const struct elf_table *table);

/* lookup.c */

int elf_read_symbol(struct elf_file *file, uint64_t index, struct elf_symbol *symbol);

/*
 * Reads a symbol's entry in the version table. *meaning (borrowed) is NULL if it names no version:
 * numbers 0 and 1, and the base version.
 */
int elf_read_version(struct elf_file *file, uint64_t index, uint16_t *number,
                     const struct elf_meaning **meaning);

/* Reads the hash table's header and indexes the versions by number. Idempotent. */
int elf_prepare(struct elf_file *file);

uint32_t elf_gnu_hash(const char *name, size_t length);
uint32_t elf_sysv_hash(const char *name, size_t length);

/*
 * Whether the file defines the symbol by ld.so's rules. 1, 0 or -errno. Each step along a hash
 * chain takes one from *steps; more steps than that are a fault (no linker makes such chains).
 */
int elf_defines(struct elf_file *file, const struct elf_wanted *wanted, uint64_t *steps);

/* Makes room for one more item. 0 or -ENOMEM. */
int elf_make_room(void **items, size_t *room, size_t count, size_t item);

#endif
