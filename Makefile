# `make demo` and `make test` are the commands to start with. Both can be repeated, and work offline once installed.

PYTHON ?= python3
BIN := .venv/bin
RUN := $(BIN)/python -m
CONSTRAINTS := .ci/constraints.txt
PIP := $(RUN) pip --disable-pip-version-check install --quiet --no-build-isolation --constraint $(CONSTRAINTS)
PLUGINS := $(patsubst %/pyproject.toml,%,$(wildcard plugins/*/pyproject.toml))
# Packages that connect other trainers, which are no dependencies of this environment: see .ci/versions/trainers.py.
BRIDGES := $(patsubst %/pyproject.toml,%,$(shell grep --files-with-matches '"hookbus.bridges"' plugins/*/pyproject.toml))
DEMO_PLUGINS := logger timer checkpoint ema eval early-stopping tensorboard model-summary predictions zoo
SPACE := $(subst ,, )
# In random order: SEED= repeats an order. The RNGs are not seeded, because a test that depends on chance must fail.
SHUFFLED := pytest --randomly-dont-reset-seed $(if $(SEED),--randomly-seed $(SEED))
PYTEST := $(RUN) $(SHUFFLED)
# A worker that is done takes over tests of the other one, so that none is idle while long tests are left.
WORKERS := --numprocesses auto --dist worksteal
VERSIONS := PYTHONPATH=.ci $(RUN) versions
export OMP_NUM_THREADS ?= 1
# Compiled modules are kept: each of the many processes that tests start would compile hookbus again.
unexport PYTHONDONTWRITEBYTECODE
# In memory, if 4 GB of it are free: a fifth of the time of the tests is spent in fsync.
ifneq ($(shell test "$$(df --output=avail /dev/shm 2> /dev/null | tail -n 1)" -gt 4000000 2> /dev/null && echo memory),)
export PYTEST_DEBUG_TEMPROOT ?= /dev/shm
endif

.PHONY: demo test test-all test-exhaustive test-lowest test-torch test-python test-newest test-install environments bridges bridges-newest matrix lowest coverage lint types imports package docs bench campaigns generate notebook pre-commit changelog history release clean

demo: .venv/demo
	$(BIN)/hookbus train docs/examples/digits.yaml

test: .venv/all
	$(PYTEST) -m "not slow and not gpu" $(WORKERS)

test-all: .venv/all
	$(PYTEST) -m "slow and not exhaustive and not gpu" $(WORKERS)

test-exhaustive: .venv/all
	$(PYTEST) -m "exhaustive" $(WORKERS)

test-lowest: .venv/all
	$(VERSIONS) --lowest $(TESTS)

test-torch: .venv/all
	$(VERSIONS) --torch "$(TORCH)" $(TESTS)

test-python: .venv/all
	$(VERSIONS) --python "$(PYTHON)" $(TESTS)

test-newest: .venv/all
	$(VERSIONS) --newest

test-install: .venv/all
	$(VERSIONS).installation $(TORCH)

environments: .venv/all
	$(VERSIONS) --make

bridges: .venv/all
	$(VERSIONS).bridges $(HOST)

bridges-newest: .venv/all
	$(VERSIONS).bridges --newest

matrix: .venv/all
	$(VERSIONS) --matrix

lowest: .venv/all
	$(VERSIONS) --lock-lowest

coverage: .venv/all
	$(RUN) coverage erase
	$(RUN) coverage run -m $(SHUFFLED) --hypothesis-profile ci -m "not slow and not gpu" $(WORKERS)
	$(RUN) coverage combine --quiet
	$(RUN) coverage report

lint: .venv/all
	$(RUN) ruff check .
	$(RUN) ruff format --check .
	$(BIN)/python tests/vocabulary.py
	$(BIN)/codespell

types: .venv/all
	MYPYPATH=.ci:$(subst $(SPACE),:,$(wildcard docs/examples/hookbus-*)) $(RUN) mypy hookbus $(wildcard plugins/*/hookbus_*) \
		benchmarks docs/generating docs/navigation.py $(wildcard docs/examples/*.py docs/examples/*/hookbus_*) tests/typing .ci/releasing .ci/versions
	rm -rf build/new && mkdir -p build/new
	for variant in --writer --bridge ""; do (cd build/new && "$(CURDIR)/$(BIN)/hookbus" new hookbus-new$${variant#-} $$variant && \
		cd hookbus-new$${variant#-} && MYPYPATH="$(CURDIR)" "$(CURDIR)/$(BIN)/python" -m mypy --cache-dir "$(CURDIR)/.mypy_cache" .) || exit 1; done
	$(RUN) pyright

imports: .venv/all
	$(BIN)/lint-imports
	$(BIN)/lint-imports --config .ci/importlinter-events.toml

package: .venv/all
	$(PYTEST) -m "slow and not gpu" tests/packaging

docs: .venv/all
	NO_MKDOCS_2_WARNING=1 $(RUN) mkdocs build --strict --quiet

bench: .venv/all
	$(RUN) benchmarks.bench_emit
	$(RUN) benchmarks.bench_loop
	$(RUN) benchmarks.bench_import --rounds $(or $(ROUNDS),3)
	$(RUN) benchmarks.bench_ema --rounds $(or $(ROUNDS),5)
	$(RUN) benchmarks.bench_checkpoint --megabytes 40 --rounds $(or $(ROUNDS),3)
	KINETO_LOG_LEVEL=6 $(RUN) benchmarks.bench_observers --rounds $(or $(ROUNDS),5)
	$(RUN) benchmarks.bench_ranks --blocks $(or $(ROUNDS),5)

campaigns: .venv/all
	$(RUN) tests.campaigns $(if $(ONLY),--only $(ONLY)) $(if $(N),--trials $(N)) $(if $(SEED),--seed $(SEED))

generate: .venv/all
	$(BIN)/python tests/generate.py
	$(RUN) docs.generating

notebook: .venv/all
	$(RUN) tests.notebooks

pre-commit: .venv/all
	$(BIN)/pre-commit install

changelog:
	PYTHONPATH=.ci $(PYTHON) -m releasing.changelog $(BASE)

history: .venv/all
	$(MAKE) --no-print-directory bench | tee /dev/stderr | $(RUN) benchmarks.history $(VERSION)

release: .venv/all
	PYTHONPATH=.ci $(RUN) releasing.release $(VERSION) --check
	$(MAKE) --no-print-directory package
	PYTHONPATH=.ci $(RUN) releasing.release $(VERSION)

clean:
	rm -rf .venv runs

.venv/base: $(CONSTRAINTS)
	test -x $(BIN)/python || $(if $(filter 3.%,$(PYTHON)),python3,$(PYTHON)) -m venv .venv
	$(PIP) pip hatchling editables
	@touch $@

.venv/demo: .venv/base pyproject.toml $(DEMO_PLUGINS:%=plugins/hookbus-%/pyproject.toml)
	$(PIP) -e . $(DEMO_PLUGINS:%=-e plugins/hookbus-%)
	@touch $@

.venv/all: .venv/base pyproject.toml $(PLUGINS:%=%/pyproject.toml)
	$(PIP) -e . $(patsubst %,-e %,$(filter-out $(BRIDGES),$(PLUGINS))) --group test --group notebook --group lint --group build --group docs
	$(PIP) --no-deps $(BRIDGES:%=-e %)
	@touch $@
