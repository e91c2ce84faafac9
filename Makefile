# make study   the paper's experiments on the simulator, into out/
# make check   linters and the fast tests, in less than two minutes: before every commit
# make test    everything that is checked before a change is accepted, in about nine minutes on two cores
# make nightly the same, and what a change rarely breaks: all layouts, all studies in a browser, the site, lost hosts
# make fuzz    damaged and unlikely files and arguments (CASES=20000 SEED=0 KINDS=trace,job, CASE=... repeats one)
# make mutants random faults of the source, and how many of them the fast tests notice (MUTANTS=200 SEED=0 ONLY=search/)
# make bench   speed beside other tools and the last record, in five minutes (BENCH="--only engine,search", BENCH=--record)
# make docs    the documentation site, into out/site; it also makes the pages that come from the code
# make clean   remove what the others made
#
# The first run makes .venv and installs what is needed into it.

# The tests start knee hundreds of times: it is compiled once.
unexport PYTHONDONTWRITEBYTECODE

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
# Processes of pytest. Tests on a Slurm cluster wait more than they work, so that two cores take three.
JOBS ?= 3
CHECK_JOBS ?= 2
OUT ?= out
# Of make fuzz, and SEED of make mutants.
CASES ?= 20000
SEED ?= 0
KINDS ?=
CASE ?=
WORKERS ?= 2
# Of make mutants.
MUTANTS ?= 200
ONLY ?=
# Of make bench: options of benchmarks/bench.py, and where the tools lie that knee is compared with. What is measured of
# llm-analysis needs only fire; with its other requirements pip tries old releases for minutes.
BENCH ?=
PEERS := .venv-peers
# Of make lint: the checker of the page's scripts.
TSC := $(VENV)/tsc/node_modules/.bin/tsc

# What the tests of probes run on; empty (make test TORCH=) to skip them.
TORCH ?= torch==2.13.0

# Debian packages for the tests: a browser, a font for it, what reads its prints; Slurm, and what makes hosts of network
# namespaces. Where they cannot be had, the tests that need them skip.
APT_PACKAGES := chromium fonts-liberation poppler-utils slurm-wlm munge iproute2

.PHONY: study check test nightly lint fuzz mutants bench docs clean apt
.DELETE_ON_ERROR:

study: $(VENV)/.report
	@echo "== knee study"
	$(BIN)/knee study --out $(OUT)

# Tests that share what they make once stay in one process: those of a file, or of a group (tests/conftest.py).
PYTEST := $(BIN)/pytest --dist loadscope --no-loadscope-reorder

check: $(VENV)/.dev
	$(call beside_linters,$(PYTEST) -n $(CHECK_JOBS) -m "not slow")

test: apt $(VENV)/.dev $(VENV)/.torch
	$(call beside_linters,$(PYTEST) -n $(JOBS) --durations=10)

nightly: export KNEE_NIGHTLY := 1
nightly: apt $(VENV)/.dev $(VENV)/.torch
	$(call beside_linters,$(PYTEST) -n $(JOBS) --durations=20)

# Linters run while the tests do. What they find comes after, and either may fail. The first time, one process compiles
# the tests, because otherwise each of pytest's processes would compile all of them.
beside_linters = @echo "== pytest, and linters beside it"; \
	$(MAKE) --no-print-directory --silent lint > $(VENV)/lint.log 2>&1 & linters=$$!; \
	[ -n "$$(find tests -name '*-pytest-*.pyc' -print -quit)" ] || $(BIN)/pytest --collect-only -qq >/dev/null 2>&1; \
	$(1); tests=$$?; \
	if wait $$linters; then grep "is skipped" $(VENV)/lint.log; echo "== ruff, mypy, import-linter and tsc found nothing"; \
	else cat $(VENV)/lint.log; exit 1; fi; \
	exit $$tests

lint: $(VENV)/.dev
	@echo "== ruff"
	$(BIN)/ruff check
	$(BIN)/ruff format --check
	@echo "== mypy"
	$(BIN)/mypy
	@echo "== import-linter"
	$(BIN)/lint-imports
	@echo "== tsc"
	@if $(MAKE) --no-print-directory --silent $(TSC) 2>/dev/null && [ -x $(TSC) ]; then \
	    $(TSC) -p src/knee/commands/serve/page/jsconfig.json; \
	else echo "== tsc is skipped: npm is missing, or cannot install TypeScript, which checks the page's scripts"; fi

