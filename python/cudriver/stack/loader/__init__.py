"""The dynamic loader (glibc's ld.so), told from outside: what one process maps, and what fails."""
