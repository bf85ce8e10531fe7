/* Relocations: the symbols that a file refers to, and those that are missing. See elf.h. */
#define _GNU_SOURCE
#include "private.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

enum {
    MAX_SYMBOLS = 1 << 24,  /* in one table */
    ENTRIES_AT_ONCE = 2730, /* 64 KiB of symbols or relocations */
};
static const uint64_t MAX_RELOCATIONS = 1u << 26;

enum { EM_PPC64 = 21, EM_X86_64 = 62, EM_AARCH64 = 183 };

struct relocation {
    uint64_t offset, info;
    int64_t addend;
};
_Static_assert(sizeof(struct relocation) == 24, "structures lie as in the file");

/* A bit for each symbol below `count`: undefined, and not in the list yet. */
struct pending {
    uint8_t *bits;
    uint64_t count, room; /* in symbols; a multiple of 8 */
};

/* Extends the set to all symbols up to `number`. No field gives the symbol table's length. */
static int pending_extend(struct elf_file *file, struct pending *pending, uint64_t number)
{
    uint64_t total = file->symbols.present
                         ? (file->symbols.end - file->symbols.offset) / sizeof(struct elf_symbol)
                         : 0;
    struct elf_symbol *buffer;
    int status = 0;
    if (number >= total || number >= MAX_SYMBOLS) {
        return elf_damaged(file, "a relocation names symbol %llu", (unsigned long long)number);
    }
    if (number >= pending->room) {
        uint64_t room = (number + number / 2 + ENTRIES_AT_ONCE + 7) / 8 * 8;
        uint8_t *grown = realloc(pending->bits, room / 8);
        if (grown == NULL) {
            return elf_no_memory(file);
        }
        memset(grown + pending->room / 8, 0, (room - pending->room) / 8);
        pending->bits = grown;
        pending->room = room;
    }
    buffer = malloc(ENTRIES_AT_ONCE * sizeof(*buffer));
    if (buffer == NULL) {
        return elf_no_memory(file);
    }
    /* Read full buffers, but no further than `bits` has room. */
    total = total < pending->room ? total : pending->room;
    while (status == 0 && pending->count <= number) {
        uint64_t left = total - pending->count;
        size_t batch = left < ENTRIES_AT_ONCE ? (size_t)left : ENTRIES_AT_ONCE;
        status = elf_stream(file, file->symbols.offset + pending->count * sizeof(*buffer), buffer,
                            batch * sizeof(*buffer));
        for (size_t i = 0; status == 0 && i < batch; i++) {
            uint64_t at = pending->count + i;
            if (buffer[i].section == SHN_UNDEF) {
                pending->bits[at / 8] |= (uint8_t)(1u << (at & 7));
            }
        }
        pending->count += batch;
    }
    free(buffer);
    return status;
}

/* Adds an undefined symbol to the list if other objects may define it. */
static int add_reference(struct elf_file *file, uint64_t number, bool lazy,
                         struct elf_references *out)
{
    struct elf_symbol symbol;
    struct elf_reference *item;
    const struct elf_meaning *version;
    uint16_t version_number;
    unsigned visibility, binding;
    int status = elf_read_symbol(file, number, &symbol);
    if (status < 0) {
        return status;
    }
    visibility = symbol.other & 3u;
    binding = symbol.info >> 4;
    if (binding == STB_LOCAL || visibility == STV_INTERNAL || visibility == STV_HIDDEN) {
        return 0;
    }
    status = elf_read_version(file, number, &version_number, &version);
    if (status < 0) {
        return status;
    }
    if (elf_make_room((void **)&out->items, &out->room, out->count, sizeof(*out->items)) < 0) {
        return elf_no_memory(file);
    }
    item = &out->items[out->count];
    *item = (struct elf_reference){.version = version, .weak = binding == STB_WEAK, .lazy = lazy};
    item->name = out->names.used;
    status = elf_string_append(file, symbol.name, ELF_MAX_SYMBOL_NAME, &out->names, &item->length);
    if (status < 0) {
        return status;
    }
    out->count++;
    if (out->names.used > ELF_MAX_NAME_BYTES) {
        return elf_damaged(file, "its symbol names take too much room");
    }
    return 0;
}

