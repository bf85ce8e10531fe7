# The tasks of this project; `make` alone prints them.
#
#   PYTHON=python3.12   the interpreter that the virtual environment is made with
#   VENV=.venv          where it is made
#   ARGS="-x -k pin"    passed on to pytest, or to the command that a task runs

SHELL := /bin/bash
.SHELLFLAGS := -o pipefail -c
.DEFAULT_GOAL := help
.DELETE_ON_ERROR:

PYTHON ?= python3
VENV ?= .venv
CC ?= cc
ARGS ?=

PY := $(VENV)/bin/python
PYTEST := $(PY) -m pytest
# --no-build-isolation: the build's needs are in the environment, so that a rebuild asks no registry.
INSTALL := $(PY) -m pip install --quiet --disable-pip-version-check --no-build-isolation --no-deps

SOURCES := $(wildcard cext/*.[ch] cext/*/*.[ch]) setup.py pyproject.toml $(wildcard README.md)
SOURCES += $(shell find python -type f ! -name '*.pyc' ! -name '*.so' ! -path '*.egg-info*')
C_FILES = $(shell find cext tests -name '*.[ch]')
# A list of pyproject.toml, as words for pip.
requirements = $(shell sed -n 's/^$(1) = \[\(.*\)\]$$/\1/p' pyproject.toml | tr -d ' ' | tr ',' ' ')

.PHONY: help
help: ## print the tasks
	@echo "make TASK  (PYTHON=python3.12 and ARGS='...' are passed on)"
	@sed -n 's/^\([a-z][a-z-]*\):.*## \(.*\)/\1\t\2/p' $(MAKEFILE_LIST) | \
	    while IFS=$$'\t' read -r task text; do printf '  %-14s %s\n' "$$task" "$$text"; done

# --- the environment -------------------------------------------------------------------------------

define NEED_PYTHON
import os, sys, sysconfig
version = "%d.%d" % sys.version_info[:2]
if sys.version_info < (3, 11):
    sys.exit("cudriver needs Python 3.11 or newer; %s is %s. Name another: make PYTHON=python3.12"
             % (sys.executable, version))
try:
    import ensurepip, venv
except ImportError:
    sys.exit("%s cannot make virtual environments. On Debian: apt-get install python3-venv"
             % sys.executable)
header = os.path.join(sysconfig.get_paths()["include"], "Python.h")
if not os.path.exists(header):
    sys.exit("%s is missing: the C core needs Python's headers. On Debian: apt-get install python3-dev"
             % header)
endef
export NEED_PYTHON

$(PY):
	@command -v "$(PYTHON)" >/dev/null || { \
	    echo "$(PYTHON) was not found. On Debian: apt-get install python3 python3-venv python3-dev" >&2; \
	    exit 1; }
	@"$(PYTHON)" -c "$$NEED_PYTHON"
	@command -v $(firstword $(CC)) >/dev/null || { \
	    echo "No C compiler ($(CC)). On Debian: apt-get install gcc libc6-dev" >&2; exit 1; }
	"$(PYTHON)" -m venv $(VENV)

NEEDS = $(foreach list,requires dependencies test,$(call requirements,$(list)))

$(VENV)/.requirements: pyproject.toml | $(PY)
	$(PY) -m pip install --quiet --disable-pip-version-check $(NEEDS)
	@touch $@

# For a machine without a network: ARGS="--dest FOLDER --python-version 3.13".
.PHONY: download
download: | $(PY)
	$(PY) -m pip download --quiet --disable-pip-version-check --only-binary :all: $(ARGS) $(NEEDS)

$(VENV)/.dev: $(VENV)/.requirements
	$(PY) -m pip install --quiet --disable-pip-version-check $(call requirements,dev)
	@touch $@

# What an earlier build copied must not outlive its source; the objects may.
SWEEP = find build -path '*/lib.*' -type f ! -name '*.so' -delete 2>/dev/null || true

