# make demo   the main job on the local cloud, from nothing to nothing
# make test   everything but the soak and the clients, against the built wheel
# Each sets up its own environment; all they need is Python 3.11 to 3.14, make and PyPI.

SHELL := /bin/bash
# Otherwise each process compiles all modules that it imports, and pytest rewrites all tests.
unexport PYTHONDONTWRITEBYTECODE
# The oldest first: most TensorFlows of the machine images have wheels for it. A name on PATH may be
# a shim of pyenv's that leads nowhere, or a Python of Debian's without ensurepip.
PYTHON ?= $(firstword $(shell for name in python3.11 python3.12 python3.13 python3.14; do \
	$$name -c "import ensurepip" 2>/dev/null && echo $$name; done; true) python3)
VENV := .venv
BIN := $(VENV)/bin
SOURCES := $(shell find tpuctl templates -type f -not -name '*.pyc' 2>/dev/null) pyproject.toml README.md Makefile \
	docs/reference/tpuctl.1

.PHONY: help demo test methods soak again clients suites check unit live bench size docs site release lock clean

help:
	@sed -n '1,3s/^# //p' Makefile
	@echo "make check   format, lint, types, layers, names"
	@echo "make unit    the quick tests alone; T=test_name one test or file, T=word all with it in their names"
	@echo "make soak    whole runs, and more of what make test samples"
	@echo "make again   once more, one by one, what make test or make soak saw fail"
	@echo "make clients programs of others against the local cloud: SkyPilot, Ray, Ansible, …"
	@echo "make suites  tests of Google's clients against the local cloud: a board in docs/reference/suites.md"
	@echo "make live    the flow tests on Google Cloud, in a project of yours (TPUCTL_LIVE_PROJECT)"
	@echo "make bench   what is measured: ratios, printed and in docs/benchmarks.md"
	@echo "make size    lines by feature, of the program and of its tests"
	@echo "make docs    the generated reference pages"
	@echo "make site    the documentation as a site, in build/site"
	@echo "make release sdist and wheel in build/release, built, installed, and tried as for a release"
	@echo "make lock    new pins for requirements/*.lock and the templates"

$(VENV)/.ready: requirements/dev.lock
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' \
	  || { echo "tpuctl needs Python 3.11 or newer; name one with make PYTHON=/path/to/python3.11" >&2; exit 1; }
	@echo "Setting up $(VENV) with $$($(PYTHON) --version): about a minute the first time"
	@$(PYTHON) -m venv --clear $(VENV)
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check --require-hashes -r requirements/dev.lock
	@touch $@

# The wheel that users get is what runs below, so that packaging mistakes fail early. The tests and
# their programs import `tests` from here: the folder comes after the installed packages, so that
# `tpuctl` remains the wheel's.
$(VENV)/.installed: $(VENV)/.ready $(SOURCES)
	@rm -rf build/dist
	@$(BIN)/python -m pip wheel --quiet --disable-pip-version-check --no-deps --no-build-isolation --wheel-dir build/dist .
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check --force-reinstall --no-deps build/dist/tpuctl-*.whl
	@echo "$(CURDIR)" > "$$($(BIN)/python -c 'import sysconfig; print(sysconfig.get_path("purelib"))')/tests.pth"
	@touch $@

demo: $(VENV)/.installed
	@$(BIN)/python tests/demo.py

# Several processes, whole files each: what tests of one file share is made once. One more than there
# are cores, since tests of machines often wait, and two more for the soak, whose tests wait longer.
PARALLEL = -n $(shell $(BIN)/python -c "import os; print(min(4, os.cpu_count() + $(1)))") --dist loadfile
test: check
	$(BIN)/pytest -m "not soak and not clients" --durations 25 $(call PARALLEL,1)

# T is the name of a test or of a file of tests, or a part of the names of tests and their cases.
NAMED = $(if $(filter test_%,$(T)),$(shell \
	grep -rlE --include='test_*.py' '^(async )?def $(T)\b' tests; find tests -name '$(T).py'))
