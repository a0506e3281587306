# Every target installs what it needs, and no more, into a virtual environment: extras of pyproject.toml, from a package
# index, by uv of PATH or put into that environment first (UV= takes pip). PYTHON picks the interpreter (3.11 to 3.13); ARGS
# goes to the command behind the target.
SUPPORTED := import sys; sys.exit(not (3, 11) <= sys.version_info[:2] <= (3, 13))
PYTHON ?= $(shell for p in python3 python3.13 python3.12 python3.11; do \
	"$$p" -c '$(SUPPORTED)' 2>/dev/null && { echo "$$p"; break; }; done)
VENV ?= .venv
BENCH_VENV ?= .venv-bench
ifeq ($(origin UV),undefined)
UV := $(or $(shell command -v uv),fetched)
endif
WORKERS ?= 2
ARGS ?=
PORT ?= 8000

.PHONY: setup demo notebooks docs serve test test-all aarch64 replay bench lint clean

# what all targets but bench need
setup: $(VENV)/.has-setup

demo: $(VENV)/.has-demo
	$(VENV)/bin/python -m qdtrace demo $(ARGS)

# runs where torch is installed
NEEDS_TORCH = $(if $(shell $(VENV)/bin/python -c 'import torch; print(1)' 2>/dev/null),,notebooks/throwing.py)

# the sources are Python files; what they compute and draw goes to build/notebooks
notebooks: $(patsubst notebooks/%.py,build/notebooks/%.ipynb,$(filter-out $(NEEDS_TORCH),$(wildcard notebooks/*.py)))

build/notebooks/%.ipynb: notebooks/%.py $(VENV)/.has-notebooks
	@mkdir -p $(@D)
	$(VENV)/bin/python -m jupytext --to ipynb --execute --output $@ $<

# a site in build/site, links checked; shows notebooks with pictures where `make notebooks` ran them before
docs: $(VENV)/.has-docs
	NO_MKDOCS_2_WARNING=1 $(VENV)/bin/python -m mkdocs build --strict --quiet

# shows it at http://localhost:8000, where its search works (PORT takes another)
serve: docs
	$(VENV)/bin/python -m http.server --directory build/site $(PORT)

# a sample of what `make test-all` runs, with XLA's quickest compilation: HACKING.md
test: $(VENV)/.has-test
	$(VENV)/bin/python -m pytest -n $(WORKERS) --dist loadscope $(ARGS)

test-all: $(VENV)/.has-setup
	$(VENV)/bin/python -m pytest -n $(WORKERS) --dist loadscope -m "not slow" $(ARGS)

# tests under emulation, on Debian: make aarch64 ARGS=tests/maths
aarch64: $(VENV)/.has-test
	.ci/aarch64 $(ARGS)

# whether programs are the same text at every stage as in commit REF; ARGS is a part of their names
replay: $(VENV)/.has-test
	$(VENV)/bin/python -m tests.replay $(if $(REF),--ref $(REF)) $(ARGS)

lint: $(VENV)/.has-setup
	$(VENV)/bin/ruff check
	$(VENV)/bin/lint-imports
	$(VENV)/bin/basedpyright
	$(VENV)/bin/python -m pytest -q -n 0 -m slow tests/types

bench: $(BENCH_VENV)/.has-bench
	$(BENCH_VENV)/bin/python -m benchmarks.run $(ARGS)

clean:
	rm -rf $(VENV) $(BENCH_VENV) build dist

$(VENV)/.has-demo: EXTRAS = demo
$(VENV)/.has-notebooks: EXTRAS = notebooks
$(VENV)/.has-docs: EXTRAS = docs
# tests of the site and of types are skipped
$(VENV)/.has-test: EXTRAS = test,libs,notebooks
$(VENV)/.has-setup: EXTRAS = test,libs,notebooks,docs,dev
$(BENCH_VENV)/.has-bench: EXTRAS = bench

FOUND = $$(command -v $(PYTHON))
ifeq ($(UV),)
MADE = $(FOUND) -m venv $(@D)
PUT = $(@D)/bin/python -m pip install -qq --no-compile
HOW = pip, which takes a minute or two
else ifeq ($(UV),fetched)
# by pip, which takes a minute or two, where uv is not to be had or does not reach the index
MADE = $(FOUND) -m venv $(@D); $(@D)/bin/python -m pip install -qq --no-compile uv || true
PUT = $(@D)/bin/uv pip install -q --python $(@D)/bin/python -e ".[$(EXTRAS)]" || $(@D)/bin/python -m pip install -qq --no-compile
HOW = uv, which is put there first
else
MADE = $(UV) venv -q --seed --allow-existing --python $(FOUND) $(@D)
PUT = $(UV) pip install -q --python $(@D)/bin/python
HOW = uv
endif

# one at a time, also under `make -j`; what an earlier target has installed stays
define install
@test -n "$(PYTHON)" || { echo "needs Python 3.11, 3.12 or 3.13 on PATH (or PYTHON=/path/to/one)"; exit 1; }
@echo "$(@D): installs this package with $(EXTRAS), by $(HOW)"
@flock pyproject.toml sh -ec 'test -x $(@D)/bin/python || { $(MADE); }; $(PUT) -e ".[$(EXTRAS)]"'
@touch $@
endef

$(VENV)/.has-%: pyproject.toml
	$(install)

$(BENCH_VENV)/.has-%: pyproject.toml
	$(install)

# all extras are those of each target, too
$(VENV)/.has-setup: pyproject.toml
	$(install)
	@touch $(patsubst %,$(VENV)/.has-%,demo notebooks docs test)
