# Everything lives in .venv; the binaries of the test servers in $XDG_CACHE_HOME/headrace (default ~/.cache/headrace).
# Needs python3 (3.11+), make and gcc, and nothing else.
PYTHON ?= python3
VENV   := .venv
BIN    := $(VENV)/bin
PY     := $(BIN)/python
PIP    := $(PY) -m pip --disable-pip-version-check install --quiet
NAME   ?=
ARGS   ?=
SOAK   ?=

# The tests start some thousand processes: where no bytecode may be kept, each compiles all of Headrace again.
unexport PYTHONDONTWRITEBYTECODE

# One stamp for each set of packages: a change in pyproject.toml installs anew, nothing else does.
RUN_STAMP := $(VENV)/.installed-run
DEV_STAMP := $(VENV)/.installed-dev

# Many tests hold real processes to real times, side by side on few cores. What fails is named and run once more, alone:
# what fails then has failed.
AGAIN := -n 0 -p no:randomly --last-failed --last-failed-no-failures none
TWICE = $(PY) -m pytest $(1) $(ARGS) || { \
	  echo "── failed beside the others, and run once more, alone ──"; $(PY) -m pytest $(1) $(ARGS) $(AGAIN); }

.DEFAULT_GOAL := help
.PHONY: help setup java servers archive demo test long check format audit bench chaos clean

help:  ## show this list
	@echo "make TARGET, where TARGET is one of"
	@awk -F ':.*## ' '/^[a-z]+:.*## / { printf "  %-9s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

setup: $(DEV_STAMP) java servers archive  ## make .venv with everything for development, and fetch the test servers

java:  ## find Java 17 or 21 for Spark, or install it where apt can
	@sh tools/java.sh

servers: $(DEV_STAMP)  ## fetch or build the test servers (Redis 6.2, 7.0, 8.10, Valkey 9.1) into the cache
	@$(PY) -m tests.support.servers fetch

archive: $(DEV_STAMP) java  ## load Spark's classes once for all the JVMs of the tests
	@$(PY) -m tests.support.spark_archive

demo: $(RUN_STAMP) java  ## 20,000 payments, three workers, one killed, one paused; then tables and a report
	@$(PY) -m headrace.demo $(ARGS)

test: $(DEV_STAMP) java servers archive  ## run the tests; ARGS="-k lease --servers redis8" narrows them
	$(call TWICE,-n 8 --dist loadgroup -m "not long and not jvm")
	$(call TWICE,-n 2 --dist loadgroup -p no:randomly -m "jvm and not long" tests/spark)

long: $(DEV_STAMP) java servers archive  ## tests that take long: the fault programme on sentinels and clusters, topologies on every server
	$(PY) -m pytest -m long $(ARGS)
	HEADRACE_WIDE=1 $(PY) -m pytest -n 3 --dist loadgroup tests/topology $(ARGS)

check: $(DEV_STAMP)  ## lint, format, types, layers
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

format: $(DEV_STAMP)  ## let ruff mend what it can
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

audit: $(DEV_STAMP)  ## the runtime dependencies against known advisories; needs pip-audit and a network to be whole
	@$(PY) -m tools.audit

bench: $(DEV_STAMP) servers  ## measure: make bench NAME=worker
	@$(PY) -m bench $(NAME) $(ARGS)

chaos: $(DEV_STAMP) servers  ## the fault programme: every row once (about 20 minutes), or SOAK=2h of row 31, or NAME=kill
	@$(PY) -m chaos $(if $(SOAK),soak --length $(SOAK),$(or $(NAME),all)) $(ARGS)

clean:  ## remove .venv and what tools left behind; the servers in the cache stay
	rm -rf $(VENV) build dist .pytest_cache .mypy_cache .ruff_cache .import_linter_cache .hypothesis
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

$(PY):
	@$(PYTHON) -c 'import sys; sys.exit("headrace needs Python 3.11 or newer, not " + sys.version.split()[0] + \
	  ": make PYTHON=python3.12 ...") if sys.version_info < (3, 11) else None'
	@echo "making $(VENV)"
	@$(PYTHON) -m venv $(VENV)

$(RUN_STAMP): pyproject.toml | $(PY)
	@echo "installing headrace[embedded,cli,spark] into $(VENV)"
	@$(PIP) -e '.[embedded,cli,spark]'
	@touch $@

$(DEV_STAMP): pyproject.toml | $(PY)
	@echo "installing headrace[embedded,cli,spark,dev] into $(VENV)"
	@$(PIP) -e '.[embedded,cli,spark,dev]'
	@touch $@ $(RUN_STAMP)
