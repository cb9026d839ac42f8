# What there is to do here, one target each; `make` alone lists them. Needs GNU make, bash and
# cargo, and neither root nor containers. TENURE_SERVERS, from the environment or as
# `make test TENURE_SERVERS=DIR`, says where the real servers are kept.

SHELL := bash
.SHELLFLAGS := -euo pipefail -c
.ONESHELL:
.DEFAULT_GOAL := help
.PHONY: help demo run run-node1 run-node2 run-node3 demo-parallel kill-demo test test-race test-coverage lint bench servers deps \
    install dist performance proof

# `make test STORES=all` fetches every server and lets no test go without.
STORES ?=
ifneq ($(filter-out all,$(STORES)),)
$(error STORES is "all" or nothing, not "$(STORES)")
endif

help: ## this list
	@sed -nE 's/^([a-z-]+):.* ## (.*)/  make \1\t\2/p' Makefile | expand -t 24

demo: ## three processes, one leads: it is killed, stopped, frozen, and another takes over
	cargo run --release -- demo

# One election to play with: a count every five seconds, and a line a second about where each stands.
NODE_ID ?= node-1
NODE = cargo run --release --quiet -- run leader-election-demo --mock \
    --lease-duration 10s --retry-period 2s --heartbeat 1s

# Every exec keeps the process, so that the number in the file is the node's own.
run: ## one node of an election, NODE_ID=node-1; run-node1, run-node2, run-node3 for three terminals
	@mkdir -p target/demo
	cargo build --release
	echo "$$$$" >"target/demo/$(NODE_ID).pid"
	exec $(NODE) --node-id "$(NODE_ID)"

run-node1 run-node2 run-node3: run-node%:
	@$(MAKE) --no-print-directory run NODE_ID=node-$*

# A shell's background ignores Ctrl-C, so the nodes are told to end by name; sed stays for what they say last.
demo-parallel: ## three nodes of that election at once, until Ctrl-C
	@mkdir -p target/demo
	cargo build --release
	trap 'exec 2>/dev/null; kill $$(jobs -pr) || true; wait' EXIT
	trap 'exit 0' INT TERM
	for node in node-1 node-2 node-3; do
	    (
	        exec > >(trap "" INT TERM; exec sed -u "s/^/$$node | /") 2>&1
	        echo "$$BASHPID" >"target/demo/$$node.pid"
	        exec $(NODE) --node-id "$$node"
	    ) &
	done
	# The shell would tell of each one that was killed.
	exec 2>/dev/null
	wait

# By number, and only one that was started by the targets above.
kill-demo: ## kill -9 the leader of that election; another one goes on
	@leader=$$(cargo run --release --quiet -- status leader-election-demo --json |
	    sed -nE 's/.*"currentLeader":"([^"]*)".*/\1/p') || true
	if [[ -z $$leader ]]; then
	    echo "nobody leads leader-election-demo here; in another terminal: make demo-parallel" >&2
	    exit 1
	fi
	pid=$$(cat "target/demo/$$leader.pid" 2>/dev/null) || true
	if [[ -z $$pid ]] || ! tr '\0' ' ' <"/proc/$$pid/cmdline" 2>/dev/null |
	    grep -q "run leader-election-demo .*--node-id $$leader "; then
	    echo "$$leader leads, and was not started here by make" >&2
	    exit 1
	fi
	echo "kill -9 $$pid, which is $$leader"
	kill -9 "$$pid"

# Only stdout goes through the pipe: cargo's own words stay as they are, and what the log holds is
# what the test binaries said. With pipefail, the pipe's status is cargo's.
# Tests send SIGINT, which a shell's background ignores and its children inherit.
test: ## every test; STORES=all fetches and requires every server
	@scripts/servers $(if $(STORES),all,quick)
	$(if $(STORES),export TENURE_REQUIRE_STORES=all)
	log=$$(mktemp)
	trap 'rm -f "$$log"' EXIT
	status=0
	env --default-signal=INT,QUIT cargo test --workspace --all-features --no-fail-fast | tee "$$log" || status=$$?
	scripts/test-summary "$$log"
	if ((status)); then echo "cargo test failed with status $$status: cargo names the test binaries above"; fi
	$(if $(STORES),,echo "make test STORES=all fetches and requires every server")
	exit "$$status"

# One filter at a time, because the conformance tests' harness takes only one. A filter that matches
# nothing must not look like fifty rounds won.
test-race: ## the contention trials fifty times on all cores
	@scripts/servers quick
	trials=(cargo test -p tenure --all-features --test conformance)
	"$${trials[@]}" --no-run
	log=$$(mktemp)
	trap 'rm -f "$$log"' EXIT
	for ((round = 1; round <= 50; round++)); do
	    passed=0
	    for filter in contended concurrent; do
	        status=0
	        "$${trials[@]}" -- --test-threads "$$(nproc)" "$$filter" >"$$log" 2>&1 || status=$$?
	        if ((status)); then
	            cat "$$log"
	            echo "round $$round of 50 failed"
	            exit "$$status"
	        fi
	        passed=$$((passed + $$(awk '/^test result: / { n += $$4 } END { print n + 0 }' "$$log")))
	    done
	    if ((passed == 0)); then
	        cat "$$log"
	        echo "no trial ran: none is called contended or concurrent, or all were ignored"
	        exit 1
	    fi
	    echo "round $$round of 50: $$passed passed"
	done

