# The project's two commands: `make demo` and `make test`. Both install what they need first.
#
#   make setup      system packages (Debian, Ubuntu; as root), .venv, kernel object, launcher
#   make demo       guarded rollouts with real programs; prints incidents, penalties and the page's address
#   make test       lint, types, import rules and every test that ends in minutes
#   make test-slow  the rest: honest work in bulk, long fault and load tests, a random search for counter-examples
#   make test-trainers  the trainers' adapters, with the real packages, each in an environment of its own (some GB)
#   make bench      figures, as ratios against peers
#   make clean      remove what the above made

SHELL := /bin/bash
VENV := .venv
PYTHON := $(VENV)/bin/python
GUARD := $(VENV)/bin/guard
STATE := $(CURDIR)/.state
PYTEST_ARGS ?=

.DEFAULT_GOAL := help
.PHONY: help setup demo test test-again test-slow test-trainers lint bench clean

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
APART := tests/apparmor tests/api tests/cli tests/container tests/faults tests/scenarios tests/trainers
REST := tests/kernel tests/rollout tests/sandbox tests/store tests/unit tests/test_readme.py
# A test that hangs is ended, so that all others are heard of.
QUICK := $(VENV)/bin/pytest -m "not slow and not trainers" --timeout 900
QUICK_APART := $(QUICK) -o cache_dir=$(STATE)/pytest/apart $(addprefix --ignore=,$(REST))
QUICK_REST := $(QUICK) -o cache_dir=$(STATE)/pytest/rest $(addprefix --ignore=,$(APART))

test: setup lint
ifeq ($(PYTEST_ARGS),)
	@rm -rf $(STATE)/pytest && mkdir -p $(STATE)/pytest
	@env --default-signal=INT $(QUICK_APART) >$(STATE)/pytest/apart.log 2>&1 & apart=$$!; \
		$(QUICK_REST); echo $$? >$(STATE)/pytest/rest.status; \
		wait $$apart; echo $$? >$(STATE)/pytest/apart.status; cat $(STATE)/pytest/apart.log; \
		! grep -v '^0$$' $(STATE)/pytest/*.status
else
	$(QUICK) $(PYTEST_ARGS)
endif

# What failed in `make test`, a second time and alone; refused where more than five did, or where anything else went
# wrong. Whatever passes only here is unsteady: it is named, and a defect to be mended.
UNSTEADY_MAX := 5
LAST_FAILED := --last-failed --last-failed-no-failures none -rA

test-again: setup lint
	@for run in rest apart; do \
		status=$$(cat $(STATE)/pytest/$$run.status) || exit 1; \
		[ $$status = 0 ] && continue; \
		failed=$(STATE)/pytest/$$run/v/cache/lastfailed; \
		count=$$($(PYTHON) -c 'import json, sys; print(len(json.load(open(sys.argv[1]))))' $$failed) || exit 1; \
		if [ $$status != 1 ] || [ $$count -gt $(UNSTEADY_MAX) ]; then \
			echo "$$run: status $$status, $$count failed: not run again"; exit 1; \
		fi; \
		echo "UNSTEADY if they pass now:"; cat $$failed; echo; \
		if [ $$run = rest ]; then $(QUICK_REST) $(LAST_FAILED); else $(QUICK_APART) $(LAST_FAILED); fi || exit 1; \
	done

test-slow: setup
	./setup.sh $(VENV) slow
	$(VENV)/bin/pytest -m slow $(PYTEST_ARGS)
	$(VENV)/bin/pytest -m hypothesis --hypothesis-profile=search $(PYTEST_ARGS)
	XDG_CACHE_HOME=$(STATE)/cache INVIGILATOR_HOME=$(STATE)/eval $(GUARD) eval --honest

test-trainers: setup
	$(VENV)/bin/pytest tests/trainers $(PYTEST_ARGS)

bench: setup
	./setup.sh $(VENV) peers
	XDG_CACHE_HOME=$(STATE)/cache INVIGILATOR_HOME=$(STATE)/bench $(GUARD) bench

clean:
	rm -rf $(VENV) $(STATE) build dist src/*.egg-info .mypy_cache .ruff_cache .pytest_cache .import_linter_cache