$(VENV)/.installed: $(SOURCES) $(VENV)/.requirements
	@$(SWEEP)
	$(INSTALL) --force-reinstall .
	@touch $@

.PHONY: install
install: $(VENV)/.installed ## make .venv, build, install

.PHONY: editable
editable: $(VENV)/.requirements ## install for development: edits of Python show at once
	CUDRIVER_DEBUG=1 $(INSTALL) --editable .
	@rm -f $(VENV)/.installed

# --- running and testing ---------------------------------------------------------------------------

.PHONY: run
run: install ## run the demo, on the real driver or else the simulated one
	$(VENV)/bin/cudriver demo $(ARGS)

# A process a processor, four at most: each collects all tests. A file's tests stay together, in their order. A
# process that dies ends the run, which names its test: the tests of another would be waited for for ever.
PROCESSES = -n auto --maxprocesses=4 --dist loadfile --no-loadscope-reorder --max-worker-restart=0

.PHONY: test
test: install ## the suite on the simulated driver, without what .ci/run has steps for
	CUDRIVER_TEST_DRIVER=sim $(PYTEST) $(or $(ARGS),$(PROCESSES) -m "not apart")

.PHONY: test-gpu
test-gpu: install ## the suite on the real driver
	CUDRIVER_TEST_DRIVER=real $(PYTEST) $(ARGS)

.PHONY: golden
golden: install ## write anew what rules say, and comparisons: the diff is for review
	rm -rf tests/stack/golden
	CUDRIVER_WRITE_GOLDEN=1 $(PYTEST) tests/stack/test_rules.py tests/stack/test_report.py \
	    tests/stack/test_collect_cases.py tests/stack/test_collect_whole.py \
	    tests/stack/test_recipes.py tests/stack/test_tried.py \
	    tests/stack/test_dlopen_cases.py \
	    tests/fleet/test_compare_cases.py tests/project/test_frozen.py

.PHONY: test-peers
test-peers: install ## other libraries' tests, under `cudriver simulate`
	$(PY) -m tests.peers $(ARGS)

# Each environment is downloaded (up to 6 GB), broken, fixed and removed again; with the cache of wheels
# that is 30 GB at most. Without ARGS: those that are not done since the check or they were changed.
.PHONY: corpus
corpus: install $(VENV)/.dev ## how right the check is on real environments: docs/accuracy-tables.md
	PYTHONPATH=tests $(PY) -m corpus $(ARGS)
	$(MAKE) corpus-plans # with the data that the corpus has written

.PHONY: chaos
chaos: install $(VENV)/.dev ## random faults in real environments: ARGS="-j 4 --seeds 0-99 jax-0.12-cuda12"
	PYTHONPATH=tests $(PY) -m chaos $(ARGS)

.PHONY: corpus-plans
corpus-plans: install $(VENV)/.dev ## run the plans of proven sets as printed, and find the sets again
	PYTHONPATH=tests $(PY) -m corpus.proven $(ARGS)

.PHONY: tables
tables: install $(VENV)/.dev ## draw the releases that `cudriver plan` knows anew, and show what changed
	PYTHONPATH=tests $(PY) -m corpus.draw

.PHONY: check-newest
check-newest: install ## our declarations against the newest cuda.h of NVIDIA's wheels
	CUDRIVER_TEST_HEADERS=newest $(PYTEST) tests/project/test_abi.py $(ARGS)

.PHONY: fuzz
fuzz: ## fuzz the ELF reader (clang); ARGS=10000000: so many runs
	tests/fuzz/run.sh $(or $(ARGS),300000)

# The peers that are measured are those of the interpreter: BENCH_PYTHON=/path/to/python names one that
# has them, and the package is built for it into build/bench; nothing is downloaded, nothing installed.
BENCH_PYTHON ?=
BENCH_SITE = $(CURDIR)/build/bench/site

.PHONY: bench
ifeq ($(BENCH_PYTHON),)
bench: install ## ours beside the driver and other packages: docs/performance.md
	$(PY) -m benchmarks $(ARGS)
