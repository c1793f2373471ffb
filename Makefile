# Builds dist/sediment.pyz and checks it. `make help` lists the targets.

PYTHON ?= python3
UV ?= uv
# PYTHON=3.13 is a version. What is built for another platform any Python packs.
VERSION := $(filter 3.%,$(PYTHON))
ifneq ($(VERSION),)
override PYTHON := $(if $(PLATFORM)$(filter release,$(MAKECMDGOALS)),python3,python$(VERSION))
endif
TAG := $(shell $(PYTHON) -c "import sys; v = sys.version_info; v >= (3, 11) and print('cp%d%d' % v[:2])" 2>/dev/null)
BUILD := build/$(TAG)
LOCKS := .ci/requirements
SOURCES := sediment.py sediment_ext build_zipapp.py build_release.py models tests
EXTENSIONS := $(shell find sediment_ext -name '*.py')
ASSETS := $(shell find assets -type f ! -name '*.png')
PYZ := dist/sediment.pyz
# The locks are complete, so pip need not look for dependencies; nothing is compiled here.
PIP_INSTALL := -m pip install --quiet --disable-pip-version-check --no-deps --require-hashes --only-binary=:all:
RUN := SEDIMENT_PYZ=$(CURDIR)/$(PYZ)

.PHONY: all platform release docs demo test test-page test-arm64 mutants lint bench bench-peers bench-quality encoder ranker soak lock clean help python FORCE
all: $(if $(PLATFORM),platform,$(PYZ))

help:
	@echo 'make                           build $(PYZ)   (PYTHON=python3.12 chooses the Python)'
	@echo 'make PLATFORM=linux-arm64      build for another platform: linux-x86_64, linux-arm64, macos-arm64, macos-x86_64,'
	@echo '                               windows-x86_64   (PYTHON=3.13 chooses its Python)'
	@echo 'make release                   build for all platforms and Pythons that the locks have wheels for'
	@echo 'make docs                      write what the documentation takes from the program'
	@echo 'make demo                      show what Sediment does'
	@echo 'make test                      build, and run all tests but the page'\''s'
	@echo 'make test-page                 test the page in Chromium, where there is one (SHOTS=DIR keeps pictures), and'
	@echo '                               what /v1/openapi.json says of the server, by Schemathesis'
	@echo 'make test-arm64                run dist/sediment-linux-arm64-*.pyz by qemu (on Debian or Ubuntu)'
	@echo 'make mutants                   put bugs in, one at a time, and say which no test notices   (ONLY="words of one")'
	@echo 'make lint                      ruff, pyright, and the layout of the module'
	@echo 'make encoder                   learn models/lessons again from tests/, and build the model with them'
	@echo 'make ranker                    learn models/ranker.json again from tests/'
	@echo 'make bench                     measure speed'
	@echo 'make bench-peers               measure Sediment beside its peers   (PEER_SEDIMENT=PROGRAM ITEMS=n DIARIES=n)'
	@echo 'make bench-quality DATA=DIR    measure recall on tests/, and the sets in DIR   (SEEDS="1 2" PARTS="chat diaries")'
	@echo 'make bench-quality LONGMEMEVAL=FILE   measure recall on LongMemEval'\''s longmemeval_s_cleaned.json'
	@echo 'make soak MINUTES=n             try to make it lose data, crash, hang or leak   (SEED=n)'
	@echo 'make lock                      renew the pinned requirements (needs uv)'
	@echo 'make clean                     remove everything built'

python:
	@$(PYTHON) -c '' 2>/dev/null || { echo "error: $(PYTHON) does not start: install it, or name another, as in make PYTHON=python3.12" >&2; exit 1; }
	@test -n "$(TAG)" || { echo "error: Sediment needs Python 3.11 or later, and PYTHON=$(PYTHON) is not: try make PYTHON=python3.12" >&2; exit 1; }
	@$(PYTHON) -c 'import ensurepip, venv' 2>/dev/null || { echo "error: $(PYTHON) cannot make virtual environments: install its venv module (Debian and Ubuntu: apt install python3-venv)" >&2; exit 1; }

# Virtual environments, one folder for each Python version: $(1) is the name, $(2) its locks.
define venv
$(BUILD)/$(1)/.ready: $(2) | python
	rm -rf $$(@D)
	$$(PYTHON) -m venv $$(@D)
	$$(@D)/bin/python $$(PIP_INSTALL) $$(foreach lock,$(2),-r $$(lock))
	touch $$@
endef
RUNTIME := $(LOCKS)/runtime.txt $(LOCKS)/build.txt
$(eval $(call venv,venv,$(RUNTIME)))
$(eval $(call venv,dev,$(RUNTIME) $(LOCKS)/dev.txt))
$(eval $(call venv,train,$(RUNTIME) $(LOCKS)/train.txt))
$(eval $(call venv,mcp1,$(LOCKS)/mcp1.txt))
$(eval $(call venv,mcp2,$(LOCKS)/mcp2.txt))
$(eval $(call venv,api,$(LOCKS)/api.txt))

# Changes only when PYTHON does, so that another Python builds another .pyz.
build/python: FORCE | python
	@mkdir -p build
	@echo $(TAG) | cmp -s - $@ || echo $(TAG) > $@

$(PYZ): sediment.py $(EXTENSIONS) build_zipapp.py models/build_model.py models/lessons/whole.safetensors models/manifest.json models/ranker.json $(ASSETS) $(RUNTIME) build/python $(BUILD)/venv/.ready
	$(BUILD)/venv/bin/python models/build_model.py
	$(BUILD)/venv/bin/python build_zipapp.py

