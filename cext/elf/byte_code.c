/* The objects that marshal wrote, as Python/marshal.c reads them. See byte_code.h. */
#include "byte_code.h"

#include <stdbool.h>

enum {
    MAX_DEPTH = 1000, /* marshal's own is 2000 */
    FLAG_REF = 0x80,
    CODE_NUMBERS = 5 * 4, /* of arguments in three kinds, the stack's size, flags */
    CODE_OBJECTS = 8,     /* before the first line's number */
    CODE_LAST = 2,        /* after it */
};

struct walk {
    const unsigned char *at, *end;
    const char *cut; /* what is said of the end that was met */
    bool unknown;
};

static bool walk_goes_on(const struct walk *walk)
{
    return walk->cut == NULL && !walk->unknown;
}

static void walk_skip(struct walk *walk, size_t size)
{
    if (size > (size_t)(walk->end - walk->at)) {
        walk->cut = "marshal data too short";
        return;
    }
    walk->at += size;
}

/* A number of 1 or 4 bytes; 0 where it is not all there. */
static size_t walk_number(struct walk *walk, size_t size)
{
    const unsigned char *at = walk->at;
    size_t value = 0;

    if (size == 1 && at == walk->end) {
        walk->cut = "EOF read where not expected";
        return 0;
    }
    walk_skip(walk, size);
    for (size_t i = size; walk_goes_on(walk) && i-- > 0;) {
        value = value << 8 | at[i];
    }
    return value;
}

static void walk_object(struct walk *walk, int depth);

static void walk_objects(struct walk *walk, size_t count, int depth)
{
    for (size_t i = 0; i < count && walk_goes_on(walk); i++) {
        walk_object(walk, depth + 1);
    }
}

static void walk_code(struct walk *walk, int depth)
{
    walk_skip(walk, CODE_NUMBERS);
    walk_objects(walk, CODE_OBJECTS, depth);
    if (walk_goes_on(walk)) {
        walk_skip(walk, 4);
    }
    walk_objects(walk, CODE_LAST, depth);
}

/* An integer of any size: the number of its digits, negative for what is below zero. */
static void walk_digits(struct walk *walk)
{
    size_t count = walk_number(walk, 4);
    walk_skip(walk, 2 * (count < 1U << 31 ? count : (1ULL << 32) - count));
}

static void walk_object(struct walk *walk, int depth)
{
    if (walk->at == walk->end) {
        walk->cut = "EOF read where object expected";
        return;
    }
    if (depth > MAX_DEPTH) {
        walk->unknown = true;
        return;
    }
    switch (*walk->at++ & ~FLAG_REF) {
    case 'N':
    case 'S':
    case '.':
    case 'F':
    case 'T': /* None, ..., False, True */
        break;
    case 'i':
    case 'r': /* int, one that was met before */
        walk_skip(walk, 4);
        break;
    case 'g': /* float */
        walk_skip(walk, 8);
        break;
    case 'y': /* complex */
        walk_skip(walk, 16);
        break;
    case 'l':
        walk_digits(walk);
        break;
    case 'z':
    case 'Z': /* short texts */
        walk_skip(walk, walk_number(walk, 1));
        break;
    case 's':
    case 'a':
    case 'A':
    case 't':
    case 'u': /* bytes, texts */
        walk_skip(walk, walk_number(walk, 4));
        break;
    case ')': /* a short tuple */
        walk_objects(walk, walk_number(walk, 1), depth);
        break;
    case '(':
    case '[':
    case '<':
    case '>': /* tuple, list, sets */
        walk_objects(walk, walk_number(walk, 4), depth);
        break;
    case ':': /* slice */
        walk_objects(walk, 3, depth);
        break;
    case 'c':
        walk_code(walk, depth);
        break;
    default:
        walk->unknown = true;
    }
}

const char *elf_byte_code_cut(const unsigned char *bytes, size_t size)
{
    struct walk walk = {.at = bytes, .end = bytes + size};

    walk_object(&walk, 0);
    return walk.cut;
}