else
bench:
	$(BENCH_PYTHON) setup.py --quiet build --build-base build/bench --build-lib $(BENCH_SITE)
	PYTHONPATH=$(BENCH_SITE) $(BENCH_PYTHON) -m benchmarks $(ARGS)
endif

# --- sanitizers ------------------------------------------------------------------------------------
#
# The extensions and the simulated driver are built with the sanitizer into build/NAME/site, which
# PYTHONPATH puts before the installed package; the interpreter itself is the ordinary one, so the
# sanitizer's runtime is loaded before it. PYTHONMALLOC=malloc, so that every Python object is its own
# block and a read past one is seen. Leaks are not asked for: an interpreter keeps thousands of blocks
# until exit, and ours are counted by the simulated driver, by live_allocations() and, for the C parts
# alone, by the native tests, which LeakSanitizer does watch. Reports go to files, so that a child's is
# seen and fails the task; UndefinedBehaviorSanitizer's go to standard error all the same, which
# pytest must not keep then.

RUNTIME = $(shell $(CC) -print-file-name=lib$(1).so)
REPORT = $(CURDIR)/build/$(1)/report
ASAN_OPTIONS = detect_leaks=0:detect_stack_use_after_return=1:allocator_may_return_null=1
# intercept_tls_get_addr=0: where a library's thread-local block begins 16 bytes into a page, the runtime takes
# the 16 bytes before it for a header of the C library, with a size, and dies where that is nonsense.
TSAN_OPTIONS = suppressions=$(CURDIR)/tests/tsan.supp:history_size=4:report_signal_unsafe=0:intercept_tls_get_addr=0
# A test may ask for more memory than there is: malloc answers NULL then, and the sanitizer says so.
REFUSED = WARNING: AddressSanitizer failed to allocate
# NumPy's BLAS and its threads are not instrumented: one thread.
# A sanitizer runs the tests of the C parts: the core, the ELF reader, the native programs, the simulated driver. The
# check runs no C but the ELF reader; reports, documents, weights and the pytest plugin are Python; storms have targets
# of their own.
SANITIZED = not static and not slow and not apart
NOT_SANITIZED = $(foreach part,stack fleet project corpus chaos storm testing,--ignore=tests/$(part)) \
    $(patsubst %,--ignore=%,$(wildcard tests/core/test_weights_*.py tests/core/test_cli_*.py))

# $(1) name, $(2) -fsanitize=, $(3) variables for the run, $(4) what is run
define sanitize
	@$(SWEEP)
	rm -rf build/$(1)/site build/$(1)/report.*
	CUDRIVER_SANITIZE=$(2) $(INSTALL) --target build/$(1)/site .
	@status=0; \
	CUDRIVER_TEST_DRIVER=sim CUDRIVER_TEST_SANITIZER=$(1) PYTHONPATH=$(CURDIR)/build/$(1)/site \
	PYTHONMALLOC=malloc UBSAN_OPTIONS=print_stacktrace=1:log_path=$(call REPORT,$(1)) $(3) \
	    $(PY) -m $(4) $(ARGS) || status=$$?; \
	for report in build/$(1)/report.*; do \
	    [ ! -e "$$report" ] || ! grep -qv "$(REFUSED)" "$$report" || \
	        { echo "$$report:"; head -n 35 "$$report"; status=1; }; \
	done; exit $$status
endef

SANITIZED_PYTEST = pytest -p no:cacheprovider --capture=sys
# C++'s runtime, too: where Matplotlib is installed, its modules throw, which the sanitizer hooks at start.
WITH_ASAN = ASAN_OPTIONS=$(ASAN_OPTIONS):log_path=$(call REPORT,asan) \
    LD_PRELOAD="$(call RUNTIME,asan) $(shell $(CC) -print-file-name=libstdc++.so.6)"
WITH_TSAN = OPENBLAS_NUM_THREADS=1 LD_PRELOAD=$(call RUNTIME,tsan) \
    TSAN_OPTIONS=$(TSAN_OPTIONS):log_path=$(call REPORT,tsan)

