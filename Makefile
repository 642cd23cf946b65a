# The two commands that matter: `make demo` and `make test`. Both set up everything they need in .venv, from locks/.
PYTHON ?= python3
VENV ?= .venv
BIN = $(VENV)/bin
ONCE ?=
SERVE ?=
VLM ?=
VIDEO ?=
PART ?=
DEMO_PORTS ?=
STAMP = $(VENV)/.installed-$(1)

.PHONY: help demo test test-all test-latest test-light audit check format bench docs lock clean

help:
	@echo "make demo [ONCE=1]   from nothing to a mask (ONCE=1 stops after the picture)"
	@echo "make demo VLM=1      the same, and questions about a picture; needs torch"
	@echo "make demo VIDEO=1    an object tracked through a generated clip; without torch"
	@echo "make demo TEXT=1     drawn shapes found by words and an example (sam3:shapes, a toy)"
	@echo "make test            the tests for every commit, set-up included"
	@echo "make test-all        everything, for hours; PART=faults for one part (docs/how/testing.md lists them)"
	@echo "make test-latest     make test with the newest libraries that are allowed, in .venv-latest"
	@echo "make test-light      the tests that need no torch: PYTHON=python3.12 VENV=.venv-312"
	@echo "make audit           what the package is made of (build/sbom.json), and what is known against it"
	@echo "make check           ruff, mypy, import-linter"
	@echo "make bench           the figures of docs/how/results.md"
	@echo "make docs [SERVE=1]  write the generated parts of docs/ anew, and its site into build/site (SERVE=1 shows it)"
	@echo "make lock [KEEP=1]   choose the exact versions of locks/ anew (KEEP=1: only of what is new)"

demo: $(if $(VLM),$(call STAMP,vlm)) $(if $(VIDEO),$(call STAMP,video)) $(if $(VLM)$(VIDEO),,$(call STAMP,demo))
	$(BIN)/triton-sam demo $(if $(VLM),--vlm) $(if $(VIDEO),--video) $(if $(TEXT),--text) $(if $(ONCE),--once) $(DEMO_PORTS)

# PYTEST_ARGS="tests/unit -k masks" runs these alone.
test: $(call STAMP,test)
ifdef PYTEST_ARGS
	$(BIN)/python -m pytest $(PYTEST_ARGS)
else
	$(BIN)/python scripts/run_tests.py
endif

test-all: $(call STAMP,dev)
	$(BIN)/python scripts/run_tests.py $(if $(PART),$(addprefix --part ,$(PART)),--all)

test-light: $(call STAMP,test-light)
	$(BIN)/python scripts/run_tests.py --without-torch

test-latest:
	LATEST=1 PYTHON="$(PYTHON)" scripts/make_venv.sh .venv-latest test
	.venv-latest/bin/python scripts/run_tests.py

audit: $(call STAMP,dev)
	$(BIN)/python scripts/audit.py build

check: $(call STAMP,test)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

format: $(call STAMP,test)
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

bench: $(call STAMP,dev)
	$(BIN)/triton-sam bench server --output bench/results

# Material's successor is announced at every build; no page of the site is different for it.
docs: export NO_MKDOCS_2_WARNING = 1
docs: $(call STAMP,docs)
	$(BIN)/python scripts/generate_docs.py
	$(BIN)/mkdocs $(if $(SERVE),serve,build --quiet)

# What resolves them is the newest too: an outdated lock must not stand in the way of its own renewal.
lock:
	PYTHON="$(PYTHON)" LATEST=1 scripts/make_venv.sh build/venv-lock lock
	build/venv-lock/bin/python scripts/lock.py $(if $(KEEP),--keep)

$(call STAMP,demo): EXTRAS = server,service,demo
$(call STAMP,video): EXTRAS = server,service,demo,video
$(call STAMP,vlm): EXTRAS = demo-vlm
$(call STAMP,test): EXTRAS = test
$(call STAMP,test-light): EXTRAS = test-light
$(call STAMP,docs): EXTRAS = server,service,bench,docs
$(call STAMP,dev): EXTRAS = dev
$(VENV)/.installed-%: pyproject.toml scripts/make_venv.sh $(wildcard locks/*.txt)
	PYTHON="$(PYTHON)" scripts/make_venv.sh $(VENV) "$(EXTRAS)"
	@touch $@

clean:
	rm -rf $(VENV) .venv-latest demo build dist
