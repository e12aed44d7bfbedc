# make run: a broker on 127.0.0.1:9092 with its data in ./data. make test: the whole suite. Both make .venv first.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
LISTEN ?= 127.0.0.1:9092
DATA ?= data
SPACE := $(subst ,, )
# The broker's environment, and what the demonstration and the tests add to it: each is made again when its requirements change.
RUN_STAMP := $(VENV)/.run-installed
DEMO_STAMP := $(VENV)/.demo-installed
DEV_STAMP := $(VENV)/.dev-installed
# On a terminal each package is named as it comes, with its size.
QUIET := $(if $(MAKE_TERMOUT),,--quiet)
# Byte code is left to the first import, which makes it of what is imported alone. (PIP_NO_COMPILE=1 would compile: pip reads it as a yes.)
PIP := $(BIN)/python -m pip --disable-pip-version-check install $(QUIET) --no-compile
# An older pip, like that in the wheel that comes with Python, takes twice the time to choose among the files of an index.
NEW_PIP := pip==26.3
PIP_WHEEL = import ensurepip, glob, sysconfig; \
	print(*glob.glob((sysconfig.get_config_var("WHEEL_PKG_DIR") or ensurepip.__path__[0] + "/_bundled") + "/pip-*.whl"))
# $(call telling,WORDS,COMMAND): runs a command, and says every four seconds that it is still running.
telling = { while sleep 4 >/dev/null && kill -0 $$$$; do echo "  still $(1)"; done 2>/dev/null & }; \
	told=$$!; $(2); code=$$?; kill $$told; exit $$code
# $(call check_python,PROGRAM,TARGETS): fails unless the program is new enough, and says what to type.
check_python = $(1) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
	{ echo "Diamant needs CPython 3.11 or newer; $(1) is $$($(1) --version 2>&1 | sed 's/^Python //'). make $(2) PYTHON=python3.11" >&2; exit 1; }
JAVA_PACKAGE := openjdk-17-jre-headless
BROWSER_PACKAGE := chromium
GOALS := $(or $(filter-out clean,$(MAKECMDGOALS)),run)
# Byte code of the tests and of the processes they start is kept, whatever the shell says: without it they take half as long again.
unexport PYTHONDONTWRITEBYTECODE
# The files to look at; the top-level links into the package are not among them.
SOURCES := diamant tests $(wildcard bench docs examples release)

# The site of the documentation: an environment of its own.
SITE := $(VENV)/site
SITE_STAMP := $(SITE)/.installed

VERSION = $(shell sed -n 's/^__version__ = "\(.*\)"$$/\1/p' diamant/version.py)
# What builds wheels, and lists what is in an installation: an environment of its own.
DIST := $(VENV)/dist
DIST_STAMP := $(DIST)/.installed

# What makes the single file: an environment of its own, with Diamant as it is when it is installed.
SINGLE := $(VENV)/single

# A copy whose kernels check their bounds, and what is tried there.
CHECKED := build/checked
CHECKED_TESTS := tests/kernels tests/cleaner/engines tests/cleaner/evidence -k "not Spark and not worker_process and not without_kernels"

# The oldest versions: an environment of their own, with the tools that its tests need, and what is tried there.
LOWEST := $(VENV)/lowest
LOWEST_STAMP := $(LOWEST)/.installed
LOWEST_TOOLS = $(shell grep -E '^(hypothesis|lz4|pytest|pytest-asyncio|pytest-timeout|python-snappy|zstandard)==' requirements-dev.txt)
LOWEST_TESTS := $(addprefix tests/broker/,handlers/data/test_produce_fetch.py http/test_http.py \
	erasure/keys/test_erasing.py erasure/certificates/test_verifying.py) \
	tests/kernels/test_record_walk.py

# What another Python has to pass: it builds and loads the kernels.
MAIN_STAMP := $(VENV)/.main-installed
MAIN_TOOLS = $(LOWEST_TOOLS) $(shell grep '^numpy==' requirements-spark.txt)
MAIN_TESTS := tests/kernels $(LOWEST_TESTS)

.PHONY: run test collect quick torture soak fuzz matrix sanitize main lowest check format bench demo demo-spark docs site screenshots vendor dist single sbom image-check clean help java browser

help: ## this list
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "make %-11s %s\n", $$1, $$2 }' $(firstword $(MAKEFILE_LIST))

run: $(RUN_STAMP) ## start a broker (LISTEN=127.0.0.1:9092 DATA=data)
	$(BIN)/diamant start --listen $(LISTEN) --data $(subst $(SPACE),\ ,$(DATA))

