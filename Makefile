# Everything a person or CI does here. Needs make and python3 3.11 or later; the rest is fetched into .venv.
# Stamp files under the virtual environments make a repeated call cheap.

PYTHON ?= python3
INPUT ?= examples/letter.txt
CHAOS_S ?= 300

VENV := .venv
BIN := $(VENV)/bin
INSTALLED := $(VENV)/.installed
WHEEL_VENV := .venv-wheel
WHEEL_INSTALLED := $(WHEEL_VENV)/.installed
WHEEL_BUILT := dist/.built
CLIENT := clients/python
CLIENT_VENV := .venv-client
CLIENT_INSTALLED := $(CLIENT_VENV)/.installed

PACKAGES := actors api eventstore projections providers runstream
SOURCES := $(shell find $(PACKAGES) $(CLIENT)/runstream_client -type f -not -name '*.pyc') $(wildcard $(CLIENT)/*.*)
FORMATTED := $(wildcard $(PACKAGES) bench tests docs clients)
LOCK := $(BIN)/pip-compile --quiet --strip-extras --allow-unsafe --generate-hashes --no-emit-index-url \
	--no-emit-trusted-host --no-emit-find-links --no-emit-options

export PIP_DISABLE_PIP_VERSION_CHECK := 1
export PYRIGHT_PYTHON_IGNORE_WARNINGS := 1

.DELETE_ON_ERROR:
.PHONY: help install demo demo-approval test test-source test-rules test-wheel test-client chaos check fmt bench cov wheel lock clean twin

help:
	@echo 'make demo [INPUT=file]  a run through a private Redis and a host, printed as it happens'
	@echo 'make demo-approval      two hosts: a tool call of a run on one, decided about through the other (ANSWER=--yes or --no)'
	@echo 'make test               the whole suite: what the built wheel can show on the wheel, the rest on the sources'
	@echo 'make test-source        the whole suite on the sources'
	@echo 'make chaos              hosts, Redis and the way between harmed while clients work, with and without failovers (CHAOS_S=seconds, CHAOS_SEED=again)'
	@echo 'make check              formatting, lint, types, architecture'
	@echo 'make fmt                format, and mend what can be mended'
	@echo 'make bench              the measurements of docs/benchmarks.md'
	@echo 'make twin               thousands of deployments on virtual time, each with all that may befall one'
	@echo 'make cov                the suite with coverage of lines and branches'
	@echo 'make wheel              the distributions, of the host and of its client, into dist/'
	@echo 'make lock               pin the dependencies anew'
	@echo 'make clean              remove what the targets above made'

install: $(INSTALLED)

$(BIN)/python:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "Python 3.11 or later is needed; name one: make PYTHON=python3.12")'
	$(PYTHON) -m venv $(VENV)

$(INSTALLED): requirements/dev.txt pyproject.toml $(CLIENT)/pyproject.toml | $(BIN)/python
	$(BIN)/python -m pip install --quiet --no-deps --require-hashes -r requirements/dev.txt
	$(BIN)/python -m pip install --quiet --no-deps --no-build-isolation --editable $(CLIENT) --editable .
	@touch $@

demo-approval: $(INSTALLED)
	@$(BIN)/python -m runstream demo-approval $(ANSWER)

demo: $(INSTALLED)
	@$(BIN)/python -m runstream demo --input '$(INPUT)'

# Each test once: on what is shipped, if that can show it, and else on the sources.
# Two at once, since one suite keeps one core busy; each is printed whole when it is done.
test: $(INSTALLED) $(WHEEL_INSTALLED) $(CLIENT_INSTALLED)
	@$(MAKE) --no-print-directory --jobs 2 --output-sync test-rules test-wheel test-client

test-source: $(INSTALLED)
	$(BIN)/python -m pytest

test-rules: $(INSTALLED)
	$(BIN)/python -m pytest -m 'repo or rules'

wheel: $(WHEEL_BUILT)

$(WHEEL_BUILT): $(INSTALLED) $(SOURCES) pyproject.toml README.md LICENSE
	rm -rf dist
	$(BIN)/python -m build --wheel --no-isolation --outdir dist . >/dev/null
	$(BIN)/python -m build --wheel --no-isolation --outdir dist $(CLIENT) >/dev/null
	@touch $@

# Holds the built wheels alone; their dependencies and the test tools are seen in the first environment by a path file.
# Path files there are not read, so the editable install, and with it the sources, stay out of sight.
$(WHEEL_INSTALLED): $(WHEEL_BUILT)
	rm -rf $(WHEEL_VENV)
	$(BIN)/python -m venv --without-pip $(WHEEL_VENV)
	$(BIN)/python -m pip --python $(WHEEL_VENV)/bin/python install --quiet --no-deps --no-index dist/*.whl
	$(BIN)/python -c 'import sysconfig; print(sysconfig.get_path("purelib"))' \
		> "$$($(WHEEL_VENV)/bin/python -c 'import sysconfig; print(sysconfig.get_path("purelib"))')/tools.pth"
	@touch $@

# The suite runs in a folder of its own, where only tests/ lies: an import of ours can come from the wheel alone.
# What tries the rules in every way there is stays with the sources: it says nothing about how the program was packed.
test-wheel: $(WHEEL_INSTALLED)
	@room=$$(mktemp -d) && trap 'rm -rf "$$room"' EXIT && \
	cp -R tests pyproject.toml "$$room" && python="$$PWD/$(WHEEL_VENV)/bin/python" && cd "$$room" && \
	export PATH="$$(dirname "$$python"):$$PATH" PYTHONPATH="$$room" PYTHONSAFEPATH=1 && \
	"$$python" -c 'import runstream, runstream_client; assert "$(WHEEL_VENV)" in runstream.__file__ and "$(WHEEL_VENV)" in runstream_client.__file__' && \
	"$$python" -m pytest -m 'not repo and not rules'

# Nothing but the client's wheel and what it asks for: the pins of requirements/client.txt.
$(CLIENT_INSTALLED): $(WHEEL_BUILT) requirements/client.txt
	rm -rf $(CLIENT_VENV)
	$(BIN)/python -m venv --without-pip $(CLIENT_VENV)
	$(BIN)/python -m pip --python $(CLIENT_VENV)/bin/python install --quiet --no-deps --require-hashes -r requirements/client.txt
	$(BIN)/python -m pip --python $(CLIENT_VENV)/bin/python install --quiet --no-deps --no-index dist/runstream_client-*.whl
	@touch $@

# The client's own tests on its sources; then its vectors on its wheel, as somebody has it who installed that alone.
test-client: $(CLIENT_INSTALLED)
	cd $(CLIENT) && PYTEST_DISABLE_PLUGIN_AUTOLOAD=1 ../../$(BIN)/python -m pytest
	@python="$$PWD/$(CLIENT_VENV)/bin/python" && cd "$${TMPDIR:-/tmp}" && export PYTHONSAFEPATH=1 && \
	"$$python" -c 'import runstream_client; assert "$(CLIENT_VENV)" in runstream_client.__file__, runstream_client.__file__' && \
	"$$python" -m runstream_client.conformance --quiet

# The seed is printed first; the same seed does the same harm, and asks for the same things, in the same order.
chaos: export CHAOS_S := $(CHAOS_S)
chaos: $(INSTALLED)
	SLOW_TESTS=1 $(BIN)/python -m pytest -s tests/system/test_chaos.py

check: $(INSTALLED)
	$(BIN)/ruff format --check $(FORMATTED)
	$(BIN)/ruff check $(FORMATTED)
	$(BIN)/mypy
	cd $(CLIENT) && ../../$(BIN)/mypy --config-file ../../pyproject.toml runstream_client tests tools
	$(BIN)/pyright
	$(BIN)/python -m pytest --quiet tests/test_architecture.py

fmt: $(INSTALLED)
	$(BIN)/ruff check --fix-only --quiet $(FORMATTED)
	$(BIN)/ruff format $(FORMATTED)

bench: $(INSTALLED)
	$(BIN)/python -m bench

twin: $(INSTALLED)
	$(BIN)/python -m tests.simulation --seeds 5000

cov: $(INSTALLED)
	$(BIN)/coverage erase
	$(BIN)/coverage run -m pytest
	cd $(CLIENT) && ../../$(BIN)/coverage run --rcfile=../../pyproject.toml --data-file=../../.coverage --source=runstream_client -m pytest -p runstream_client.conformance.plugin tests runstream_client/conformance
	$(BIN)/coverage combine --quiet
	$(BIN)/coverage report

# The client comes from this repository, so it is built to be resolved and then taken out: pins are of others' work.
# Redis' client needs async-timeout before Python 3.11.3 only, and the compiler writes what its own Python needs.
lock: export CUSTOM_COMPILE_COMMAND := make lock
lock: $(INSTALLED)
	@$(BIN)/python -c 'import sys; sys.exit(sys.version_info >= (3, 11, 3) and "pins are made with Python 3.11.2 or earlier")'
	@room=$$(mktemp -d) && trap 'rm -rf "$$room"' EXIT && set -x && \
	$(BIN)/python -m build --wheel --no-isolation --outdir "$$room" $(CLIENT) >/dev/null && \
	$(LOCK) --find-links "$$room" --output-file requirements/runtime.txt pyproject.toml && \
	$(LOCK) --find-links "$$room" --extra all --constraint requirements/runtime.txt --output-file requirements/image.txt pyproject.toml && \
	$(LOCK) --find-links "$$room" --extra all --output-file requirements/dev.txt pyproject.toml requirements/dev.in && \
	sed -i.all -e '/^runstream-client==/,/^[^ ]/{/^runstream-client==/d;/^ /d;}' requirements/runtime.txt requirements/image.txt requirements/dev.txt && \
	rm requirements/*.all && \
	$(LOCK) --extra conformance --constraint requirements/dev.txt --output-file requirements/client.txt $(CLIENT)/pyproject.toml

clean:
	rm -rf $(VENV) $(WHEEL_VENV) $(CLIENT_VENV) dist htmlcov .coverage .coverage.* .mypy_cache .pytest_cache .ruff_cache .hypothesis
	rm -rf $(CLIENT)/.mypy_cache $(CLIENT)/.pytest_cache
	find $(PACKAGES) bench tests clients -name __pycache__ -type d -prune -exec rm -rf {} +