# From wheels, always anew; without PLATFORM a release of all.
platform release: $(BUILD)/venv/.ready
	$(BUILD)/venv/bin/python models/build_model.py
	$(BUILD)/venv/bin/python build_release.py $(PLATFORM) $(if $(VERSION),--python $(VERSION))

docs: $(PYZ) $(BUILD)/dev/.ready
	$(RUN) $(BUILD)/dev/bin/python tests/make_docs.py

demo: $(PYZ)
	$(RUN) tests/demo.sh

# Three at once on two cores: a part of the tests waits for processes (337 s with two, 299 with three).
# Who has none left takes some of the others': the slow tests stand together.
test: $(PYZ) $(BUILD)/dev/.ready $(BUILD)/mcp1/.ready $(BUILD)/mcp2/.ready
	$(RUN) SEDIMENT_MCP1=$(CURDIR)/$(BUILD)/mcp1/bin/python SEDIMENT_MCP2=$(CURDIR)/$(BUILD)/mcp2/bin/python \
		$(BUILD)/dev/bin/python -m pytest -q -n 3 --dist worksteal --ignore tests/test_page.py

test-page: $(PYZ) $(BUILD)/dev/.ready $(BUILD)/api/.ready
	$(RUN) $(if $(SHOTS),SEDIMENT_SHOTS=$(abspath $(SHOTS))) SEDIMENT_SCHEMATHESIS=$(CURDIR)/$(BUILD)/api/bin/st \
		$(BUILD)/dev/bin/python -m pytest -q -rs tests/test_page.py tests/test_openapi.py

test-arm64:
	tests/arm64.sh

# Each bug takes a build and the tests of its subject: two hours for all.
mutants: $(PYZ) $(BUILD)/dev/.ready
	$(BUILD)/dev/bin/python tests/mutants.py $(if $(ONLY),--only "$(ONLY)")

lint: $(BUILD)/dev/.ready
	$(BUILD)/dev/bin/ruff check $(SOURCES)
	$(BUILD)/dev/bin/ruff format --check $(SOURCES)
	$(BUILD)/dev/bin/pyright --pythonpath $(BUILD)/dev/bin/python
	$(BUILD)/dev/bin/python tests/layers.py

bench: $(PYZ) $(BUILD)/dev/.ready
	$(RUN) $(BUILD)/dev/bin/python tests/bench.py
	$(RUN) $(BUILD)/dev/bin/python tests/bench_sync.py

# What Sediment is compared with, each in an environment of its own. One of them needs a Python
# whose sqlite3 loads extensions.
PEERS := chromadb mcp-memory-service
PEER_PYTHON ?= $(shell for found in $(PYTHON) /usr/bin/python3; do \
	$$found -c 'import ensurepip, sqlite3; sqlite3.Connection.enable_load_extension' 2>/dev/null && { echo $$found; break; }; done)
build/peers/%/.ready: tests/peers/%.txt
	@test -n "$(PEER_PYTHON)" || { echo "error: no Python here has a sqlite3 that loads extensions: name one by PEER_PYTHON=" >&2; exit 1; }
	rm -rf $(@D)
	$(PEER_PYTHON) -m venv $(@D)
	$(@D)/bin/python $(PIP_INSTALL) -r $<
	$(@D)/bin/python -m pip uninstall --quiet --yes --disable-pip-version-check setuptools pip
	touch $@

bench-peers: $(PYZ) $(BUILD)/dev/.ready $(PEERS:%=build/peers/%/.ready)
	$(RUN) PEER_SEDIMENT="$(PEER_SEDIMENT)" $(BUILD)/dev/bin/python tests/bench_peers.py $(if $(ITEMS),--items $(ITEMS)) $(if $(DIARIES),--diaries $(DIARIES))

bench-quality: $(PYZ) $(BUILD)/dev/.ready
	$(RUN) $(BUILD)/dev/bin/python tests/bench_quality.py $(if $(DATA),"$(DATA)") $(if $(SEEDS),--seeds $(SEEDS)) $(if $(PARTS),--parts $(PARTS)) $(if $(LONGMEMEVAL),--longmemeval "$(LONGMEMEVAL)")

# In tests/ the encoder learns from diaries, conversations and readings, the ranker from these and
# other sets (docs/ranking.md says which); the results are committed. The ranker learns by what the
# encoder sees, so it comes after it.
encoder: $(BUILD)/train/.ready $(BUILD)/dev/.ready
	$(BUILD)/train/bin/python models/train_encoder.py
	$(BUILD)/dev/bin/python models/gather_cohort.py
	$(BUILD)/dev/bin/python models/reduce_tokens.py
	$(BUILD)/train/bin/python models/build_model.py --update

ranker: $(PYZ) $(BUILD)/dev/.ready
	$(BUILD)/dev/bin/python models/train_ranker.py

soak: $(PYZ) $(BUILD)/dev/.ready
	$(RUN) $(BUILD)/dev/bin/python tests/soak.py $(if $(MINUTES),--minutes $(MINUTES)) $(if $(SEED),--seed $(SEED))

# Each lock holds for all platforms and for CPython 3.11 and later.
LOCK := $(UV) pip compile --quiet --upgrade --universal --generate-hashes --python-version 3.11 --no-header --no-annotate
lock:
	@mkdir -p build
	@for lock in $(patsubst %,$(LOCKS)/%,runtime build dev train mcp1 mcp2 api) $(PEERS:%=tests/peers/%); do \
		name=$$(basename $$lock); \
		$(LOCK) $$(test $$name = runtime && echo --no-deps) $$lock.in -o build/$$name.txt && \
		{ echo "# Made from $$name.in by: make lock"; cat build/$$name.txt; } > $$lock.txt || exit 1; \
	done

clean:
	rm -rf build dist models/all-MiniLM-L6-v2 models/checked.json .pytest_cache .ruff_cache .hypothesis
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