test: $(DEV_STAMP) java browser ## the whole suite (JAVA=skip, BROWSER=skip: install none where it is missing)
	$(BIN)/python -m pytest -n 3 --dist worksteal

# Spark needs Java 17 or newer. Its tests are skipped without, and fail if CI is set. A root of Debian gets it installed.
java:
ifneq ($(JAVA),skip)
	@$(BIN)/python -m diamant.cleaner.spark.environment.java >/dev/null 2>&1 || if [ "$$(id -u)" = 0 ] && [ -f /etc/debian_version ]; then \
		echo "Spark needs Java 17 or newer and there is none: installing $(JAVA_PACKAGE) (make test JAVA=skip does not)"; \
		apt-get update -q && DEBIAN_FRONTEND=noninteractive apt-get install -y -q $(JAVA_PACKAGE) \
			|| echo "that failed: the tests of Spark are skipped" >&2; \
	else \
		echo "the tests of Spark are skipped: they need Java 17 or newer. On Debian, as root: apt-get install -y $(JAVA_PACKAGE)" >&2; \
	fi
endif

# The same for the browser that the tests of the page drive.
browser:
ifneq ($(BROWSER),skip)
	@command -v chromium >/dev/null || if [ "$$(id -u)" = 0 ] && [ -f /etc/debian_version ]; then \
		echo "The page is tested in Chromium and there is none: installing it (make test BROWSER=skip does not)"; \
		apt-get update -q && DEBIAN_FRONTEND=noninteractive apt-get install -y -q --no-install-recommends $(BROWSER_PACKAGE) \
			|| echo "that failed: the tests in a browser are skipped" >&2; \
	else \
		echo "the tests in a browser are skipped: they need Chromium. On Debian, as root: apt-get install -y $(BROWSER_PACKAGE)" >&2; \
	fi
endif

# The byte code of the tests, made once, beside `check`: else each of the workers of `test` makes all of it.
collect: $(DEV_STAMP)
	$(BIN)/python -m pytest -q -p no:cacheprovider --collect-only | tail -n 1

quick: $(DEV_STAMP) ## the part of the suite to run before every commit
	$(BIN)/python -m pytest -n 3 --dist worksteal -q -m "not slow"

torture: $(DEV_STAMP) ## kill a broker, break its disk and check what it answered, seed after seed (FOR=10m SEED=1)
	$(BIN)/python -m tests.torture --for $(or $(FOR),10m) --seed $(or $(SEED),1)

fuzz: $(DEV_STAMP) ## requests and files that are nearly right, against brokers (FOR=10m SEED=1)
	$(BIN)/python -m tests.fuzz --for $(or $(FOR),10m) --seed $(or $(SEED),1)

soak: $(DEV_STAMP) ## hours of steady load: memory, descriptors, threads, disk and latency, drawn in build/soak.svg (FOR=24h)
	$(BIN)/python -m tests.torture.soak --for $(or $(FOR),1h)

# In a copy: the kernels of this checkout stay what they are.
sanitize: $(DEV_STAMP) ## the tests of kernels, engines and scans, with bounds checks and sanitizers (DIAMANT_EXAMPLES=200: more random logs)
	rm -rf $(CHECKED) && mkdir -p $(CHECKED)
	git ls-files -z | xargs -0 cp --parents -Pt $(CHECKED)
	cd $(CHECKED) && DIAMANT_KERNELS=checked $(abspath $(BIN))/python setup.py -q build_ext --inplace
	cd $(CHECKED) && LD_PRELOAD="$$(gcc -print-file-name=libasan.so)" ASAN_OPTIONS=detect_leaks=0 \
		$(abspath $(BIN))/python -m pytest -q -p no:cacheprovider $(CHECKED_TESTS)

# One after another: `.venv` is that of its Python, the others' are below it.
matrix: $(DEV_STAMP) ## the suite on every Python at hand: whole on the oldest and newest, else the quick part (PYTHONS="python3.12 …")
	$(BIN)/python -m tests.matrix $(PYTHONS)

main: $(MAIN_STAMP) ## the broker's main path and the kernels (PYTHON=python3.12 VENV=.venv/3.12)
	$(BIN)/python -m pytest -q -p no:cacheprovider -m "not slow" $(MAIN_TESTS)

lowest: $(LOWEST_STAMP) ## the broker's main path on the oldest versions of what it needs (LOWEST_TESTS=tests/cleaner: more)
	$(LOWEST)/bin/python -m pytest -q -p no:cacheprovider -m "not slow" $(LOWEST_TESTS)

