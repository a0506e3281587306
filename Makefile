# Every target makes what it needs: a virtual environment from pyproject.toml, with nothing but a package index.
# PYTHON picks the interpreter (3.11 to 3.13); ARGS goes to the command behind the target.
SUPPORTED := import sys; sys.exit(not (3, 11) <= sys.version_info[:2] <= (3, 13))
PYTHON ?= $(shell for p in python3 python3.13 python3.12 python3.11; do \
	"$$p" -c '$(SUPPORTED)' 2>/dev/null && { echo "$$p"; break; }; done)
VENV ?= .venv
BENCH_VENV ?= .venv-bench
WORKERS ?= 2
ARGS ?=

.PHONY: setup demo notebooks docs test test-all replay bench lint clean

setup: $(VENV)/.ready

demo: $(VENV)/.ready
	$(VENV)/bin/python -m qdtrace demo $(ARGS)

# the sources are Python files; what they compute and draw goes to build/notebooks
notebooks: $(patsubst notebooks/%.py,build/notebooks/%.ipynb,$(wildcard notebooks/*.py))

build/notebooks/%.ipynb: notebooks/%.py $(VENV)/.ready
	@mkdir -p $(@D)
	$(VENV)/bin/python -m jupytext --to ipynb --execute --output $@ $<

# a site in build/site, links checked; shows notebooks with pictures where `make notebooks` ran them before
docs: $(VENV)/.ready
	NO_MKDOCS_2_WARNING=1 $(VENV)/bin/python -m mkdocs build --strict --quiet

# a sample of what `make test-all` runs, with XLA's quickest compilation: HACKING.md
test: $(VENV)/.ready
	$(VENV)/bin/python -m pytest -n $(WORKERS) --dist loadscope $(ARGS)

test-all: $(VENV)/.ready
	$(VENV)/bin/python -m pytest -n $(WORKERS) --dist loadscope -m "not slow" $(ARGS)

# whether programs are the same text at every stage as in commit REF; ARGS is a part of their names
replay: $(VENV)/.ready
	$(VENV)/bin/python -m tests.replay $(if $(REF),--ref $(REF)) $(ARGS)

lint: $(VENV)/.ready
	$(VENV)/bin/ruff check
	$(VENV)/bin/lint-imports
	$(VENV)/bin/basedpyright
	$(VENV)/bin/python -m pytest -q -n 0 -m slow tests/types

bench: $(BENCH_VENV)/.ready
	$(BENCH_VENV)/bin/python -m benchmarks.run $(ARGS)

clean:
	rm -rf $(VENV) $(BENCH_VENV) build dist

$(VENV)/.ready: EXTRAS = test,libs,dev,demo,notebooks,docs
$(BENCH_VENV)/.ready: EXTRAS = bench
%/.ready: pyproject.toml
	@test -n "$(PYTHON)" || { echo "needs Python 3.11, 3.12 or 3.13 on PATH (or PYTHON=/path/to/one)"; exit 1; }
	test -x $*/bin/python || $(PYTHON) -m venv $*
	$*/bin/python -m pip install -qq --upgrade --upgrade-strategy only-if-needed -e '.[$(EXTRAS)]'
	@touch $@
