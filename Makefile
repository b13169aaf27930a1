PYTHON ?= python3
VENV   ?= .venv

BIN   := $(VENV)/bin
STAMP := $(VENV)/.installed
RAY   := build/ray
PIP   := $(BIN)/python -m pip --disable-pip-version-check --quiet install -c constraints.txt

# One file per worker, so that its fixtures are made once; files that convert come first (conftest.py). Three workers keep
# two cores busy, as some tests wait.
WORKERS := -n 3 --dist loadfile --no-loadscope-reorder

# Containers set it, and then each of the tests' child processes would compile the project again.
unexport PYTHONDONTWRITEBYTECODE

.DEFAULT_GOAL := help
.PHONY: help venv lint pytest test test-fast test-all test-wheel test-clients test-ray test-swift freeze torture soak wheel bundle built-in-voice lock audit clean

help:  ## show this list
	@awk -F ':.*## ' '/^[a-z-]+%?:.*## / { sub("%", "GROUP", $$1); printf "  make %-15s %s\n", $$1, $$2 }' Makefile

venv: $(STAMP)  ## the environment, in .venv

# torch goes first and by its exact version (see constraints.txt). Upstream's own requirements are gigabytes
# that its model code does not use, so it comes without them; of Resemblyzer and the
# predictors of sound quality only the trained networks are used.
# Core AI has wheels for macOS 26 and Linux only, so failing to install them is an error only in CI on Linux.
$(STAMP): pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit(not (3, 10) <= sys.version_info < (3, 14))' || \
	  { echo "error: expected Python 3.10 to 3.13, $(PYTHON) is another or missing; name one: make PYTHON=python3.12" >&2; exit 2; }
	@echo "Creating $(VENV)"
	@$(PYTHON) -m venv $(VENV)
	@echo "Installing PyTorch"
	@$(PIP) torch==2.13.0
	@echo "Installing voxcpm-coreml and what it needs"
	@$(PIP) -e '.[convert,validate,listen,dev]'
	@$(PIP) --no-deps voxcpm==2.0.3 Resemblyzer==0.1.4 distillmos==0.9.1 xls-r-sqa==0.1.0 speechmos==0.0.1.1 swift-f0==0.3.0
	@echo "Installing Core AI"
	@$(PIP) -e '.[convert-coreai]' >$(VENV)/core-ai.log 2>&1 || { \
	  echo "Core AI has no packages for this system or Python ($(VENV)/core-ai.log): its tests are skipped"; \
	  test -z "$$CI" || test "$$(uname)" = Darwin; }
	@touch $@

lint: $(STAMP)  ## ruff and mypy
	@$(BIN)/ruff check --quiet --output-format concise .
	@$(BIN)/ruff format --quiet --check .
	@$(BIN)/mypy --no-error-summary

test: $(STAMP)  ## lint and tests: minutes on two cores
	@$(MAKE) --no-print-directory -j 2 lint pytest MARKS="default"

test-fast: $(STAMP)  ## like test, but nothing that converts or runs torch: a few minutes
	@$(MAKE) --no-print-directory -j 2 lint pytest MARKS="default and not converts"

# Runs in parallel with mypy, which occupies a core for half a minute.
pytest: $(STAMP)
	@$(BIN)/python -m pytest $(WORKERS) -m "$(MARKS)"

test-all: test test-core-ai test-listening test-long test-robustness test-page test-clients test-ray test-swift test-wheel test-slow torture soak  ## every test: hours

# One process for tests at real sizes, which take gigabytes, and for the page, whose browser takes both cores.
test-%: $(STAMP)  ## the tests of a group: clients core-ai listening long page ray robustness slow swift wheel
	@$(BIN)/python -m pytest $(if $(filter page slow,$*),-rs,$(WORKERS)) -m $(subst -,_,$*)

freeze: $(STAMP)  ## compare with an earlier revision: samples, names, flags, responses, packages, speed; REVISION=main~5
	@$(BIN)/python tests/freeze/freeze.py $(or $(REVISION),HEAD~1)
	@$(BIN)/python benchmarks/compare.py runtime/voxcpm_runtime/default_bundle \
	  build/freeze/$$(git rev-parse --short=12 '$(or $(REVISION),HEAD~1)^{commit}')/tree .

# Distributes tests, not files, with work stealing: a conversion's faults are many tests in one file.
torture: $(STAMP)  ## kills, failing calls, damage, fuzzing, generated requests, a minute of soak; SEED=18, SHARE=0.1
	@mkdir -p build
	@TORTURE_SEED=$(or $(SEED),17) TORTURE_SHARE=$(or $(SHARE),1) $(BIN)/python -m pytest -vv -rP -n 2 --dist worksteal --basetemp build/torture -m torture tests/robustness tests/server

# 16 threads speak for an hour: memory, descriptors, threads and samples; make soak MINUTES=10
soak: $(STAMP)
	@mkdir -p build
	@SOAK_MINUTES=$(or $(MINUTES),60) $(BIN)/python -m pytest -rP --basetemp build/soak -m soak tests/robustness/test_soak.py

