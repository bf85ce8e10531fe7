#!/bin/sh
# Fuzz the readers of ELF and of RECORD: run.sh [EXECUTIONS] (default 1000000). Needs clang with libFuzzer, and gcc.
# Corpus and findings stay in build/fuzz. Exit code 0: nothing found.
set -eu
cd "$(dirname "$0")/../.."
sources=$(grep -L '"python.h"' cext/elf/*.c)
executions=${1:-1000000}
out=build/fuzz
mkdir -p "$out/corpus" "$out/findings"
python3 tests/fuzz/make_seeds.py "$out/seeds" >"$out/seeds.txt"
${CLANG:-clang} -std=c11 -g -O2 -Wall -Wextra -Werror \
    -fsanitize=fuzzer,address,undefined -fno-sanitize-recover=all -fno-omit-frame-pointer \
    -iquote cext $sources tests/fuzz/fuzz_elf.c -o "$out/fuzz_elf"
exec nice "$out/fuzz_elf" -runs="$executions" -max_len=8192 -timeout=10 -rss_limit_mb=2048 \
    -print_final_stats=1 -verbosity=1 -artifact_prefix="$out/findings/" "$out/corpus" "$out/seeds"
