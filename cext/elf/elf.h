/*
 * A bounded reader of ELF files: it reads what the dynamic loader would read, and no more.
 *
 * Plain C, no Python, no CUDA. Files are untrusted: every offset, size and count is checked before
 * use, and work and memory have limits. Blocks are read on demand with pread and nothing is mapped,
 * so a file that shrinks or changes while it is read causes a fault, not a signal.
 *
 * Handles 64-bit little-endian files of any machine. Functions return 0 or -errno; -EBADMSG means
 * damage. The file's `fault` says what went wrong, and a file with a fault stays faulty.
 * No function here locks: a struct elf_file belongs to one thread at a time.
 */
#ifndef CUDRIVER_ELF_H
#define CUDRIVER_ELF_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* Why a file cannot be used. */
struct elf_fault {
    char text[192];          /* empty: no fault */
    const char *loader_text; /* ld.so's message if it refuses the file for this, or NULL; static */
    int error;               /* errno of a failed system call, EBADMSG for damage */
    bool foreign;            /* sound, but with another class or byte order */
};

/* One PT_LOAD: maps addresses [address, address + size) to the file's bytes from `offset` on. */
struct elf_segment {
    uint64_t address, offset, size;
};

/* A table in the file: it starts at `offset`; it, or its segment, ends at `end`. */
struct elf_table {
    uint64_t offset, end;
    bool present;
};

/* One version that the file needs from a library. The strings are owned. */
struct elf_need {
    char *library, *version;
    uint32_t hash;
    uint16_t index; /* the number that DT_VERSYM uses for it */
    bool weak, hidden;
};

/* One version that the file defines. The string is owned. */
struct elf_version {
    char *name;
    uint32_t hash;
    uint16_t index;
    bool base; /* names the file itself, not a version */
};

/* The meaning of a DT_VERSYM number. The strings are borrowed from the two lists above. */
struct elf_meaning {
    const char *version; /* NULL: none */
    const char *library; /* NULL for a version that the file defines */
    uint32_t hash;
    bool hidden;
};

/* Strings, each with its NUL, one behind another. Adding one may move them: keep offsets. */
struct elf_text {
    char *bytes; /* owned */
    size_t used, room;
};

/* An undefined symbol that a relocation binds. */
struct elf_reference {
    size_t name; /* where it begins in the list's names */
    size_t length;
    const struct elf_meaning *version; /* NULL: none; borrowed from the file */
    bool weak, lazy;
};

struct elf_references {
    struct elf_reference *items; /* owned */
    size_t count, room;
    struct elf_text names; /* one buffer: a library has thousands of names */
};

struct elf_file {
    char *path; /* owned */
    int root;   /* the folder that `path`, then without links, is below; -1: the process's own */
    int fd;     /* -1 while closed; opened again on demand */
    uint64_t device, inode, size;
    int64_t modified_s, modified_ns;
    struct elf_fault fault;

    int elf_class; /* 32 or 64; 0: no ELF header */
    bool big_endian;
    uint16_t machine, type;
    struct elf_segment *segments; /* owned */
    size_t segment_count;
    char *interpreter; /* owned, or NULL */
    uint8_t build_id[64];
    size_t build_id_size;

    bool dynamic;
    bool exec_stack;                /* requires an executable stack */
    char *soname, *rpath, *runpath; /* owned, or NULL */
    char **needed;                  /* owned */
    size_t needed_count;
    uint64_t flags, flags_1;
    bool bind_now, has_versions;
    struct elf_need *needs; /* owned */
    size_t need_count;
    struct elf_version *versions; /* owned */
    size_t version_count;

    struct elf_table strings, symbols, versym, gnu_hash, sysv_hash, rela, plt_rela;
    uint64_t relative_count; /* relocations at the start of `rela` that bind no symbol */

    /* For lookups; filled in by elf_prepare. */
    bool prepared;
    struct elf_meaning *meanings; /* owned, by DT_VERSYM number */
    size_t meaning_count;
    uint32_t bucket_count, first_hashed, bloom_words, bloom_shift;
    uint64_t bloom, buckets, chains; /* file offsets */

    /* The result of elf_list_references: each process that maps the file needs it again. */
    struct elf_references references; /* owned */
    bool listed;

    /* Cached blocks of the file, in shelves of many blocks; NULL: none. */
    uint8_t ***shelves; /* owned */
    size_t shelf_count;

    /* Bytes that count as held by the process: see elf_hold. */
    uint64_t strings_held, references_held, blocks_held;
    uint64_t copied; /* bytes of the strings that elf_string has copied */
};

/* A definition. The list that holds it owns `name`, the file owns `version`. */
struct elf_export {
    char *name;
    const char *version; /* NULL: none */
    uint64_t address, size;
    bool hidden, weak;
};

struct elf_exports {
    struct elf_export *items;
    size_t count, room;
    uint64_t bytes;
};

/* headers.c */

/*
 * Reads the headers, the dynamic section and the versions of `path`. root: a descriptor of the
 * folder that stands for "/", which stays open as long as the result lives, or -1. No link below
 * such a folder is followed.
 * The caller frees the result with elf_free, even if it has a fault (see ->fault.text). NULL if
 * memory ran out.
 */
struct elf_file *elf_open(const char *path, int root);
void elf_free(struct elf_file *file);

/* bytes.c */

/* Closes the descriptor. It is opened again on demand. */
void elf_close(struct elf_file *file);

/* Closes the descriptor and drops the cached blocks. Both come back on demand. */
void elf_rest(struct elf_file *file);

/* Whether all files of the process hold so much that those not in use should be dropped. */
bool elf_much_held(void);

/* references.c */

/* Lists the undefined symbols in the order in which the loader binds them, each once. */
int elf_list_references(struct elf_file *file, struct elf_references *out);
void elf_references_free(struct elf_references *list);

/* elf_rest, and drops the references that elf_list_missing has listed. */
void elf_drop(struct elf_file *file);

/*
 * Lists the references of `file`, except weak ones, that no file of `scope` defines.
 * On failure *culprit (borrowed) is the file with the fault.
 */
int elf_list_missing(struct elf_file *file, struct elf_file **scope, size_t scope_count,
                     struct elf_references *out, struct elf_file **culprit);

/* lookup.c */

/* Lists the definitions in the hash table; if `name` is not NULL, only those of that name. */
int elf_list_exports(struct elf_file *file, const char *name, struct elf_exports *out);
void elf_exports_free(struct elf_exports *list);

/* parts.c: what no loader asks for. A file that lies about it has none, and no fault. */

/* Finds what the file puts at an address, up to the file's end, and the first section of a name. */
void elf_find_part(const struct elf_file *file, uint64_t address, struct elf_table *part);
int elf_find_section(struct elf_file *file, const char *name, struct elf_table *part);

/* Finds a symbol that .symtab has, exported or not. 1, 0 or -errno. */
int elf_find_local(struct elf_file *file, const char *name, uint64_t *address, uint64_t *size);

/*
 * Whether the file goes as far as the table of its sections, which linkers put last, and that has
 * the section of the names. 1, 0 or -errno.
 */
int elf_is_whole(struct elf_file *file);

/* bytes.c: reads a part without keeping it. */
int elf_stream(struct elf_file *file, uint64_t offset, void *to, size_t length);

#endif