.PHONY: asan
asan: $(VENV)/.requirements ## the suite with AddressSanitizer and UndefinedBehaviorSanitizer
	$(call sanitize,asan,address$(,)undefined,$(WITH_ASAN),$(SANITIZED_PYTEST) $(NOT_SANITIZED) -m "$(SANITIZED)")

.PHONY: ubsan
ubsan: $(VENV)/.requirements ## the suite with UndefinedBehaviorSanitizer alone: quicker
	$(call sanitize,ubsan,undefined,,$(SANITIZED_PYTEST) $(NOT_SANITIZED) -m "$(SANITIZED)")

.PHONY: tsan
tsan: $(VENV)/.requirements ## the tests that use threads, with ThreadSanitizer
	$(call sanitize,tsan,thread,$(WITH_TSAN),$(SANITIZED_PYTEST) $(NOT_SANITIZED) -m "$(SANITIZED) and threads")

STORM = tests.storm --seeds 0-299

.PHONY: storm
storm: install ## random sequences against a model: ARGS="--hours 2"
	$(PY) -m tests.storm $(or $(ARGS),--minutes 1)

.PHONY: storm-asan
storm-asan: $(VENV)/.requirements ## 300 random sequences of 3 threads with AddressSanitizer
	$(call sanitize,asan,address$(,)undefined,$(WITH_ASAN),$(STORM))

.PHONY: storm-tsan
storm-tsan: $(VENV)/.requirements ## the same with ThreadSanitizer
	$(call sanitize,tsan,thread,$(WITH_TSAN):halt_on_error=1,$(STORM))

, := ,

# Copies, contexts and the ELF reader. Not what runs other programs (nothing here starts one of arm64),
# nor the sweeps and loops, which take too long under emulation.
EMULATED = $(wildcard $(patsubst %,tests/%.py, \
    core/test_contexts core/test_copy \
    core/test_device_array core/test_devices elf/test_elf_mutations core/test_errors core/test_events))

.PHONY: test-aarch64
test-aarch64: ## build for aarch64 and run the suite there under qemu
	tests/aarch64/run $(EMULATED) -m "$(SANITIZED)" $(ARGS)

.PHONY: numa
numa: ## run the tests of NUMA nodes on an emulated machine with two: needs qemu-system-x86
	$(VENV)/bin/python tests/numa/run tests/core/test_numa.py $(ARGS)

.PHONY: test-wheel-aarch64
test-wheel-aarch64: $(VENV)/.dev ## the same of a wheel: WHEEL=... ROOT=..., docs/wheels.md
	UV=$(VENV)/bin/uv release/test-wheel-aarch64 $(WHEEL) $(ROOT) $(EMULATED) -m "$(SANITIZED)" $(ARGS)

# --- the code's form -------------------------------------------------------------------------------

