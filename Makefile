# Thin: each target is a line of cargo or a script. `make help` lists them.

SECONDS = 60

.DEFAULT_GOAL := help
.PHONY: demo test verbs-test model bench papers figures headlines distance hit-ratios soak stress mutants instructions lint sanitize fuzz deps clean help

demo: ## three nodes and two clients on this host, compared with memcached and Redis
	scripts/deps.sh build peers
	cargo run --release --locked -p loch-cli --no-default-features -- demo

test: ## every check for a change on this host: lint, all tests but those on verbs, loom, the simulation, instructions
	scripts/test.sh

verbs-test: ## the tests that need RDMA verbs, in virtual machines; TEXT=… for some of them
	scripts/verbs-test.sh "$(TEXT)"

model: ## every interleaving of small configurations of the protocol, in a minute and a half
	scripts/model.sh

bench: ## what is wanted on shared memory, measured: ten minutes of a quiet machine; BENCH="--reads 0.5": one workload
	scripts/deps.sh build peers
	$(if $(BENCH),cargo run --release --locked -p loch-cli -- bench $(BENCH),scripts/targets.sh $(ARGS))

papers: ## figures and headlines, one after the other: half an hour of a quiet machine
	scripts/deps.sh build peers
	scripts/figures.sh
	scripts/headlines.sh

figures: ## measure the numbers of docs/performance.md: a quarter of an hour of a quiet machine
	scripts/deps.sh build peers
	scripts/figures.sh

headlines: ## measure the claims of the papers, engine beside engine: ten minutes of a quiet machine
	scripts/deps.sh build peers
	scripts/headlines.sh

distance: ## measure every engine over TCP where round trips are long: ten minutes of a quiet machine, as root
	scripts/deps.sh build
	scripts/distance.sh

hit-ratios: ## measure what caches find, beside memcached, Redis and simulated policies: an hour
	scripts/deps.sh build peers
	scripts/hit-ratios.sh

soak: ## run new seeds of the simulation; SECONDS=600 for ten minutes
	scripts/simulate.sh soak $(or $(SECONDS),60)

stress: ## threads and processes that come, go and drop futures where memory is short: SECONDS=60 for each of 18 runs
	LOCH_STRESS_SECONDS=$(SECONDS) cargo test --release --locked -p loch-engines --test stress -- --nocapture
	LOCH_STRESS_SECONDS=$(SECONDS) cargo test --release --locked -p loch-cli --test crash -- --nocapture nothing_is_lost_where_six
	LOCH_STRESS_SECONDS=$(SECONDS) cargo test --release --locked -p loch --test cancellation -- --nocapture

mutants: ## change the code in many ways and see whether a test notices: hours; ARGS="--re layout/slab.rs"
	scripts/mutants.sh $(ARGS)

instructions: ## count the instructions of the hot paths; ARGS=set makes what is counted their bounds
	scripts/instructions.sh $(ARGS)

lint: ## the part of `test` that runs no code: format, clippy, house rules, dependencies
	scripts/lint.sh

sanitize: ## the tests of the unsafe crate under AddressSanitizer; needs a nightly compiler
	scripts/sanitize.sh address

fuzz: ## feed all parsers arbitrary bytes, under AddressSanitizer: SECONDS=60 each; needs a nightly compiler
	scripts/fuzz.sh --seconds $(SECONDS)

deps: ## install the packages that the targets need
	scripts/deps.sh

clean: ## remove the build
	cargo clean

help: ## this list
	@sed -n 's/^\([a-z-]*\):.*## \(.*\)/  make \1	\2/p' $(MAKEFILE_LIST) | expand -t 18
