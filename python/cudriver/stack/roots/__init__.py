"""One file system, seen from outside: what lies below a folder as if that were "/"."""