.PHONY: lint
lint: $(VENV)/.installed $(VENV)/.dev ## clang-format, casts, ruff, mypy with the stubs, stubtest, pyright
	@status=0; \
	check() { echo "$$*" | cut -c1-100; "$$@" || status=1; }; \
	check $(VENV)/bin/clang-format --dry-run -Werror $(C_FILES); \
	check $(VENV)/bin/ruff check .; \
	check $(VENV)/bin/ruff format --check .; \
	check $(VENV)/bin/mypy; \
	CUDRIVER_LIBRARY=sim check $(PY) -m mypy.stubtest --mypy-config-file pyproject.toml \
	    $(patsubst python/cudriver/%.pyi,cudriver.%,$(wildcard python/cudriver/*.pyi)); \
	check $(PYTEST) -q tests/project/test_{casts,types}.py; \
	exit $$status

.PHONY: format
format: $(VENV)/.dev ## rewrite the sources the way that lint wants them
	$(VENV)/bin/clang-format -i $(C_FILES)
	$(VENV)/bin/ruff check --fix .
	$(VENV)/bin/ruff format .

.PHONY: debug
debug: $(VENV)/.requirements ## build unoptimised, warnings are errors, into build/debug/site
	@$(SWEEP)
	rm -rf build/debug/site
	CUDRIVER_DEBUG=1 $(INSTALL) --target build/debug/site .

PASSES = build/passes

.PHONY: passes
passes: $(VENV)/.requirements ## the core's functions that a copy passes, within bounds: ARGS=--list names them
	CUDRIVER_DEBUG=1 CFLAGS=-finstrument-functions \
	    $(PY) setup.py --quiet build --build-base $(PASSES) --build-lib $(PASSES)/site
	$(CC) -std=c11 -shared -fPIC -o $(PASSES)/hook.so tests/native/passes.c -ldl
	LD_PRELOAD=$(CURDIR)/$(PASSES)/hook.so CUDRIVER_LIBRARY=sim PYTHONPATH=$(PASSES)/site \
	    $(PY) tests/passes.py $(ARGS)

# --- the site ----------------------------------------------------------------------------------------

$(VENV)/.docs: $(VENV)/.requirements
	$(PY) -m pip install --quiet --disable-pip-version-check $(call requirements,docs)
	@touch $@

SPHINX = $(PY) -m sphinx --quiet --fail-on-warning --keep-going -c docs

.PHONY: course
course: install build/course ## the course's notebooks, opened in JupyterLab; what was changed in them stays
	$(PY) -m jupyter lab $(ARGS) build/course

build/course: | $(VENV)/.requirements
	$(PY) -m pip install --quiet --disable-pip-version-check $(call requirements,course)
	rm -rf $@.new && mkdir -p $@.new/zh
	cp docs/course/{lab.py,0*.md} $@.new && cp docs/course/lab.py docs/zh/course/0*.md $@.new/zh
	$(PY) -m jupytext --quiet --to ipynb $@.new/0*.md $@.new/zh/0*.md
	rm $@.new/{,zh/}*.md && mv $@.new $@

# Notebooks run again when the package or their helper has changed, else only those that have.
.PHONY: docs
docs: install $(VENV)/.docs ## the site in both languages, in build/docs
	@[ build/docs/index.html -nt $(VENV)/.installed ] && [ build/docs/index.html -nt docs/course/lab.py ] || \
	    rm -rf build/docs
	$(SPHINX) docs build/docs/en $(ARGS)
	$(SPHINX) -t zh docs/zh build/docs/zh $(ARGS)
	@cp docs/_templates/languages.html build/docs/index.html
	@cp docs/_templates/404.html build/docs/404.html

.PHONY: pictures
pictures: install ## draw the README's pictures anew
	$(PY) -m benchmarks.chart docs/images/rates.svg
	$(PY) -m benchmarks.chart docs/images/rates-zh.svg zh
	PYTHONPATH=tests $(PY) -m model_machine picture docs/images/check.svg en
	PYTHONPATH=tests $(PY) -m model_machine picture docs/images/check-zh.svg zh

# --- releases --------------------------------------------------------------------------------------

.PHONY: sdist
sdist: $(VENV)/.requirements ## a source archive, in dist/
	$(PY) release/sdist

.PHONY: wheels
wheels: ## wheels for x86-64 and aarch64, in dist/: docs/wheels.md
	release/wheels $(ARGS)

.PHONY: release-check
release-check: ## whether this commit can be released: built twice from a clean clone, tested, into dist/
	release/check $(or $(ARGS),$(PYTHON))

.PHONY: clean
clean: ## remove what was built, and .venv
	rm -rf build dist .venv .mypy_cache .ruff_cache .pytest_cache .hypothesis python/*.egg-info
	rm -f docs/reference/rules/[A-Z]*.md docs/zh/reference/rules/[A-Z]*.md docs/zh/course/lab.py
	find . -name __pycache__ -type d -not -path './.git/*' -prune -exec rm -rf {} +
	find python cext -name '*.so' -delete
