# Two commands matter: `make demo` and `make test`. Both build .venv first if it is missing or out of date.
PYTHON ?= python3
VENV   ?= .venv
BIN    := $(VENV)/bin
STAMP  := $(VENV)/.installed
ARGS   ?=

.DEFAULT_GOAL := help
.PHONY: help install demo test test-slow lint clean

help:
	@echo "make demo       install, then run planner=keep on the embedded houses"
	@echo "make test       install, then run the test suite"
	@echo "make test-slow  install, then run the long tests"
	@echo "make lint       install, then check the style"
	@echo "make clean      remove .venv, caches and build output (runs under outputs/ stay)"

$(STAMP): pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
		{ echo "error: $(PYTHON) is older than Python 3.11; name another with make PYTHON=/path/to/python3.11" >&2; exit 1; }
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[dev,encoder]'
	@touch $@

install: $(STAMP)

demo: $(STAMP)
	$(BIN)/python -m eval.alfred planner=keep $(ARGS)

test: $(STAMP)
	$(BIN)/python -m pytest $(ARGS)

test-slow: $(STAMP)
	$(BIN)/python -m pytest -m slow $(ARGS)

lint: $(STAMP)
	$(BIN)/ruff check .

clean:
	rm -rf $(VENV) build dist .pytest_cache .ruff_cache .hypothesis .benchmarks
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
