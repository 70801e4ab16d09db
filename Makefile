# Everything here does its own set-up and can be run again at any time. `make help` explains.

# Which Python the virtual environment is made with: make PYTHON=python3.12 test
PYTHON ?= python3
# More words for pytest: make test PYTEST="-x -k sandbox"
PYTEST ?=
# Test files run side by side, each worker with a broker and an S3 server of its own: make test WORKERS=1
# Most of the time they wait, so there is one worker more than cores.
WORKERS ?= 3
# By file, in the order of tests/support/spread.py: the longest first, and what waits beside what computes.
SPREAD := -n $(WORKERS) --dist loadfile --no-loadscope-reorder
# Processes that only compute: make simulate JOBS=8
JOBS ?= 2
# The unit tests of the pure core, as the mutation testing has them: no servers, no processes, no seconds for one of them.
CORE = $(shell sed -n '/test_selection = /,/^]/s/^ *"\(tests[^"]*\)",$$/\1/p' tests/mutation/staged.toml)

BIN := .venv/bin

.DEFAULT_GOAL := help
.PHONY: help setup demo check test test-all store-test coverage mutation bench bench-keyed docs chart-test chart-golden chart-schema walk kube-test kube-down install-test image-dry-run simulate planted fuzz damage forgeries chaos kills readers cluster-test spark-versions roles model-check broker-matrix diagrams screenshots lint sandbox clean soak lock audit sbom licences wheel release

help: ## Say what can be made
	@echo "Needs Python 3.11 or newer, Java 17 or newer and a network for the first time; the rest it gets by itself."
	@sed -n 's/^\([a-z-]*\):.*## \(.*\)/  make \1|\2/p' Makefile | awk -F'|' '{ printf "%-18s %s\n", $$1, $$2 }'
	@echo "Variables: PYTHON=python3.12 (which Python), PYTEST='-x -k word' (more for pytest), WORKERS=1 (tests one after the other), JOBS=8 (processes that compute)."

setup: ## Virtual environment, packages and the broker's jars; done again only if pyproject.toml or a lock changed
	@bash scripts/setup.sh "$(PYTHON)"

demo: setup ## Back up a real topic, hand over, restore it and compare: the whole mission on this machine
	@$(BIN)/tandem demo

check: lint ## Lint, types, import contracts, limits, and the unit tests of the pure core: a minute, before each commit
	@echo "==> unit tests of the pure core"
	@$(BIN)/pytest -q -n $(JOBS) --dist loadfile --no-loadscope-reorder $(CORE) $(PYTEST)

test: lint ## Lint, types, 300 simulated histories, and all tests but the slow ones
	@echo "==> simulation"
	@PYTHONPATH=tests $(BIN)/python -m simulation --seeds 300 --jobs $(JOBS)
	@echo "==> tests"
	@$(BIN)/pytest $(SPREAD) -m "not slow" --durations=40 --durations-min=5 $(PYTEST)

test-all: lint ## Lint, types, 1,000 simulated histories, all tests, applications that judge a restore, and the site of the documentation; some measure seconds, one after the other
	@echo "==> simulation"
	@PYTHONPATH=tests $(BIN)/python -m simulation --seeds 1000 --jobs $(JOBS)
	@PYTHONPATH=tests $(BIN)/python -m simulation --directed --seeds 3 --jobs $(JOBS)
	@echo "==> tests"
	@$(BIN)/pytest $(SPREAD) -m "not slow" $(PYTEST)
	@echo "==> slow tests"
	@$(BIN)/pytest -m slow $(PYTEST)
	@echo "==> applications that judge a restore"
	@PYTHONPATH=tests $(BIN)/python -m readers
	@$(MAKE) --no-print-directory docs