test-coverage: ## line coverage of the tests, in target/coverage (needs cargo-tarpaulin)
	@if ! cargo tarpaulin --version >/dev/null 2>&1; then
	    echo "cargo-tarpaulin is missing; to get it: cargo install --locked cargo-tarpaulin" >&2
	    exit 1
	fi
	scripts/servers quick
	mkdir -p target/coverage
	# The other engine traces processes, and many of our tests kill and freeze theirs.
	cargo tarpaulin --workspace --all-features --engine llvm --skip-clean \
	    --out Html --out Lcov --output-dir target/coverage

lint: ## format, clippy with warnings denied, what may be in the dependency tree
	cargo fmt --all --check
	cargo clippy --workspace --all-features --all-targets -- -D warnings
	scripts/tree-check

bench: ## the benchmarks, beside plain commands of the same server
	scripts/servers quick
	cargo bench --workspace --all-features

# What docs/PERFORMANCE.md is written from. The machine should have nothing else to do.
performance: ## every benchmark, kept in target/performance.txt (about 25 minutes; HTTP needs wrk)
	scripts/servers quick
	mkdir -p target
	{ uname -srm; nproc; git log -1 --format='%h %cI'
	  cargo bench -p tenure --all-features --bench speed
	  cargo bench -p tenure --all-features --bench batches
	  cargo bench -p tenure --all-features --bench observe
	  cargo bench -p tenure --all-features --bench placement
	  cargo bench -p tenure --all-features --bench fleet
	  cargo bench -p tenure-cli --bench failover
	  cargo bench -p tenure-cli --bench fleet
	  cargo build --release
	  if command -v wrk >/dev/null; then scripts/http-load target/release/tenure; fi
	} 2>&1 | tee target/performance.txt

# What docs/PROOF.md is about, more of it than in `make test`.
proof: ## 20,000 seeds, 2,000 of fleets, every store, the whole system five times; kept in target/proof.txt (about 30 minutes)
	scripts/servers all
	mkdir -p target
	export TENURE_REQUIRE_STORES=all
	{ git log -1 --format='%h %cI'
	  TENURE_SEEDS=20000 cargo test -p tenure --all-features --test simulation -- --nocapture
	  TENURE_SEEDS=2000 cargo test -p tenure --all-features --test fleet_simulation -- --nocapture
	  cargo test -p tenure --all-features --test conformance --test file_store --test redis_faults
	  for ((round = 1; round <= 5; round++)); do
	      cargo test -p tenure-cli --all-features --test system
	  done
	} 2>&1 | tee target/proof.txt

servers: ## fetch every real server the tests can use; scripts/servers list shows them
	scripts/servers all

deps: ## a throw-away Redis on 127.0.0.1:6379 until Ctrl-C
	@scripts/servers quick
	servers=$${TENURE_SERVERS:-$$HOME/.cache/tenure/servers}
	server=
	for kind in redis-7 redis-8 redis-6; do
	    if [[ -x $$servers/$$kind/bin/redis-server ]]; then
	        server=$$servers/$$kind/bin/redis-server
	        break
	    fi
	done
	if [[ -z $$server ]]; then
	    echo "no Redis; see: scripts/servers list" >&2
	    exit 1
	fi
	directory=$$(mktemp -d)
	trap 'rm -rf "$$directory"' EXIT
	# Durable, as in compose.yaml: then the first leader need not wait for a lease that an earlier run may have lost.
	"$$server" --bind 127.0.0.1 --port 6379 --save '' --dir "$$directory" \
	    --appendonly yes --appendfsync always --no-appendfsync-on-rewrite no

# Both take BINARY=FILE, one that was built before (so that `sudo make install` needs no cargo), and PROFILE, the profile
# of Cargo to build with.
PREFIX ?= /usr/local
DESTDIR ?=
BINARY ?=
PROFILE ?=
DIST ?= target/dist

# $(call built,PROFILE): sets $binary to the command, built if it was not given.
define built
binary="$(BINARY)"
if [[ -z $$binary ]]; then
    cargo build --locked --profile $(1) -p tenure-cli
    binary=$${CARGO_TARGET_DIR:-target}/$(if $(filter dev,$(1)),debug,$(1))/tenure
fi
endef

install: ## the command, manual, completions, systemd unit; PREFIX=/usr/local DESTDIR= BINARY=
	@$(call built,$(or $(PROFILE),release))
	scripts/place "$$binary" "$(DESTDIR)$(PREFIX)" "$(PREFIX)"
	echo "installed: $(DESTDIR)$(PREFIX)/bin/tenure and what goes with it"

# The same in, the same out: fixed order, owners, modes and times (SOURCE_DATE_EPOCH, else those of the commit).
dist: ## one tar file of the same with README and licences, in target/dist
	@$(call built,$(or $(PROFILE),dist))
	version=$$(sed -nE 's/^version = "(.*)"/\1/p' Cargo.toml | head -n 1)
	name=tenure-$$version-$$(rustc -vV | sed -n 's/^host: //p')
	epoch=$${SOURCE_DATE_EPOCH:-$$(git log -1 --format=%ct 2>/dev/null || echo 0)}
	stage=$$(mktemp -d)
	trap 'rm -rf "$$stage"' EXIT
	scripts/place "$$binary" "$$stage/$$name" /usr/local
	cp README.md CHANGELOG.md LICENSE-MIT LICENSE-APACHE "$$stage/$$name"
	mkdir -p "$(DIST)"
	tar --create --directory "$$stage" --sort=name --format=gnu --mtime="@$$epoch" \
	    --owner=0 --group=0 --numeric-owner --mode=u+rwX,go+rX,go-w "$$name" |
	    gzip -n >"$(DIST)/$$name.tar.gz"
	echo "written: $(DIST)/$$name.tar.gz"
