# Two commands for a new machine: `make demo` and `make test`. Everything they need is installed into $(VENV).
VENV ?= .venv
PYTHON ?= python3
OUT ?= airlock-demo
DEMO ?=
FUZZ ?= tests
BIN = $(VENV)/bin

# uv does not read pip's find-links; hand it on where it names a folder that exists.
export UV_FIND_LINKS ?= $(wildcard $(PIP_FIND_LINKS))
# Byte code halves the import time; threads that spin on shared cores multiply it.
export PYTHONDONTWRITEBYTECODE =
export OMP_NUM_THREADS ?= 1

.PHONY: demo test test-quick test-full pytest times faults fuzz lint style types check-browser bench docs docs-serve clean

demo: $(VENV)/.run
	$(BIN)/airlock demo --out $(OUT) $(DEMO)

# Types are checked meanwhile: mypy keeps one core busy, and pytest has only one while it starts and ends.
test: style check-browser
	@$(MAKE) --no-print-directory -j 2 types pytest

pytest: $(VENV)/.dev
	$(BIN)/python -m pytest -n 2 --dist worksteal

# For the inner loop: what can be said in a minute or so. Without types, and without the modules on tests/slow.txt.
test-quick: $(VENV)/.dev
	$(BIN)/ruff check .
	$(BIN)/python -m pytest -n 2 --dist worksteal --quick

# Write tests/slow.txt anew, on an idle machine: when test-quick has become slow.
times: $(VENV)/.dev
	$(BIN)/python -m pytest -n 2 --dist worksteal --durations 30 --junitxml $(VENV)/times.xml
	$(BIN)/python -m tests.quick $(VENV)/times.xml

# What `make test` leaves out because it is slow by nature (marked `long`): the whole trials of the adversary and of the
# court's power, every point of every curve, and the planted faults that take seconds to catch.
test-full: lint check-browser
	$(BIN)/python -m pytest -n 2 --dist worksteal -m "long or not long"

# Every planted fault (tests/faults/table.py) and whoever must catch it; prints the table, and fails if one is not caught.
faults: $(VENV)/.dev
	$(BIN)/python -m pytest tests/faults -n 2 --dist worksteal -m "long or not long"

# New random examples for the property tests, in FUZZ=tests/mechanisms or everywhere. AIRLOCK_FUZZ_EXAMPLES (3000) is
# how many a test tries that asks for no number of its own, 100 of them in `make test`; the others grow with it.
fuzz: $(VENV)/.dev
	$(BIN)/python -m pytest -n 2 --dist worksteal --hypothesis-profile fuzz -m hypothesis $(FUZZ)

lint: style types

style: $(VENV)/.dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

types: $(VENV)/.dev
	$(BIN)/mypy

# The site, without a network: nothing is loaded from elsewhere, now or when it is read.
docs: $(VENV)/.dev
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict

docs-serve: $(VENV)/.dev
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs serve

bench: $(VENV)/.dev
	$(BIN)/uv pip install --quiet --python $(BIN)/python -e ".[bench]"
	$(BIN)/airlock bench

# Browser tests need Chromium: as root on Debian it is installed, elsewhere the tests say how to get it.
check-browser:
	@if command -v chromium >/dev/null 2>&1; then :; \
	elif [ "$$(id -u)" = 0 ] && command -v apt-get >/dev/null 2>&1; then \
		(apt-get update -qq && DEBIAN_FRONTEND=noninteractive apt-get install -y -qq chromium) >/dev/null; \
	else echo "Chromium not found: browser tests will be skipped. Install your system's 'chromium' package to run them."; fi

$(VENV)/bin/uv:
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check uv

$(VENV)/.run: pyproject.toml | $(VENV)/bin/uv
	$(BIN)/uv pip install --quiet --python $(BIN)/python -e .
	@touch $@

$(VENV)/.dev: pyproject.toml | $(VENV)/bin/uv
	$(BIN)/uv pip install --quiet --python $(BIN)/python -e ".[dev]"
	@touch $@ $(VENV)/.run

clean:
	rm -rf $(VENV) .mypy_cache .pytest_cache .ruff_cache .hypothesis airlock-demo site
