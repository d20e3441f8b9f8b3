# `make demo` and `make test` need Python >= 3.10 (`PYTHON=` names another) and nothing else; a C++ compiler, where
# there is one, adds the compiled kernels. The first run creates the environment, later ones reuse it.

PYTHON ?= python3
# The stack: lockfiles/requirements-$(STACK).txt, in an environment of its own.
STACK ?= cpu
VENV ?= $(if $(filter cpu,$(STACK)),.venv,.venv-$(STACK))
# Test processes at once, more than cores, as many tests wait for a process that they started. What else to tell pytest:
# make test PYTEST_ARGS="-k resolver"
JOBS ?= $(shell $(PYTHON) -c "import os; print(os.cpu_count() * 3 // 2)")
PYTEST_ARGS ?=

REQUIREMENTS := lockfiles/requirements-$(STACK).txt
RUN := $(VENV)/bin/python
PIP := $(RUN) -m pip --disable-pip-version-check --quiet
INSTALLED := $(VENV)/.installed
READY := $(VENV)/.ready

.PHONY: help env demo test test-matrix compat compat-packages compat-transformers compat-diffusers compat-flaggems test-changed coverage test-gpu lint format hooks dist bench lock lock-kernels reference notebooks docs docs-serve clean

help:
	@echo 'make demo      environment, install, and the main job on example kernels'
	@echo 'make test      environment, install, lint, and the whole suite'
	@echo 'make compat    what code for the existing client meets, there and here; writes docs/migrating.md'
	@echo 'make compat-packages  what other packages use of this one, done here'
	@echo 'make compat-transformers  every marked model of transformers, with kernels and without (hours on a busy machine)'
	@echo 'make compat-diffusers  what diffusers does with kernels'
	@echo 'make compat-flaggems  how many functions of FlagGems vendor folders find their operators'
	@echo 'make test-changed  lint, and the tests that concern what changed since main'
	@echo 'make test-matrix  the tests with the oldest and the newest versions that are allowed (needs uv; ROWS= names some)'
	@echo 'make coverage  the whole suite, with its coverage'
	@echo 'make test-gpu  the tests that need an NVIDIA GPU (STACK=cuda)'
	@echo 'make lint      ruff and mypy'
	@echo 'make format    let ruff rewrite what it can'
	@echo 'make hooks     run the linters before each commit (pre-commit)'
	@echo 'make dist      the sdist and the wheel, tried in a fresh environment'
	@echo 'make bench     side by side with other clients; writes docs/benchmarks.md'
	@echo 'make docs      the documentation as a site, in build/site; fails at a broken link'
	@echo 'make docs-serve  the same at http://127.0.0.1:8000, built again after each change'
	@echo 'make reference write the pages that come from the code, after a change to commands, settings, errors or keys'
	@echo 'make notebooks run docs/notebooks, and write their outputs'
	@echo 'make lock      pin the newest versions of the requirements'
	@echo 'make lock-kernels  pin the kernel set of GPU runs after a change to its sources'
	@echo 'make clean     remove what the above created'

env: $(READY)

# Each stamp carries the time of the step it stands for: a changed lock file installs again, an unchanged one costs
# nothing. `--clear`, as the environment may be half made or of another Python.
$(INSTALLED): $(REQUIREMENTS)
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 10))' \
	  || { echo "$(PYTHON) is not Python 3.10 or newer; name one that is: make PYTHON=python3.13" >&2; exit 1; }
	@echo 'Creating $(VENV) from $(REQUIREMENTS), once; Torch is large, this takes a few minutes.'
	@$(PYTHON) -m venv --clear $(VENV) \
	  || { echo 'Python has no venv module here; Debian and Ubuntu have it in python3-venv.' >&2; exit 1; }
	@$(PIP) install --requirement $(REQUIREMENTS)
	@touch $@

$(READY): $(INSTALLED) pyproject.toml src/kernels/_version.py
	@$(PIP) install --no-deps --no-build-isolation --editable .
	@touch $@

demo: $(READY)
	@$(RUN) examples/demo.py

# Bytecode once, not in each process that a test starts, also where the environment says that none is written.
test: lint
	@$(RUN) -m compileall -q src tests
	$(RUN) -m pytest -n $(JOBS) -m 'not gpu' $(PYTEST_ARGS)

