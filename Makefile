# What people and CI call. `make demo` and `make test` prepare all that they need; a second time they install nothing.
# The first Python that runs and is new enough; a name alone may be a launcher that starts nothing.
PYTHON ?= $(shell for name in python3 python3.13 python3.12 python3.11; do \
	$$name -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null && { echo $$name; break; }; done)
VENV := .venv/bin
PYTEST_ARGS ?=
COMPILE := uv pip compile --quiet --universal --python-version 3.11 --generate-hashes \
	--no-emit-index-url --no-emit-find-links --no-annotate --no-header

# One thread a process: several processes with several threads each slow one another down.
export OMP_NUM_THREADS ?= 1

.DEFAULT_GOAL := help
.PHONY: help setup demo test lint fuzz docs lock stack-up stack-down python prepare-test

help:
	@echo "make setup       prepare .venv with what the demo needs"
	@echo "make demo        train on the simulated phone (ARGS='--minutes 2' passes options on)"
	@echo "make test        prepare all that the tests need, then lint, type-check and test"
	@echo "make lint        ruff, mypy, the import rules and the schemas (after make test has prepared)"
	@echo "make fuzz        feed every reader of foreign bytes with what is nearly right (ARGS='--inputs 1000000 --target codec')"
	@echo "make faults      harm runs in many ways and look whether anything is lost (ARGS='--each 2 --log kafka')"
	@echo "make docs        write the reference pages of docs/ again from the code"
	@echo "make lock        write locks/*.lock again from pyproject.toml (UPGRADE=1: with newer versions)"
	@echo "make stack-up    start Kafka, S3 and a schema registry here, without docker (ONLY=kafka,s3,registry,appium chooses)"
	@echo "make stack-down  end them and remove what they kept"

python:
	@test -n "$(PYTHON)" || { echo "error: Python 3.11 or newer is missing: apt-get install -y python3 python3-venv" >&2; exit 3; }

setup: python
	@$(PYTHON) tools/prepare.py demo

demo: setup
	$(VENV)/distrl demo $(ARGS)

prepare-test: python
	@$(PYTHON) tools/prepare.py test

lint: prepare-test
	$(VENV)/ruff check .
	$(VENV)/ruff format --check .
	$(VENV)/mypy
	$(VENV)/lint-imports
	$(VENV)/distrl schemas check

test: prepare-test lint
	$(VENV)/python -m pytest $(PYTEST_ARGS)

fuzz: prepare-test
	$(VENV)/python tools/fuzz $(ARGS)

faults: prepare-test
	$(VENV)/python tests/faults/campaign.py $(ARGS)

docs: prepare-test
	$(VENV)/python tools/reference.py

# demo.lock is held to test.lock, so that both install the same versions.
lock: prepare-test
	$(VENV)/python -m $(COMPILE) $(if $(UPGRADE),--upgrade) pyproject.toml --all-extras --group test --group lint --group build -o locks/test.lock
	$(VENV)/python -m $(COMPILE) pyproject.toml --extra torch --extra simulated --group build -c locks/test.lock -o locks/demo.lock

stack-up: prepare-test
	$(VENV)/python compose/stack.py up $(if $(ONLY),--only $(ONLY))

stack-down:
	$(VENV)/python compose/stack.py down