check: $(DEV_STAMP) ## format, lint, types, layers, workflows
	$(BIN)/ruff format --check $(SOURCES)
	$(BIN)/ruff check $(SOURCES)
	$(BIN)/mypy
	$(BIN)/lint-imports
	$(BIN)/zizmor --offline --quiet action.yml .github

format: $(DEV_STAMP) ## put the sources into shape
	$(BIN)/ruff format $(SOURCES)
	$(BIN)/ruff check --fix $(SOURCES)

bench: $(DEV_STAMP) ## measure in ten minutes (ONLY="raw start" COMPARE=a revision or checkout; bench/README.md has more)
	$(BIN)/python bench/run.py $(if $(ONLY),--only $(ONLY)) $(if $(COMPARE),--compare '$(COMPARE)') \
		$(if $(ROUNDS),--rounds $(ROUNDS)) $(if $(SCALE),--scale $(SCALE)) $(if $(JSON),--json '$(JSON)')

demo: $(DEMO_STAMP) ## watch a shop forget customer 42, and prove it (KEEP=yes keeps its files)
	$(BIN)/python -m examples.forget_customer_42 $(if $(KEEP),--keep)

demo-spark: $(DEV_STAMP) java ## watch Spark find customer 42 in 36 partitions, and forget (KEEP=yes keeps its files)
	$(BIN)/python -m examples.find_customer_42 $(if $(KEEP),--keep)

docs: $(DEV_STAMP) ## write the pages and the map that are made of tables and docstrings
	$(BIN)/python -m release.reference.configuration docs/reference/configuration.md
	$(BIN)/python -m release.reference.metrics docs/reference/metrics.md
	$(BIN)/python -m release.reference.access docs/reference/access.md
	$(BIN)/python -m release.reference.method_files
	$(BIN)/python -m release.reference.words docs/reference/words.md
	$(BIN)/python -m release.reference.pages docs/reference
	$(BIN)/python -m tests.folder_map

screenshots: $(DEV_STAMP) browser ## take the pictures of the page again, in docs/pictures
	$(BIN)/python -m tests.broker.http.page.screenshots docs/pictures

vendor: ## fetch the page's JavaScript libraries again, as static/vendored.json names them (needs npm)
	$(PYTHON) -m tests.broker.http.page.vendor

site: $(SITE_STAMP) ## build the documentation as a site in build/site; a dead link fails
	NO_MKDOCS_2_WARNING=1 $(SITE)/bin/python -m mkdocs build --quiet
	@echo "build/site/index.html"

dist: $(DIST_STAMP) ## wheels for each machine and the source distribution in dist/, checked (CHECK=no: built alone)
	$(DIST)/bin/python -m release.build dist
ifneq ($(CHECK),no)
	$(DIST)/bin/python -m release.check dist
endif

# Modules are imported by name, so all of them are taken. Symbols for debuggers are not. The program is copied because beside it, in a
# package of this checkout, PyInstaller would take Diamant from here, without kernels.
single: $(VENV)/bin/python requirements-single.txt ## one file with Python in it: dist/diamant, for machines like this one and newer
	@echo "installing what makes a single file into $(SINGLE)"
	$(BIN)/python -m venv --clear --without-pip $(SINGLE)
	@$(call telling,installing or compiling,$(BIN)/python -m pip --python $(SINGLE)/bin/python --disable-pip-version-check \
		install --quiet --no-compile -r requirements.txt -r requirements-single.txt .)
	@mkdir -p build/single && cp release/single.py build/single
	@$(call telling,packing,cd build/single && $(abspath $(SINGLE))/bin/pyinstaller --log-level ERROR --noconfirm --onefile --strip \
		--name diamant --recursive-copy-metadata diamant-broker --collect-all diamant --collect-submodules kio.schema \
		--hidden-import diamant.kernels.compiled \
		--specpath . --workpath . --distpath ../../dist single.py)
	@echo "dist/diamant"

# As the suite and the images have it: the versions of requirements.txt.
sbom: $(DIST_STAMP) ## list what is in an installation, as dist/*.cdx.json (CycloneDX)
	rm -rf build/sbom && $(BIN)/python -m venv --without-pip build/sbom && mkdir -p dist
	$(BIN)/python -m pip --python build/sbom --disable-pip-version-check install --quiet --no-compile -r requirements.txt
	sed 's/^dynamic = .*/version = "$(VERSION)"/' pyproject.toml > build/sbom/pyproject.toml
	$(DIST)/bin/cyclonedx-py environment --pyproject build/sbom/pyproject.toml --output-reproducible \
		--output-file dist/diamant_broker-$(VERSION).cdx.json build/sbom/bin/python