/* Whether relocations of this type bind no symbol, whatever their symbol number is. */
static bool binds_nothing(uint16_t machine, uint32_t type)
{
    if (type == 0) {
        return true;
    }
    switch (machine) {
    case EM_X86_64:
        return type == 8 || type == 38;
    case EM_AARCH64:
        return type == 1027;
    case EM_PPC64:
        return type == 22;
    default:
        return false;
    }
}

/* Walks the relocations in [offset, end). */
static int scan_relocations(struct elf_file *file, uint64_t offset, uint64_t end, bool lazy,
                            struct pending *pending, struct elf_references *out)
{
    struct relocation *buffer;
    uint64_t left = (end - offset) / sizeof(*buffer);
    int status = 0;
    if (left > MAX_RELOCATIONS) {
        return elf_damaged(file, "%llu relocations", (unsigned long long)left);
    }
    buffer = malloc(ENTRIES_AT_ONCE * sizeof(*buffer));
    if (buffer == NULL) {
        return elf_no_memory(file);
    }
    while (status == 0 && left > 0) {
        size_t count = left < ENTRIES_AT_ONCE ? (size_t)left : ENTRIES_AT_ONCE;
        status = elf_stream(file, offset, buffer, count * sizeof(*buffer));
        for (size_t i = 0; status == 0 && i < count; i++) {
            uint64_t number = buffer[i].info >> 32;
            if (number == 0) {
                continue;
            }
            if (number >= pending->count) {
                status = pending_extend(file, pending, number);
            }
            if (status == 0 && (pending->bits[number / 8] >> (number & 7) & 1) != 0 &&
                !binds_nothing(file->machine, (uint32_t)buffer[i].info)) {
                pending->bits[number / 8] &= (uint8_t)~(1u << (number & 7));
                status = add_reference(file, number, lazy, out);
            }
        }
        offset += count * sizeof(*buffer);
        left -= count;
    }
    free(buffer);
    return status;
}

int elf_list_references(struct elf_file *file, struct elf_references *out)
{
    struct pending pending = {0};
    uint64_t start = file->rela.offset, end = file->rela.end;
    int status = elf_prepare(file);
    if (status == 0 && file->rela.present) {
        uint64_t relative = file->relative_count;
        /* DT_RELASZ may include the PLT's relocations, which then come last. */
        if (file->plt_rela.present && end == file->plt_rela.end && file->plt_rela.offset >= start) {
            end = file->plt_rela.offset;
        }
        if (relative > (end - start) / sizeof(struct relocation)) {
            relative = (end - start) / sizeof(struct relocation);
        }
        start += relative * sizeof(struct relocation);
        status = scan_relocations(file, start, end, false, &pending, out);
    }
    if (status == 0 && file->plt_rela.present) {
        status =
            scan_relocations(file, file->plt_rela.offset, file->plt_rela.end, true, &pending, out);
    }
    free(pending.bits);
    return status;
}

void elf_references_free(struct elf_references *list)
{
    free(list->items);
    free(list->names.bytes);
    *list = (struct elf_references){0};
}

void elf_drop(struct elf_file *file)
{
    elf_rest(file);
    elf_references_free(&file->references);
    elf_let_go(&file->references_held);
    file->listed = false;
}

/* The order in which a scope is searched: only a matter of speed. */
struct order {
    size_t *turns;    /* positions in the scope, the most recent match first */
    size_t *provider; /* by version number: 1 + the position of its library; 0: none */
    size_t count;
};

