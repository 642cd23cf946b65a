# The two commands that matter: `make demo` and `make test`. Both set up everything they need in .venv.
PYTHON ?= python3
# LATEST=1: the newest versions that pyproject.toml allows instead of those in locks/, in a folder of their own.
LATEST ?=
VENV := .venv$(if $(LATEST),-latest)
BIN := $(VENV)/bin
ONCE ?=
VLM ?=
DEMO_PORTS ?=
STAMP = $(VENV)/.installed-$(1)

.PHONY: help demo test lock test-faults audit browser deploy-tools check format bench docs clean

help:
	@echo "make demo [ONCE=1]   from nothing to a mask (ONCE=1 stops after the picture)"
	@echo "make demo VLM=1      the same, and questions about a picture; needs torch"
	@echo "make test            the whole test suite, set-up included"
	@echo "make test-faults     faults and load in full length: about an hour, figures in build/faults"
	@echo "make audit           what the package is made of (build/sbom.json), and what is known against it"
	@echo "make check           ruff, mypy, import-linter"
	@echo "make bench           the figures of docs/performance.md"
	@echo "make lock            write the exact versions in locks/ anew"
	@echo "make docs            write the generated tables of docs/ anew"

demo: $(call STAMP,$(if $(VLM),vlm,demo))
	$(BIN)/triton-sam demo $(if $(VLM),--vlm) $(if $(ONCE),--once) $(DEMO_PORTS)

# These share the cores; those with a server have them for themselves, as some look at what happens in time.
SHARING := tests/unit $(addprefix tests/e2e/test_,fresh_clone.py light_client.py browser_setup.py)
test: check audit browser deploy-tools
ifdef PYTEST_ARGS
	$(BIN)/python -m pytest $(PYTEST_ARGS)
else
	$(BIN)/python -m pytest $(SHARING) --numprocesses auto --durations 15
	$(BIN)/python -m pytest --durations 40 tests/integration tests/faults tests/e2e $(addprefix --ignore=,$(SHARING))
endif

# Every bar of docs/reliability.md, which is made of what this writes (copy it to docs/reliability, then `make docs`).
test-faults: $(call STAMP,dev) deploy-tools
	TRITON_SAM_FAULTS=long TRITON_SAM_FAULTS_OUT="$${TRITON_SAM_FAULTS_OUT:-build/faults}" \
	  $(BIN)/python -m pytest tests/faults --timeout 3000 $(PYTEST_ARGS)

# Without one the browser tests are skipped, unless TRITON_SAM_REQUIRE_BROWSER is set.
browser:
	@scripts/install_browser.sh || [ -z "$$TRITON_SAM_REQUIRE_BROWSER" ]

# HAProxy, nginx, promtool; without them their tests are skipped, unless TRITON_SAM_REQUIRE_DEPLOY_TOOLS is set.
# Where Helm has to be emulated and cannot be, its tests are skipped in any case, and say so.
deploy-tools: $(call STAMP,dev)
	@scripts/install_deploy_tools.sh || [ -z "$$TRITON_SAM_REQUIRE_DEPLOY_TOOLS" ]
	@scripts/install_helm.sh $(BIN)/python || true

# What is installed, as a list for others, and what is known against it.
audit: $(call STAMP,dev)
	$(BIN)/python scripts/audit.py build

check: $(call STAMP,dev)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

format: $(call STAMP,dev)
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

bench: $(call STAMP,dev)
	$(BIN)/triton-sam bench server --output bench/results

docs: $(call STAMP,dev)
	$(BIN)/python scripts/generate_docs.py

# What resolves them is the newest too: an outdated lock must not stand in the way of its own renewal.
lock:
	PYTHON="$(PYTHON)" LATEST=1 scripts/make_venv.sh build/venv-lock lock
	build/venv-lock/bin/python scripts/lock.py

$(call STAMP,demo): EXTRAS = server,service,demo
$(call STAMP,vlm): EXTRAS = demo-vlm
$(call STAMP,test): EXTRAS = test
$(call STAMP,test-light): EXTRAS = test-light
$(call STAMP,dev): EXTRAS = dev
$(VENV)/.installed-%: pyproject.toml scripts/make_venv.sh $(wildcard locks/*.txt)
	PYTHON="$(PYTHON)" LATEST="$(LATEST)" scripts/make_venv.sh $(VENV) "$(EXTRAS)"
	@touch $@

clean:
	rm -rf $(VENV) .venv-latest demo build dist
