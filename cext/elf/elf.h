/*
 * A bounded reader of ELF files: what the dynamic loader would read of them, and no more.
 *
 * Plain C, no Python, no CUDA. Files are untrusted: every offset, size and count is checked before
 * use, work and memory have limits, and a file that shrinks or changes while being read is a fault,
 * not a signal (nothing is mapped; blocks are read on demand with pread).
 *
 * Handles 64-bit little-endian files of any machine. Functions return 0 or -errno; -EBADMSG stands
 * for damage. What went wrong is kept in the file's `fault`, and a file with a fault stays faulty.
 * No function here locks: a struct elf_file belongs to one thread at a time.
 */
#ifndef CUDRIVER_ELF_H
#define CUDRIVER_ELF_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* Why a file cannot be used. */
struct elf_fault {
    char text[192]; /* empty: no fault */
    const char
        *loader_text; /* what ld.so says where it refuses the file for this, or NULL; static */
    int error;        /* errno of a failed system call, EBADMSG for damage */
    bool foreign;     /* sound, but of another class or byte order */
};

/* One PT_LOAD: addresses [address, address + size) are the file's bytes from offset on. */
struct elf_segment {
    uint64_t address, offset, size;
};

/* A table in the file: it starts at `offset` and its segment ends at `end`. start 0: absent. */
struct elf_table {
    uint64_t offset, end;
    bool present;
};

/* One version that the file needs from a library. Strings owned. */
struct elf_need {
    char *library, *version;
    uint32_t hash;
    uint16_t index; /* the number that DT_VERSYM uses for it */
    bool weak, hidden;
};

/* One version that the file defines. String owned. */
struct elf_version {
    char *name;
    uint32_t hash;
    uint16_t index;
    bool base; /* the file's own name, no version */
};

/* What a DT_VERSYM number means. Strings borrowed from the two lists above. */
struct elf_meaning {
    const char *version; /* NULL: none */
    const char *library; /* NULL unless needed from one */
    uint32_t hash;
    bool hidden;
};

/* An undefined symbol that a relocation binds. `name` is owned by the list it is in. */
struct elf_reference {
    char *name;
    size_t length;
    const struct elf_meaning *version; /* NULL: none; borrowed from the file */
    bool weak, lazy;
};

struct elf_references {
    struct elf_reference *items;
    size_t count, room;
    uint64_t bytes; /* of names */
};

struct elf_file {
    char *path; /* owned */
    int fd;     /* -1 while closed: it is opened again on demand */
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
    bool exec_stack;                /* asks for an executable stack */
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
    uint64_t relative_count; /* relocations at the start of rela that bind no symbol */

    /* For lookups, made by elf_prepare. */
    bool prepared;
    struct elf_meaning *meanings; /* owned, by DT_VERSYM number */
    size_t meaning_count;
    uint32_t bucket_count, first_hashed, bloom_words, bloom_shift;
    uint64_t bloom, buckets, chains; /* file offsets */

    /* What elf_list_references gave: every process that maps the file asks again. */
    struct elf_references references; /* owned */
    bool listed;

    /* Blocks of the file that have been read, on shelves of many; NULL: none. */
    uint8_t ***shelves; /* owned */
    size_t shelf_count;
    uint64_t held; /* bytes of blocks and shelves */
};

/* A definition. `name` is owned by the list it is in, `version` by the file. */
struct elf_export {
    char *name;
    const char *version; /* NULL: none */
    bool hidden, weak;
};

struct elf_exports {
    struct elf_export *items;
    size_t count, room;
    uint64_t bytes;
};

/* headers.c */

/*
 * Reads the headers, the dynamic section and the versions of `path`.
 * Returns a file to be given to elf_free, also when there is a fault (see ->fault.text), or NULL
 * where there is no memory.
 */
struct elf_file *elf_open(const char *path);
void elf_free(struct elf_file *file);

/* bytes.c */

/* Closes the descriptor; it comes back on demand. */
void elf_close(struct elf_file *file);

/* Closes the descriptor and drops the blocks that were read. Both come back on demand. */
void elf_rest(struct elf_file *file);

/* references.c */

/* The undefined symbols in the order in which the loader binds them, each once. */
int elf_list_references(struct elf_file *file, struct elf_references *out);
void elf_references_free(struct elf_references *list);

/*
 * The references of `file` that no file of `scope` defines, weak ones left out.
 * On failure *culprit (borrowed) is the file with the fault.
 */
int elf_list_missing(struct elf_file *file, struct elf_file **scope, size_t scope_count,
                     struct elf_references *out, struct elf_file **culprit);

/* lookup.c */

/* Every definition that the hash table offers; those of one name where `name` is not NULL. */
int elf_list_exports(struct elf_file *file, const char *name, struct elf_exports *out);
void elf_exports_free(struct elf_exports *list);

#endif