static int order_make(struct elf_file *file, struct elf_file **scope, size_t count,
                      struct order *order)
{
    order->count = count;
    order->turns = calloc(count + 1, sizeof(*order->turns));
    order->provider = calloc(file->meaning_count + 1, sizeof(*order->provider));
    if (order->turns == NULL || order->provider == NULL) {
        return elf_no_memory(file);
    }
    for (size_t i = 0; i < count; i++) {
        order->turns[i] = i;
    }
    for (size_t v = 0; v < file->meaning_count; v++) {
        const char *library = file->meanings[v].library;
        for (size_t i = 0; library != NULL && i < count && order->provider[v] == 0; i++) {
            if (scope[i]->soname != NULL && strcmp(scope[i]->soname, library) == 0) {
                order->provider[v] = i + 1;
            }
        }
    }
    return 0;
}

static void order_free(struct order *order)
{
    free(order->turns);
    free(order->provider);
}

/* Whether a file of the scope defines the symbol. 1, 0 or -errno with *culprit. */
static int scope_defines(struct elf_file *file, struct elf_file **scope, struct order *order,
                         const struct elf_wanted *wanted, uint64_t *steps,
                         struct elf_file **culprit)
{
    size_t likely = wanted->version != NULL ? order->provider[wanted->version - file->meanings] : 0;
    if (likely > 0) {
        int status = elf_defines(scope[likely - 1], wanted, steps);
        if (status != 0) {
            *culprit = scope[likely - 1];
            return status;
        }
    }
    for (size_t i = 0; i < order->count; i++) {
        size_t position = order->turns[i];
        int status = elf_defines(scope[position], wanted, steps);
        if (status != 0) {
            *culprit = scope[position];
            memmove(order->turns + 1, order->turns, i * sizeof(*order->turns));
            order->turns[0] = position;
            return status;
        }
    }
    return 0;
}

/* Lists the file's references unless that has been done. */
static int hold_references(struct elf_file *file)
{
    int status;
    if (file->listed) {
        return elf_prepare(file); /* a file with a fault stays faulty */
    }
    status = elf_list_references(file, &file->references);
    if (status == 0) {
        status = elf_hold(file, &file->references_held,
                          file->references.room * sizeof(*file->references.items) +
                              file->references.names.room);
    }
    if (status < 0) {
        elf_references_free(&file->references);
    }
    file->listed = status == 0;
    return status;
}

int elf_list_missing(struct elf_file *file, struct elf_file **scope, size_t scope_count,
                     struct elf_references *out, struct elf_file **culprit)
{
    struct order order = {0};
    uint64_t steps = ELF_MAX_STEPS;
    bool old_tables = false; /* a file has no GNU hash table */
    int status;
    *culprit = file;
    for (size_t i = 0; i < scope_count; i++) {
        old_tables = old_tables || !scope[i]->gnu_hash.present;
    }
    status = hold_references(file);
    if (status == 0) {
        status = order_make(file, scope, scope_count, &order);
    }
    for (size_t i = 0; status >= 0 && i < file->references.count; i++) {
        const struct elf_reference *item = &file->references.items[i];
        const char *name = file->references.names.bytes + item->name;
        struct elf_wanted wanted = {.name = name,
                                    .length = item->length,
                                    .gnu_hash = elf_gnu_hash(name, item->length),
                                    .sysv_hash = old_tables ? elf_sysv_hash(name, item->length) : 0,
                                    .version = item->version};
        if (item->weak) {
            continue;
        }
        *culprit = file;
        status = scope_defines(file, scope, &order, &wanted, &steps, culprit);
        if (status != 0) {
            continue;
        }
        if (elf_make_room((void **)&out->items, &out->room, out->count, sizeof(*out->items)) < 0) {
            status = elf_no_memory(file);
            continue;
        }
        out->items[out->count] = *item;
        out->items[out->count].name = out->names.used;
        if (elf_text_append(&out->names, name, item->length) < 0) {
            status = elf_no_memory(file);
            continue;
        }
        out->count++;
    }
    order_free(&order);
    return status < 0 ? status : 0;
}
