# Thin: each target is a line of cargo or a script. `make help` lists them.

BENCH = --engine nessie --fabric shm --records 1000000 --value-size 64 --dist zipf:0.99 \
        --reads 0.95 --clients 1 --lanes 32 --seconds 5 \
        --peer memcached,redis,lmdb

.DEFAULT_GOAL := help
.PHONY: demo test bench figures lint sanitize deps clean help

demo: ## three nodes and two clients on this host, compared with memcached and Redis
	scripts/deps.sh build peers
	cargo run --release --locked -p loch-cli -- demo

test: ## every check that a change has to pass
	scripts/test.sh

bench: ## one workload on Loch and its peers; BENCH="…" for another
	scripts/deps.sh build peers
	cargo run --release --locked -p loch-cli -- bench $(BENCH)

figures: ## measure what docs/performance.md shows: a quarter of an hour of a quiet machine
	scripts/deps.sh build peers
	scripts/figures.sh

lint: ## the part of `test` that runs no code: format, clippy, house rules, dependencies
	scripts/lint.sh

sanitize: ## the tests of the unsafe crate under AddressSanitizer; needs a nightly compiler
	scripts/sanitize.sh address

deps: ## install what the targets need
	scripts/deps.sh

clean: ## remove what was built
	cargo clean

help: ## this list
	@sed -n 's/^\([a-z]*\):.*## \(.*\)/  make \1	\2/p' $(MAKEFILE_LIST) | expand -t 18
