# The two commands of the README, and what else a developer needs. Each sets up what it uses.
.PHONY: demo test test-slow bench docs lint clean

demo: ## bring the lab up and run the main job on it
	@bash .ci/demo

test: ## style, types, unit, wire and lab tests (under 20 minutes)
	@bash .ci/test

test-slow: ## sweeps and ranges of versions
	@bash .ci/test-slow

bench: ## promised figures as ratios against peers
	@bash .ci/bench

docs: ## the documentation into .cache/site; a warning or a dead link is an error
	@bash .ci/docs

lint: ## ruff and mypy alone
	@bash -c '. .ci/lib.sh; make_venv; ruff check . && ruff format --check . && mypy'

clean: ## remove what the targets made in this checkout
	@rm -rf .venv .cache .lab .mypy_cache .ruff_cache .pytest_cache .hypothesis htmlcov build *.egg-info