# In a network and with mounts of its own, which end with it.
image-check: $(DEV_STAMP) ## build the images of docker/ with buildah and run them (as root, on Debian; some minutes; MACHINE=arm64: emulated)
	$(BIN)/python -m release.images build/images $(MACHINE)
	unshare --mount --net $(BIN)/python -m release.image_check build/images $(MACHINE)

clean: ## remove what was made; data stays
	rm -rf $(VENV) build dist *.egg-info .mypy_cache .pytest_cache .ruff_cache .hypothesis .import_linter_cache
	find diamant tests -name __pycache__ -type d -prune -exec rm -rf {} +

$(VENV)/bin/python:
	@command -v $(PYTHON) >/dev/null || { echo "$(PYTHON): not found. make $(GOALS) PYTHON=python3.11" >&2; exit 1; }
	@$(call check_python,$(PYTHON),$(GOALS))
	@wheel="$$($(PYTHON) -c '$(PIP_WHEEL)' 2>/dev/null)"; \
	if [ -f "$$wheel" ]; then $(PYTHON) -m venv --without-pip $(VENV) && \
		$(call telling,installing pip,$(BIN)/python "$$wheel/pip" --disable-pip-version-check install $(QUIET) --no-compile $(NEW_PIP)); \
	else $(PYTHON) -m venv $(VENV); fi

# The stamp has the sum of what it was made of: of a copy, and after a checkout, times say nothing.
RUN_SUM := $(shell cat requirements.txt pyproject.toml setup.py $(wildcard diamant/kernels/*.p* diamant/kernels/*.h diamant/kernels/constants/*.py) | cksum)
ifneq ($(RUN_SUM),$(shell cat $(RUN_STAMP) 2>/dev/null))
.PHONY: $(RUN_STAMP)
endif

# Unmuted, setuptools warns of its own compat mode.
$(RUN_STAMP): | $(VENV)/bin/python
	@$(call check_python,$(BIN)/python,clean $(GOALS))
	@echo "installing what the broker needs into $(VENV), and compiling the kernels: half a minute the first time"
	@$(call telling,installing or compiling,PYTHONWARNINGS=ignore \
		$(PIP) -r requirements.txt --config-settings editable_mode=compat --editable .)
	@echo '$(RUN_SUM)' > $@

$(DEMO_STAMP): requirements-demo.txt $(RUN_STAMP)
	@echo "installing two Kafka clients for the demonstration"
	@$(call telling,installing,$(PIP) -r requirements-demo.txt)
	@touch $@

# What is not used is not compiled: that would cost as much as all else.
$(LOWEST_STAMP): requirements-lowest.txt requirements-dev.txt | $(RUN_STAMP)
	$(BIN)/python -m venv --clear --without-pip $(LOWEST)
	$(BIN)/python -m pip --python $(LOWEST)/bin/python --disable-pip-version-check install --quiet --no-compile \
		-r requirements-lowest.txt $(LOWEST_TOOLS)
	@touch $@

$(MAIN_STAMP): requirements-dev.txt requirements-spark.txt $(RUN_STAMP)
	@$(call telling,installing,$(PIP) $(MAIN_TOOLS))
	@touch $@

$(DIST_STAMP): requirements-dist.txt | $(VENV)/bin/python
	@echo "installing a compiler for all machines into $(DIST) (100 MB)"
	$(BIN)/python -m venv --clear $(DIST)
	$(DIST)/bin/python -m pip --disable-pip-version-check install -r requirements-dist.txt
	@touch $@

$(SITE_STAMP): requirements-docs.txt | $(VENV)/bin/python
	@echo "installing mkdocs-material into $(SITE)"
	$(BIN)/python -m venv --clear --without-pip $(SITE)
	$(BIN)/python -m pip --python $(SITE)/bin/python --disable-pip-version-check install --quiet -r requirements-docs.txt
	@touch $@

# PySpark comes as sources, whose wheel is unpacked at once: to compress its 500 MB would cost 20 s of a processor.
$(DEV_STAMP): requirements-dev.txt requirements-spark.txt $(RUN_STAMP)
	@echo "installing what tests and checks need, Spark among it: 1.3 GB on the disk, some minutes the first time"
	@$(call telling,installing,$(PIP) --config-settings=--build-option=--compression=stored -r requirements-dev.txt)
	@touch $@