fuzz: $(VENV)/.dev
	PYTHONPATH=tests $(BIN)/python -m fuzz --cases $(CASES) --seed $(SEED) --kinds "$(KINDS)" --case "$(CASE)" \
	    --jobs $(WORKERS) --out $(OUT)/fuzz

mutants: $(VENV)/.dev
	$(BIN)/python tools/mutants.py --mutants $(MUTANTS) --seed $(SEED) --jobs $(WORKERS) --only "$(ONLY)"

bench: $(VENV)/.dev $(PEERS)/.installed
	@$(BIN)/python benchmarks/bench.py $(BENCH)

# NO_MKDOCS_2_WARNING: a notice of mkdocs-material about its successor, which says nothing of this site.
docs: $(VENV)/.docs
	$(BIN)/python tools/commands_page.py docs/commands.md
	$(BIN)/python tools/files_page.py docs/files.md
	$(BIN)/python tools/step_pictures.py docs/figures
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict --site-dir $(OUT)/site
	@echo "wrote $(OUT)/site/index.html"

clean:
	rm -rf $(VENV) $(PEERS) $(OUT) build .pytest_cache .mypy_cache .ruff_cache .hypothesis .import_linter_cache
	find src tests -name __pycache__ -type d -prune -exec rm -rf {} +

# Environments. A stamp is as new as the pyproject.toml that it was installed from.

$(BIN)/python:
	@echo "== making $(VENV)"
	@# Debian keeps ensurepip, which venv needs, in a package of its own
	@$(PYTHON) -c 'import ensurepip' 2>/dev/null || apt-get install -y -q python3-venv
	$(PYTHON) -m venv $(VENV)

$(VENV)/.report: pyproject.toml | $(BIN)/python
	@echo "== installing knee with what the report needs"
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --editable '.[report]'
	@touch $@

$(VENV)/.dev: pyproject.toml | $(BIN)/python
	@echo "== installing knee with what the checks need"
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --editable '.[dev]'
	@touch $@ $(VENV)/.report

$(VENV)/.docs: pyproject.toml | $(BIN)/python
	@echo "== installing knee with what the site needs"
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --editable '.[docs]'
	@touch $@

$(VENV)/.torch: | $(VENV)/.dev
	@if [ -n "$(TORCH)" ]; then \
	    echo "== installing $(TORCH) for the tests of probes"; \
	    $(BIN)/python -m pip install --quiet --disable-pip-version-check $(TORCH) \
	        || echo "== $(TORCH) could not be installed: the tests that need it skip"; \
	fi
	@touch $@

# TypeScript checks types in the page's JavaScript, which is served as it is written. Where it cannot be installed, the
# next run tries again.
$(TSC):
	@command -v npm >/dev/null && npm install --silent --no-fund --no-audit --fetch-retries 0 \
	    --prefix $(VENV)/tsc typescript@7.0.2 >/dev/null 2>&1

# Without a stamp, the next run tries again.
$(PEERS)/.installed: | $(BIN)/python
	@echo "== installing the tools that knee is compared with into $(PEERS)"
	@$(BIN)/python -m venv $(PEERS) \
	&& $(PEERS)/bin/python -m pip install --quiet --disable-pip-version-check HolisticTraceAnalysis==0.5.0 fire \
	&& $(PEERS)/bin/python -m pip install --quiet --disable-pip-version-check --no-deps llm-analysis==0.2.2 \
	&& touch $@ \
	|| echo "== they could not be installed: the table has their recorded values"

apt:
	@missing=; for name in $(APT_PACKAGES); do \
	    dpkg-query -W -f '$${db:Status-Status}' $$name 2>/dev/null | grep -qx installed || missing="$$missing $$name"; \
	done; \
	if [ -z "$$missing" ]; then exit 0; fi; \
	if ! command -v apt-get >/dev/null || [ "$$(id -u)" -ne 0 ]; then \
	    echo "== not installed, for want of apt-get or of root:$$missing; the tests that need them skip"; exit 0; \
	fi; \
	echo "== installing Debian's$$missing"; \
	export DEBIAN_FRONTEND=noninteractive; \
	apt-cache show $$missing >/dev/null 2>&1 || apt-get update -qq || true; \
	apt-get install -y -qq --no-install-recommends $$missing >/dev/null \
	|| { apt-get update -qq; for name in $$missing; do \
	    apt-get install -y -qq --no-install-recommends $$name >/dev/null \
	        || echo "== could not be installed: $$name; the tests that need it skip"; \
	done; }