wheel:  ## dist/*.whl; needs no environment
	@rm -f dist/*.whl
	@$(PYTHON) -m pip --disable-pip-version-check --quiet wheel --no-deps -w dist .
	@ls -l dist/*.whl

# Hours, best on a Mac. The same command resumes; report.md in build/bundles/NAME names each step, and its exit code.
bundle: $(STAMP)  ## convert, check and measure CHECKPOINT=openbmb/VoxCPM1.5; PUBLISH=me/voxcpm-1.5-coreml uploads it
	@$(BIN)/python -m voxcpm_validation.release $(if $(PUBLISH),--publish "$(PUBLISH)") \
	  "$(or $(CHECKPOINT),$(error expected make bundle CHECKPOINT=openbmb/VoxCPM1.5))"

# After a change to the checkpoint, conversion or its tools; tests/conversion/test_default_bundle.py fails if needed.
# Converts the built-in voice's checkpoint again, to the int8 bundle in the tree.
built-in-voice: $(STAMP)
	@$(BIN)/voxcpm-coreml convert conversion/voxcpm_conversion/default_checkpoint --precision int8 --quantize all \
	  --max-length 1024 --overwrite -o runtime/voxcpm_runtime/default_bundle

# Without conftest.py, which is for what .venv has and the wheel does not need. Speaks offline: a minute or two.
test-wheel: wheel
	@$(PYTHON) -m venv --clear build/wheel
	@build/wheel/bin/python -m pip --disable-pip-version-check --quiet install -c constraints.txt dist/*.whl pytest
	@build/wheel/bin/python -m pytest --noconftest -m wheel tests/test_wheel.py

# The Swift package on Linux against Python: minutes; VOXCPM_MINUTES=30 for long speech in constant memory. The script
# prints the path of Swift, or why it is missing, which is an error in continuous integration (CI is set).
test-swift: $(STAMP)
	@swift=$$(tests/swift/toolchain.sh) && SWIFT=$$swift $(BIN)/python -m pytest -m swift tests/swift || \
	  { test -z "$$swift" && test -z "$$CI"; }

CLIENTS := .venv-clients

# Pipecat and LiveKit need more packages than this project, in their own versions. If pip cannot install them, their
# tests are skipped, as is the one of ElevenLabs' JavaScript SDK without npm; in continuous integration (CI is set)
# that is an error.
$(CLIENTS)/.installed: tests/agents/requirements.txt
	@echo "Installing the clients"
	@$(PYTHON) -m venv $(CLIENTS)
	@if $(CLIENTS)/bin/python -m pip --disable-pip-version-check --quiet install -r $<; then touch $@; \
	  else rm -rf $(CLIENTS); echo "pip cannot install Pipecat's and LiveKit's packages here (see above)"; fi
	@test ! -e $@ || npm install --silent --no-save --prefix $(CLIENTS) @elevenlabs/elevenlabs-js@2.73.0 || \
	  echo "npm cannot install ElevenLabs' JavaScript SDK here"

test-clients: $(STAMP) $(CLIENTS)/.installed
	@if test -e $(CLIENTS)/.installed; then $(BIN)/python -m pytest -m clients tests/server; \
	  else echo "1 skipped: the tests with Pipecat and LiveKit, whose packages cannot be installed"; test -z "$$CI"; fi

# Ray brings forty packages, some of which the server would use if installed, so it has its own environment on top of the
# other one.
$(RAY)/.installed: $(STAMP)
	@echo "Creating $(RAY)"
	@$(BIN)/python -m venv $(RAY)
	@$(BIN)/python -c 'import site; print("import site;", *(f"site.addsitedir({p!r});" for p in site.getsitepackages()))' \
	  > "$$($(RAY)/bin/python -c 'import site; print(site.getsitepackages()[0])')/below.pth"
	@$(RAY)/bin/python -m pip --disable-pip-version-check --quiet install -c constraints.txt -e '.[ray]'
	@touch $@

# Serves and runs a batch on a Ray cluster of two nodes on this machine.
test-ray: $(RAY)/.installed
	@$(RAY)/bin/python -m pytest -m ray tests/server/cluster

SUPPLY := build/supply

# Tools for maintainers only, with their own requirements.
$(SUPPLY)/.installed: constraints.txt
	@echo "Creating $(SUPPLY)"
	@$(PYTHON) -m venv $(SUPPLY)
	@$(SUPPLY)/bin/python -m pip --disable-pip-version-check --quiet install -c constraints.txt uv pip-audit
	@touch $@

# Updates uv.lock; make lock PACKAGE=numpy==2.4.6 changes a version.
lock: $(SUPPLY)/.installed
	@$(SUPPLY)/bin/uv lock --no-python-downloads $(addprefix --upgrade-package ,$(PACKAGE))

# macOS 14, 15 and 26 have a wheel of each package, on Python 3.10 to 3.13; known vulnerabilities of those in uv.lock.
# Strict: a package that the database does not know is an error, not a line among others.
audit: $(SUPPLY)/.installed
	@$(SUPPLY)/bin/python tests/mac_packages.py $(SUPPLY)/bin/uv
	@$(SUPPLY)/bin/uv export --quiet --frozen --all-extras --no-emit-project -o $(SUPPLY)/requirements.txt
	@$(SUPPLY)/bin/pip-audit --strict --disable-pip --require-hashes --progress-spinner off -r $(SUPPLY)/requirements.txt

clean:  ## remove the environment and caches
	rm -rf $(VENV) build dist .mypy_cache .pytest_cache .ruff_cache
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
