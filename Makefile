# Two commands do everything on a fresh machine: make sweep, make test.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
INSTALLED := $(VENV)/.installed

.PHONY: sweep test slow lint docs audit gpu clean

sweep: $(INSTALLED)
	$(BIN)/python -m benchmarks.sweep --preset quick

# two more at a time than there are cores: many tests wait for processes of their own
test: $(INSTALLED)
	$(BIN)/python -m pytest -n $$($(BIN)/python -c "import os; print(min(4, os.cpu_count() + 2))") --dist loadfile --no-loadscope-reorder --durations 15

# what takes minutes more and waits for most of them: workers of Ray that hang, and a Ray whose driver is killed
slow: $(INSTALLED)
	CST_SLOW=1 $(BIN)/python -m pytest tests/test_ray.py

lint: $(INSTALLED)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

docs: $(INSTALLED)
	$(BIN)/python -m sphinx -W --keep-going -q docs docs/_build

# known vulnerabilities of the exact versions, from a public list of advisories: needs a network, and fails without it
# unless AUDIT=--unreached-is-told
audit:
	$(PYTHON) -m venv .audit
	.audit/bin/python -m pip install --quiet pip-audit
	.audit/bin/python .ci/audit.py .audit/bin constraints.txt $(AUDIT)

# what only a GPU can show: its numbers are the CPU's, no step waits for the host, and what a step costs there
gpu: $(INSTALLED)
	CST_GPU=1 $(BIN)/python -m pytest tests/test_gpu.py
	$(BIN)/python -m benchmarks.speed --device cuda --out results/speed/gpu --json results/speed/gpu/speed.json

# torch goes first and alone: the exact version of constraints.txt, so that nothing later asks for another build
$(INSTALLED): pyproject.toml constraints.txt
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --constraint constraints.txt torch
	$(BIN)/python -m pip install --quiet --constraint constraints.txt --editable ".[dev,report,docs,skops,ray]"
	touch $(INSTALLED)

clean:
	rm -rf $(VENV) .audit build docs/_build *.egg-info .pytest_cache .mypy_cache .ruff_cache .hypothesis