# Unit tests do not wait, and each process imports and collects all of them.
PER_CORE = -n $(shell $(BIN)/python -c "import os; print(min(4, os.cpu_count()))") --dist loadfile
PICKED = -x -q -p no:randomly -k '$(T)'
unit: $(VENV)/.installed
	@$(BIN)/pytest -m "not soak and not clients" $(if $(T),$(PICKED),$(PER_CORE)) \
	  $(or $(NAMED),$(if $(T),tests,tests/unit)) || { code=$$?; \
	  [ $$code != 5 ] || echo "No test of make test, and no case, has $(T) in its name; make soak has more" >&2; \
	  exit $$code; }

# The methods that the tests call, and the commands of gcloud that they run, for the reference.
methods: $(VENV)/.installed
	TPUCTL_WRITE_METHODS=1 $(BIN)/pytest -m "not soak and not clients" $(call PARALLEL,1)
	TPUCTL_WRITE_METHODS=1 $(BIN)/pytest -m soak $(call PARALLEL,1) tests/gcloud tests/emulator/test_request_fields.py
	$(BIN)/python docs/generate.py

# With MINUTES, tests that have not started by then are left out, and named.
soak: $(VENV)/.installed
	$(BIN)/pytest -m soak --durations 60 --timeout 1800 $(call PARALLEL,2) $(if $(MINUTES),--minutes $(MINUTES))

# What failed beside others, alone: a defect fails again, and what the load of the machine did is
# printed as such. It is work to do, but no reason to hold back a change.
again: check
	@echo "Once more, one by one: what failed. What passes now depends on other tests or their load" >&2
	$(BIN)/pytest -v --exitfirst --last-failed --last-failed-no-failures none --timeout 1800

# Their environments are made in the user's cache, some 3 GB of them, and kept. In one process:
# SkyPilot has one port for its server.
clients: $(VENV)/.installed
	$(BIN)/pytest -m clients --durations 25 tests/clients

# SUITES names some, which are then printed only.
suites: $(VENV)/.installed
	@$(BIN)/python -m tests.suites.run $(SUITES)

check: $(VENV)/.installed
	$(BIN)/ruff format --check --quiet .
	$(BIN)/ruff check --quiet .
	$(BIN)/mypy
	$(BIN)/lint-imports --no-cache
	$(BIN)/python -m tests.support.vague_names

live: $(VENV)/.installed
	@$(BIN)/python tests/live/run.py

bench: $(VENV)/.installed
	@TPUCTL_BENCH_SMALLEST=$(SMALLEST) $(BIN)/python tests/benchmarks/run.py $(ONLY)

size: $(VENV)/.ready
	@$(BIN)/python -m tests.support.size

docs: $(VENV)/.installed
	$(BIN)/python docs/generate.py

site: $(VENV)/.ready
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --quiet
	@echo "The documentation is in build/site: open index.html, or for its search serve the folder:"
	@echo "    $(BIN)/python -m http.server --bind 127.0.0.1 --directory build/site"

# TAG is the tag of the release, such as v0.1.0.
release: $(VENV)/.ready
	$(BIN)/python .ci/release.py $(if $(TAG),--tag $(TAG))

LOCK := $(abspath $(BIN))/uv pip compile --universal --python-version 3.11 --generate-hashes --no-header --quiet
lock: $(VENV)/.ready
	$(LOCK) pyproject.toml -o requirements/runtime.lock
	$(LOCK) pyproject.toml --group dev -c requirements/runtime.lock -o requirements/dev.lock
	for name in ansible libcloud libraries ray skypilot storage_libraries suites; do \
	  $(LOCK) requirements/clients/$$name.in -o requirements/clients/$$name.lock || exit; done
	for name in node node-suites; do \
	  npm install --package-lock-only --ignore-scripts --prefix requirements/clients/$$name || exit; done
	$(LOCK) requirements/beam.in -o requirements/beam.lock
	$(LOCK) requirements/jax.in -o requirements/jax.lock
	$(LOCK) requirements/jupyter.in -o requirements/jupyter.lock
	$(LOCK) requirements/tpu-info.in -o requirements/tpu-info.lock
	$(LOCK) requirements/wikipedia.in -o requirements/wikipedia.lock
	$(MAKE) -C requirements/benchmarks LOCK='$(LOCK)'
	for name in jax torch; do \
	  (cd templates/jobs/$$name && $(abspath $(BIN))/uv pip compile pyproject.toml --python-version 3.12 --universal \
	    --generate-hashes --no-annotate --upgrade --quiet -o requirements.txt) || exit; done

clean:
	rm -rf build $(VENV)