# Each makes an environment of its own, where it needs one, and writes its table into docs/compatibility.md.
compat: $(READY)
	PYTHONPATH=tests/fixtures $(RUN) compat/existing_client.py

compat-packages: $(READY)
	$(RUN) compat/dependents.py --wheels .venv-wheels
	$(RUN) compat/call_sites.py --wheels .venv-wheels

compat-transformers: $(READY)
	$(RUN) compat/transformers_models.py --retry

compat-diffusers: $(READY)
	$(RUN) compat/diffusers_models.py

compat-flaggems: $(READY)
	$(RUN) compat/flaggems.py --wheels .venv-wheels

coverage: $(READY)
	@$(RUN) -m compileall -q src tests
	$(RUN) -m pytest -n $(JOBS) -m 'not gpu' --cov=kernels --cov-report=term:skip-covered --cov-fail-under=90 $(PYTEST_ARGS)

test-changed: lint
	@tests=$$(.ci/changed-tests); test -n "$$tests" || { echo 'No test concerns what changed since main.'; exit 0; }; \
	  echo "$$tests"; $(RUN) -m pytest -n $(JOBS) -m 'not gpu' $$tests $(PYTEST_ARGS)

# An environment a row, several of them with a Torch of some GB; the results go into docs/compatibility.md.
test-matrix: $(READY)
	$(RUN) compat/matrix.py --write $(ROWS)

test-gpu: $(READY)
	$(RUN) -m pytest -m gpu $(PYTEST_ARGS)

lint: $(READY)
	$(RUN) -m ruff check .
	$(RUN) -m ruff format --check .
	$(RUN) -m mypy

format: $(READY)
	$(RUN) -m ruff check --fix .
	$(RUN) -m ruff format .

hooks: $(READY)
	$(RUN) -m pre_commit install --hook-type pre-commit --hook-type commit-msg

dist: $(READY)
	@rm -rf dist
	$(RUN) -m hatchling build -d dist
	@PYTHON=$(PYTHON) .ci/check-wheel

bench: $(READY)
	$(RUN) benchmarks/client.py
	$(RUN) benchmarks/growth.py
	$(RUN) benchmarks/mirror.py

# One resolution for every supported Python and system, without what only published kernels need. The CPU stack is the CUDA one without NVIDIA's libraries, so
# that any build of the same Torch serves it; a plain CPU build needs none of them, the default one asks for its own.
lock: $(READY)
	@$(PIP) install uv
	@$(VENV)/bin/uv pip compile --quiet --upgrade --universal --python-version 3.10 --no-annotate --custom-compile-command 'make lock' \
	  $(foreach extra,torch serve build bench mirror sign docs dev,--extra $(extra)) pyproject.toml lockfiles/requirements.in --output-file lockfiles/requirements-cuda.txt
	@grep -Ev '^(cuda|nvidia)-' lockfiles/requirements-cuda.txt > lockfiles/requirements-cpu.txt

# The kernels that GPU runs use: the commits that follow from the sources in examples/kernels.
lock-kernels: $(READY)
	@PYTHONPATH=tests/fixtures $(RUN) tests/fixtures/pinned_kernels.py

reference: $(READY)
	@$(RUN) book/session.py
	@$(RUN) book/write_reference.py

# With the examples that `make demo` builds; where a run says the same as the committed outputs, these stay.
notebooks: $(READY)
	@$(RUN) book/notebooks.py

# Strict: a link, an anchor or a public name that is not there is an error; with --quiet, MkDocs would not
# count it. The variable silences an announcement of MkDocs 2.
docs: $(READY)
	NO_MKDOCS_2_WARNING=1 $(RUN) -m mkdocs build --strict
	@echo 'The site is in build/site; open build/site/index.html.'

docs-serve: $(READY)
	NO_MKDOCS_2_WARNING=1 $(RUN) -m mkdocs serve --watch src --watch book

clean:
	rm -rf $(VENV) .venv-* dist build htmlcov .coverage .coverage.* .pytest_cache .mypy_cache .ruff_cache .hypothesis
	find examples/kernels -type d -name build -prune -exec rm -rf {} +
	find . -type d -name __pycache__ -not -path './.venv*' -prune -exec rm -rf {} +