store-test: setup ## The contract, races, a life of a pair and the demo on five stores, 20 minutes; writes docs/quality/stores.md; needs npm and Go once
	@STORES_PAGE=1 $(BIN)/pytest tests/contract/test_object_store.py tests/contract/test_store_races.py \
		tests/integration/pair/test_each_store.py -m "slow or not slow" $(PYTEST)

coverage: setup ## Branch coverage of the pure core by its unit tests: 100 % or it fails
	@$(BIN)/pytest tests/unit -n $(JOBS) --cov --cov-report=term-missing $(PYTEST)

mutation: setup ## Change the pure core one expression at a time and see who notices; ONLY=pattern, minutes to hours
	@$(BIN)/python -c 'import mutmut' 2>/dev/null || bash scripts/install-locked.sh $(BIN)/python mutation
	@$(BIN)/python -m tests.mutation --jobs $(JOBS) $(if $(ONLY),--only '$(ONLY)')

chart-test: setup ## Render the Helm chart in many ways, check it and its alerts; needs Go the first time
	@bash scripts/chart-tools.sh
	@$(BIN)/pytest tests/chart -n $(JOBS) $(PYTEST)

chart-golden: setup ## Write the kept renderings of the chart anew; look at what changed
	@bash scripts/chart-tools.sh
	@PYTHONPATH=tests $(BIN)/python -m chart

chart-schema: setup ## Write the configuration's part of the chart's values.schema.json anew, from the model
	@$(BIN)/python -m tandem.controller.config.chart_schema helm/tandem/values.schema.json

walk: setup ## A stranger's walk from the chart's values to a running pair, written to docs/walk.md
	@bash scripts/chart-tools.sh
	@PYTHONPATH=tests $(BIN)/python -m chart.walk

kube-test: setup ## Chart, image and docs on a real Kubernetes of two nodes: docs/quality/kube.md; needs root, Go, packages of Debian, half an hour once; ONLY=step, KEEP=1
	@PYTHONPATH=tests $(BIN)/python -m kube --page $(if $(ONLY),--only '$(ONLY)') $(if $(KEEP),--keep)

kube-down: ## End the Kubernetes that make kube-test KEEP=1 left; what was built stays
	@bash tests/kube/cluster/down.sh

install-test: setup ## What a release ships, from built files in new environments: bare, with each extra, by pipx and uvx; DIST=dist for built ones; needs a network
	@bash scripts/release-tools.sh
	@$(if $(DIST),TANDEM_DIST='$(DIST)') $(BIN)/pytest -m slow tests/integration/install/test_wheel.py -rP $(PYTEST)

image-dry-run: setup ## The steps of the Dockerfile without an engine, then what pods do, as user 10001 on a read-only root
	@bash scripts/image-dry-run.sh

simulate: setup ## Two instances in virtual time, everything going wrong: SEEDS=1000 histories (FIRST=, ERASURES=1, ACCIDENTS=1), or SEED=42 told in full
	@PYTHONPATH=tests $(BIN)/python -m simulation --jobs $(JOBS) \
		$(if $(SEED),--seed $(SEED),--seeds $(or $(SEEDS),1000)) $(if $(FIRST),--first $(FIRST)) \
		$(if $(ERASURES),--erasures) $(if $(ACCIDENTS),--accidents)

planted: setup ## Plant one mistake after the other in a copy of the code and see which judge finds it; ONLY='some|words'
	@PYTHONPATH=tests $(BIN)/python -m planted --jobs $(JOBS) $(if $(ONLY),--only '$(ONLY)')

fuzz: setup ## Hostile bytes: the compiled twins against plain Python, INPUTS=1000000 (FIRST=), and all that reads, SECONDS_EACH=20
	@PYTHONPATH=tests $(BIN)/python -m fuzz --inputs $(or $(INPUTS),1000000) --jobs $(JOBS) $(if $(FIRST),--first $(FIRST))
	@PYTHONPATH=tests $(BIN)/python -m fuzz.parsers --seconds-each $(or $(SECONDS_EACH),20) --jobs $(JOBS) \
		$(if $(FIRST),--first $(FIRST))

