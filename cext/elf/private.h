/* What the files of this folder share. Others include elf.h. */
#ifndef CUDRIVER_ELF_PRIVATE_H
#define CUDRIVER_ELF_PRIVATE_H

#include "elf.h"

enum {
    ELF_MAX_NAME = 4096,           /* bytes of a SONAME, a needed name, a version */
    ELF_MAX_SYMBOL_NAME = 1 << 20, /* bytes; long template names pass 64 KiB */
    ELF_MAX_NAME_BYTES = 1 << 28,  /* of all names in one answer */
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

/* Notes a fault and returns -EBADMSG. The first fault of a file is the one that stays. */
int elf_damaged(struct elf_file *file, const char *format, ...)
    __attribute__((format(printf, 2, 3)));
/* The same where memory ran out; returns -ENOMEM. */
int elf_no_memory(struct elf_file *file);

/* Notes a fault that ld.so sees too, in its words (static). Returns -EBADMSG. */
int elf_refused(struct elf_file *file, const char *loader_text);

/* Notes a failed system call. Returns -error. */
int elf_failed(struct elf_file *file, int error, const char *format, ...)
    __attribute__((format(printf, 3, 4)));

/* Opens the file; the first time its size and identity are noted, later they must be the same. */
int elf_open_descriptor(struct elf_file *file, bool first);

/* Copies bytes [offset, offset + length) of the file. Cached; length is to be small. */
int elf_read(struct elf_file *file, uint64_t offset, void *to, size_t length);

/* The same without the cache, for long runs that are read once. */
int elf_stream(struct elf_file *file, uint64_t offset, void *to, size_t length);

/*
 * A copy of the string at `index` of the string table, at most `limit` bytes long. The caller frees
 * *out; *length does not count the NUL.
 */
int elf_string(struct elf_file *file, uint64_t index, size_t limit, char **out, size_t *length);

/* Whether the string at `index` equals `text` (a NUL follows it in the file). 1, 0 or -errno. */
int elf_string_equals(struct elf_file *file, uint64_t index, const char *text, size_t length);

/* versions.c */

/* Read the table at `table` into file->needs and file->versions. 0 or -errno. */
int elf_read_verneed(struct elf_file *file, const struct elf_table *table);
int elf_read_verdef(struct elf_file *file, const struct elf_table *table);

/* lookup.c */

int elf_read_symbol(struct elf_file *file, uint64_t index, struct elf_symbol *symbol);

/*
 * What the version table says of a symbol. *meaning (borrowed) is NULL where it names no version:
 * numbers 0 and 1, and the base version.
 */
int elf_read_version(struct elf_file *file, uint64_t index, uint16_t *number,
                     const struct elf_meaning **meaning);

/* Reads the hash tables' headers and numbers the versions. Idempotent. */
int elf_prepare(struct elf_file *file);

uint32_t elf_gnu_hash(const char *name, size_t length);
uint32_t elf_sysv_hash(const char *name, size_t length);

/*
 * Whether the file defines the symbol by ld.so's rules. 1, 0 or -errno. *steps counts down with
 * the work done; at 0 it is a fault (hash chains that no linker makes).
 */
int elf_defines(struct elf_file *file, const struct elf_wanted *wanted, uint64_t *steps);

/* Makes room for one more item. 0 or -ENOMEM. */
int elf_make_room(void **items, size_t *room, size_t count, size_t item);

#endif
