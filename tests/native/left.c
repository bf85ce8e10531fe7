/* `left ROOT` prints what hostmem_left() says of the system files below ROOT. */
#include <stdio.h>

#include "hostmem/private.h"

int main(int count, char **arguments)
{
    printf("%zu\n", hostmem_left(count > 1 ? arguments[1] : ""));
    return 0;
}