damage: setup ## Damage a real backup in INPUTS=10000 places (FIRST=, ONLY=bits) and see that verify and restore notice
	@PYTHONPATH=tests $(BIN)/python -m damage --inputs $(or $(INPUTS),10000) --jobs $(JOBS) $(if $(FIRST),--first $(FIRST)) \
		$(if $(ONLY),--only '$(ONLY)')

kills: setup ## Kill driver, executors, workers and broker under three restores, KILLS=30 times (SEED=), and compare; OFFSETS=exact for one mode, VICTIM=driver for one kind
	@PYTHONPATH=tests $(BIN)/python -m kills --kills $(or $(KILLS),30) $(if $(SEED),--seed $(SEED)) \
		$(if $(OFFSETS),--offsets $(OFFSETS)) $(if $(VICTIM),--victim $(VICTIM))

readers: setup ## Let real applications judge a restore and write their rows of docs/quality/readers.md; ONLY=word for some, RESTORE='--offsets dense' for other options
	@PYTHONPATH=tests $(BIN)/python -m readers --page $(if $(ONLY),--only '$(ONLY)') $(if $(RESTORE),--restore='$(RESTORE)')

cluster-test: setup ## Commands on a real Spark cluster, compared with a local master, and workers that are killed: docs/quality/cluster.md
	@$(BIN)/pytest tests/integration/cluster --durations=0 $(PYTEST)

spark-versions: setup ## The tests of all that uses Spark on other releases of PySpark: VERSIONS="4.0 4.1 4.2", 10 minutes each
	@bash scripts/spark-versions.sh $(or $(VERSIONS),4.0 4.1 4.2) -- $(SPREAD) $(PYTEST)

forgeries: setup ## Forge a signed backup INPUTS=1000 times (FIRST=) and see that verify and restore notice
	@PYTHONPATH=tests $(BIN)/python -m damage --forgeries $(or $(INPUTS),1000) --jobs $(JOBS) $(if $(FIRST),--first $(FIRST))

chaos: setup ## Hurt a pair on real servers for ROUNDS=10 rounds (SEED=, FIRST=) and judge its restores
	@PYTHONPATH=tests $(BIN)/python -m chaos \
		--rounds $(or $(ROUNDS),10) $(if $(SEED),--seed $(SEED)) $(if $(FIRST),--first $(FIRST))

roles: setup ## Try every right of every role on servers that refuse the others, and write the tables of docs/roles.md
	@ROLES_PAGE=1 $(BIN)/pytest tests/integration/access/test_roles.py $(PYTEST)

broker-matrix: setup ## A pair, a turn, a restore, its groups and a sweep on older releases of Kafka, 15 minutes; writes docs/compatibility.md
	@COMPATIBILITY_PAGE=1 $(BIN)/pytest tests/integration/install/test_broker_matrix.py $(PYTEST)

soak: setup ## A pair for MINUTES=120 on real servers, a handover every 3: is memory flat? FOLDER= keeps samples and logs
	@PYTHONPATH=tests $(BIN)/python -m soak \
		--minutes $(or $(MINUTES),120) $(if $(FOLDER),--folder '$(FOLDER)')

model-check: setup ## Exhaust the models of the handover, then take each guard away; ONLY=word for some, minutes for all
	@$(BIN)/python -m tests.model $(if $(ONLY),--only '$(ONLY)')

bench: setup ## Catch-up, restore and verify against baselines of the same run on a broker of its own, an hour; QUICK=1 for the main cases, PEER=1 beside OSO kafka-backup instead (needs cargo)
	@$(BIN)/python -m $(if $(PEER),bench.side_by_side,bench $(if $(QUICK),--quick))

