.DEFAULT_GOAL := help
.DELETE_ON_ERROR:
.PHONY: help demo test lint slow soak bench results thirdparty clean

VENV := .venv
BIN := $(VENV)/bin
PIP_INSTALL_OPTIONS := --disable-pip-version-check --constraint constraints.txt
PIP_INSTALL := $(BIN)/python -m pip install $(PIP_INSTALL_OPTIONS)
# Libraries to compare with, each in its own virtual environment.
BENCH := .bench
PEERS := sbx skrl cpprb sample_factory
# Render without a window.
export SDL_VIDEODRIVER ?= dummy

help: ## List the targets
	@awk -F ':.*## ' '/^[a-z]+:.*## /{printf "  make %-10s %s\n", $$1, $$2}' Makefile

demo: $(VENV)/.core ## Train SAC on Pendulum-v1 (one to three minutes), draw the learning curve, record a video
	$(BIN)/python examples/demo.py

test: lint ## Check style and types, and run the default tests
	$(BIN)/python -m pytest

lint: $(VENV)/.dev ## Check style and types
	$(BIN)/python -m ruff check .
	$(BIN)/python -m ruff format --check .
	$(BIN)/python -m mypy

slow: $(VENV)/.dev ## Run the learning tests (minutes each)
	$(BIN)/python -m pytest -m slow --timeout 3600

soak: $(VENV)/.dev ## Run the fault tests with all repetitions: kill, stop and slow down processes (half an hour)
	OFFBEAT_SOAK=1 $(BIN)/python -m pytest -m soak -n 0 --timeout 3600

bench: $(VENV)/.dev $(PEERS:%=$(BENCH)/%/.installed) ## Compare speed and memory with other libraries (half an hour)
	$(BIN)/python benchmarks/learner.py
	$(BIN)/python benchmarks/recurrent.py
	$(BIN)/python benchmarks/precision.py
	$(BIN)/python benchmarks/replay.py
	$(BIN)/python benchmarks/end_to_end.py
	$(BIN)/python benchmarks/command.py
	$(BIN)/python benchmarks/async.py
	$(BIN)/python benchmarks/ray_collectors.py
	$(BIN)/python benchmarks/hosts.py
	$(BIN)/python benchmarks/ranks.py
	$(BIN)/python benchmarks/appo.py
	$(BIN)/python benchmarks/coming_from.py

results: $(VENV)/.dev ## Train every task of docs/results.md and docs/recurrent.md, five seeds each (hours; continues after an interrupt)
	$(BIN)/python benchmarks/published.py
	$(BIN)/python benchmarks/memory.py

thirdparty: $(BENCH)/thirdparty/.installed ## Train on third-party environments, in a separate virtual environment (ten minutes)
	$(BENCH)/thirdparty/bin/python benchmarks/thirdparty.py

clean: ## Remove .venv, .bench, caches and build products; keep runs/
	rm -rf $(VENV) $(BENCH) build dist .mypy_cache .pytest_cache .ruff_cache .hypothesis
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

# PYTHON is the interpreter for .venv. If it is not given and python3 is too old, python3.13, 3.12 and 3.11 are tried.
PYTHON ?= python3
CANDIDATES := $(strip $(PYTHON) $(if $(filter file default,$(origin PYTHON)),python3.13 python3.12 python3.11))

$(BIN)/python:
	@for python in $(CANDIDATES); do \
		if "$$python" -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null; then \
			echo "Creating $(VENV) with $$python"; exec "$$python" -m venv --clear $(VENV); \
		fi; \
	done; \
	echo "Offbeat needs Python 3.11 or newer; none of these is new enough: $(CANDIDATES)." \
		"Install one, or give its path: make PYTHON=/path/to/python3.12 $(MAKECMDGOALS)" >&2; exit 1

# The dev extra includes the core, so the core is not installed again after it.
$(VENV)/.core: pyproject.toml constraints.txt | $(BIN)/python
	$(PIP_INSTALL) --editable .
	@touch $@

$(VENV)/.dev: pyproject.toml constraints.txt | $(BIN)/python
	$(PIP_INSTALL) --editable '.[dev]'
	@touch $(VENV)/.core $@

# A package that cannot be installed is skipped; the table then lists it as not installed.
$(BENCH)/thirdparty/.installed: benchmarks/requirements/thirdparty.txt constraints.txt pyproject.toml | $(BIN)/python
	$(BIN)/python -m venv --clear $(@D)
	grep -v '^mujoco=' constraints.txt >$(@D)/constraints.txt
	grep '^mujoco=' $< >>$(@D)/constraints.txt
	$(@D)/bin/python -m pip install --disable-pip-version-check --constraint $(@D)/constraints.txt --editable .
	@grep -v '^#' $< | while read -r package; do \
		$(@D)/bin/python -m pip install --disable-pip-version-check --constraint $(@D)/constraints.txt "$$package" \
			</dev/null || echo "$$package cannot be installed here; it is skipped" >&2; \
	done
	@touch $@

# These have wheels for few systems and otherwise need a C++ compiler. Without them, the benchmarks skip them.
$(BENCH)/cpprb/.installed $(BENCH)/sample_factory/.installed: \
	WITHOUT = || { echo "$* cannot be installed here; it is not measured" >&2; exit 0; }
# Sample Factory requires Gymnasium below 1.0, which has no HalfCheetah-v5, but it runs with the project's version. So it is
# installed without its dependencies; requirements/sample_factory.txt lists and pins them instead of constraints.txt.
$(BENCH)/sample_factory/.installed: PIP_INSTALL_OPTIONS := --disable-pip-version-check
$(BENCH)/sample_factory/.installed: \
	ALONE = && $(BENCH)/$*/bin/python -m pip install $(PIP_INSTALL_OPTIONS) --no-deps sample-factory==2.1.1
$(BENCH)/%/.installed: benchmarks/requirements/%.txt constraints.txt | $(BIN)/python
	$(BIN)/python -m venv --clear $(BENCH)/$*
	{ $(BENCH)/$*/bin/python -m pip install $(PIP_INSTALL_OPTIONS) --requirement $< $(ALONE) && touch $@; } $(WITHOUT)
