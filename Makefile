# The project's two commands: `make demo` and `make test`. Both install what they need first.
#
#   make setup      system packages (Debian, Ubuntu; as root), .venv, kernel object, launcher
#   make demo       guarded rollouts with real programs; prints incidents, penalties and the page's address
#   make test       lint, types, import rules and every test that ends in minutes
#   make test-slow  the rest: honest work in bulk, long fault and load tests, a random search for counter-examples
#   make bench      figures, as ratios against peers
#   make clean      remove what the above made

SHELL := /bin/bash
VENV := .venv
PYTHON := $(VENV)/bin/python
GUARD := $(VENV)/bin/guard
STATE := $(CURDIR)/.state
PYTEST_ARGS ?=

.DEFAULT_GOAL := help
.PHONY: help setup demo test test-slow lint bench clean

help:
	@sed -n 's/^#   //p' $(firstword $(MAKEFILE_LIST))

$(VENV)/.ready: pyproject.toml setup.sh
	./setup.sh $(VENV)
	@touch $@

setup: $(VENV)/.ready
	@$(PYTHON) -m invigilator.ebpf.build
	@$(PYTHON) -m invigilator.sandbox.build

demo: setup
	INVIGILATOR_HOME=$(STATE)/demo $(PYTHON) -m invigilator.guard.demo

lint: $(VENV)/.ready
	$(VENV)/bin/ruff check .
	$(VENV)/bin/ruff format --check .
	$(VENV)/bin/mypy
	$(VENV)/bin/lint-imports

# Two runs side by side, since most tests wait for something. Each leaves out what the other runs; a room in neither
# list is run by both. (Rooms are not named to pytest: it would load every conftest at once, and they share a name.)
APART := tests/apparmor tests/api tests/cli tests/container tests/scenarios
REST := tests/kernel tests/rollout tests/sandbox tests/store tests/unit tests/test_readme.py
QUICK := $(VENV)/bin/pytest -m "not slow"

test: setup lint
ifeq ($(PYTEST_ARGS),)
	@mkdir -p $(STATE)
	@$(QUICK) $(addprefix --ignore=,$(REST)) >$(STATE)/apart.log 2>&1 & apart=$$!; \
		$(QUICK) $(addprefix --ignore=,$(APART)); one=$$?; \
		wait $$apart; two=$$?; cat $(STATE)/apart.log; exit $$((one ? one : two))
else
	$(QUICK) $(PYTEST_ARGS)
endif

test-slow: setup
	./setup.sh $(VENV) slow
	$(VENV)/bin/pytest -m slow $(PYTEST_ARGS)
	$(VENV)/bin/pytest -m hypothesis --hypothesis-profile=search $(PYTEST_ARGS)
	XDG_CACHE_HOME=$(STATE)/cache INVIGILATOR_HOME=$(STATE)/eval $(GUARD) eval --honest

bench: setup
	./setup.sh $(VENV) peers
	XDG_CACHE_HOME=$(STATE)/cache INVIGILATOR_HOME=$(STATE)/bench $(GUARD) bench

clean:
	rm -rf $(VENV) $(STATE) build dist src/*.egg-info .mypy_cache .ruff_cache .pytest_cache .import_linter_cache