bench-keyed: setup ## Sweeps, comparisons, newest records and merges of one large partition, in memory and by a shuffle, minutes; MILLIONS='1 10' records, FOLDER=… keeps them
	@folder=$(or $(FOLDER),$$(mktemp -d)); for millions in $(or $(MILLIONS),1 10); do \
	for pass in 'twice sweep' 'once sweep' 'twice compare' 'twice latest' 'twice merge'; do for strategy in memory shuffle; do \
		if [ "$$strategy $$pass" = 'memory twice merge' ]; then continue; fi; \
		echo "$$millions million records, keys $$pass, $$strategy"; $(BIN)/python -m bench.cases.keyed $$millions $$strategy $$folder $$pass || exit 1; \
	done; done; done

screenshots: setup ## Photograph the status page of a real pair in five states for docs/images; needs chromium, minutes
	@$(BIN)/python -c 'import PIL' 2>/dev/null || bash scripts/install-locked.sh $(BIN)/python screenshots
	@PYTHONPATH=tests $(BIN)/python -m screenshots

diagrams: setup ## Draw the diagrams of docs/protocol.md from the state machine and the chain's rules
	@PYTHONPATH=tests:. $(BIN)/python -m support.pages.diagrams

docs: setup ## Build the documentation as a site into build/site, and check its links, its search, its diagrams and that it loads nothing from elsewhere; needs npm once, chromium for some checks
	@$(BIN)/python -c 'import mkdocs' 2>/dev/null || bash scripts/install-locked.sh $(BIN)/python docs
	@$(BIN)/python scripts/docs_site.py

lock: setup ## Write the locks of requirements/ anew from pyproject.toml; UPGRADE=1 for the newest versions, ONLY=check to look
	@bash scripts/release-tools.sh
	@$(BIN)/python -m supply_chain.lock $(if $(UPGRADE),--upgrade) $(if $(filter check,$(ONLY)),--check)

audit: setup ## Known vulnerabilities in what the locks name; fails if some are known, or if it could not look them up
	@bash scripts/release-tools.sh
	@$(BIN)/python -m supply_chain.audit $(if $(IF_POSSIBLE),--if-possible)

sbom: setup ## Write dist/sbom.cdx.json: all that a running Tandem consists of, Python packages and jars, as CycloneDX
	@$(BIN)/python -m supply_chain.sbom --output dist/sbom.cdx.json

licences: setup ## Write docs/licences.md anew from the installed packages
	@$(BIN)/python -m supply_chain.licences

wheel: setup ## Build what is committed twice into dist/ (wheels, source distribution), and fail if a byte differs
	@bash scripts/release-tools.sh
	@$(BIN)/python -m supply_chain.wheel --output dist

release: setup ## All files of the release TAG=v0.2.0 into dist/: wheels, source distribution, chart, each built twice; publishes nothing
	@bash scripts/release-tools.sh
	@bash scripts/chart-tools.sh
	@$(BIN)/python -m supply_chain.release $(or $(TAG),$(error say which: make release TAG=v0.2.0)) --output dist

lint: setup ## Style, types, who may import whom, and the limits of scripts/structure.py
	@echo "==> ruff, mypy, import-linter, limits"
	@$(BIN)/ruff check --quiet .
	@$(BIN)/ruff format --check --quiet . || { echo "run $(BIN)/ruff format . and look at what changed"; exit 1; }
	@$(BIN)/mypy
	@$(BIN)/lint-imports --no-logo
	@$(BIN)/python scripts/structure.py

sandbox: setup ## Start a broker and an S3 server in .sandbox and print how to reach them
	@$(BIN)/tandem sandbox up

clean: ## Stop that sandbox; remove it, the virtual environment and all that was made
	@if [ -e .sandbox/sandbox.json ] && [ -x $(BIN)/tandem ]; then $(BIN)/tandem sandbox down; fi
	rm -rf .venv .sandbox .mypy_cache .pytest_cache .ruff_cache .hypothesis .import_linter_cache build dist *.egg-info
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
