# What CI runs is what people run. Everything is built in the release profile, once, under target/.

# Length of each stress run, and what `make bench` is given (see `target/release/annex-bench
# --help`).
SECONDS ?= 60
BENCH ?=
CHAOS ?=
SHAPES ?=
DEMO ?=
VM ?=
PROGRAMS ?=

CARGO ?= cargo
CARGO_deny_VERSION := 0.20.2
CARGO_machete_VERSION := 0.9.2
CARGO_deb_VERSION := 3.8.0
CARGO_generate-rpm_VERSION := 0.21.1
TOOLS := $(CURDIR)/target/tools
# Where `make install` puts annex; its configuration is always read from /etc/annex.
DESTDIR ?=
PREFIX ?= /usr/local
# annexd reaches into other processes: what runs it runs as root.
SUDO := $(if $(filter 0,$(shell id -u)),,sudo -E)
RUNNER := --config "target.'cfg(all())'.runner='$(SUDO) $(CURDIR)/tests/timed'"

# package:command, where having the command is enough.
PACKAGES := build-essential:cc libclang-dev pkg-config:pkg-config curl:curl python3:python3 redis-server:redis-server \
            redis-tools:redis-cli python3-redis libhiredis-dev memcached:memcached tcl:tclsh stress-ng:stress-ng sqlite3:sqlite3 nodejs:node \
            util-linux:setpriv iproute2:ip openssl:openssl
# What only tests need: a browser is large.
TEST_PACKAGES = $(PACKAGES) chromium:chromium chromium-driver:chromedriver mount:losetup e2fsprogs:mkfs.ext4
VM_PACKAGES := qemu-system-x86:qemu-system-x86_64 mmdebstrap:mmdebstrap e2fsprogs:mke2fs busybox-static cpio:cpio kmod:depmod xz-utils:xz \
               binutils:strip
# The tests of this Debian's Python.
PYTHON_TESTS = $(shell /usr/bin/python3 -c 'import sys; print("libpython3.%d-testsuite" % sys.version_info.minor)')
PROGRAMS_PACKAGES = stress-ng:stress-ng $(PYTHON_TESTS) redis-server:redis-server redis-tools:redis-cli tcl:tclsh \
                    postgresql golang-go:go golang-src default-jdk-headless:javac build-essential:cc util-linux:setpriv

.PHONY: all setup test-setup build manuals deb rpm install test-packages demo test test-peers test-jvm kv-fuzz test-programs check stress shapes bench chaos vm-image vm-test clean
all: build manuals

setup:
	@missing=; for p in $(PACKAGES); do \
	  package=$${p%%:*}; command=$${p#*:}; \
	  [ "$$command" != "$$p" ] && PATH="$$PATH:/usr/sbin" command -v "$$command" >/dev/null && continue; \
	  dpkg -s "$$package" >/dev/null 2>&1 || missing="$$missing $$package"; \
	done; \
	if [ -n "$$missing" ]; then \
	  echo "installing$$missing"; \
	  $(SUDO) apt-get update -qq && \
	  DEBIAN_FRONTEND=noninteractive $(SUDO) apt-get install -y -qq --no-install-recommends $$missing || exit 1; \
	  for daemon in redis-server memcached; do \
	    case "$$missing " in *" $$daemon "*) \
	      if [ -d /run/systemd/system ]; then $(SUDO) systemctl disable --now $$daemon; fi;; \
	    esac; \
	  done; \
	fi
	@command -v $(CARGO) >/dev/null || { \
	  echo "no Rust toolchain; this installs one:"; \
	  echo "  curl --proto '=https' --tlsv1.2 -sSf https://sh.rustup.rs | sh -s -- -y --profile minimal && . ~/.cargo/env"; \
	  exit 1; }

test-setup:
	@$(MAKE) --no-print-directory setup PACKAGES="$(TEST_PACKAGES)"

build:
	$(CARGO) build --release --workspace

# Man pages, completions, and the packages' changelog, made of the command lines and of docs/.
manuals: build
	target/release/annex-manuals target/manuals

# For Debian and Ubuntu, in target/debian.
deb: manuals $(TOOLS)/bin/cargo-deb
	rm -rf target/debian
	@for crate in annex-agent annex-daemon annex-cli; do \
	  $(TOOLS)/bin/cargo-deb --no-build --strip --package $$crate --output target/debian/ || exit 1; done

# For distributions with RPM, in target/generate-rpm. cargo-generate-rpm does not strip.
rpm: manuals $(TOOLS)/bin/cargo-generate-rpm
	rm -rf target/generate-rpm target/rpm
	mkdir -p target/generate-rpm target/rpm
	for program in annex-agent annexd annex; do strip -o target/rpm/$$program target/release/$$program || exit 1; done
	@for crate in agent daemon cli; do \
	  $(TOOLS)/bin/cargo-generate-rpm --package $$crate --auto-req builtin --output target/generate-rpm/ || exit 1; done

# For everyone else, after `make`: make install DESTDIR=/tmp/stage PREFIX=/usr. A configuration that
# is there stays.
install:
	@[ -d target/manuals ] || { echo "nothing is built yet: run make first"; exit 1; }
	install -d $(DESTDIR)/etc/annex $(DESTDIR)$(PREFIX)/lib/systemd/system
	install -D --strip --target-directory $(DESTDIR)$(PREFIX)/bin target/release/annexd target/release/annex-agent target/release/annex
	for unit in annexd annex-agent; do \
	  sed 's|/usr/bin/annex|$(PREFIX)/bin/annex|g' systemd/$$unit.service >$(DESTDIR)$(PREFIX)/lib/systemd/system/$$unit.service || exit 1; done
	install -D --mode 644 systemd/sysusers.d/annex.conf $(DESTDIR)$(PREFIX)/lib/sysusers.d/annex.conf
	install -D --mode 644 systemd/tmpfiles.d/annex.conf $(DESTDIR)$(PREFIX)/lib/tmpfiles.d/annex.conf
	for file in annexd agent; do \
	  [ -e $(DESTDIR)/etc/annex/$$file.toml ] || install --mode 644 systemd/$$file.toml $(DESTDIR)/etc/annex || exit 1; done
	for section in 1 5 8; do \
	  install -D --mode 644 --target-directory $(DESTDIR)$(PREFIX)/share/man/man$$section target/manuals/man/man$$section/* || exit 1; done
	install -D --mode 644 --target-directory $(DESTDIR)$(PREFIX)/share/bash-completion/completions target/manuals/bash/*
	install -D --mode 644 --target-directory $(DESTDIR)$(PREFIX)/share/zsh/site-functions target/manuals/zsh/*
	install -D --mode 644 --target-directory $(DESTDIR)$(PREFIX)/share/fish/vendor_completions.d target/manuals/fish/*

# No bug of Debian's asked for annex. The helpers of Debian that stand in for systemctl would enable,
# start and stop what we do not.
UNLIKE_DEBIAN := initial-upload-closes-no-bugs,maintainer-script-calls-systemctl
# The packages as Debian wants them, and in use on a machine without systemd. `make vm-test
# VM=packages` has them on machines with systemd.
test-packages: deb
	@$(MAKE) --no-print-directory setup PACKAGES="lintian:lintian util-linux:unshare iproute2:ip python3:python3"
	lintian --fail-on error,warning --suppress-tags $(UNLIKE_DEBIAN) target/debian/*.deb
	$(SUDO) tests/packages/check.sh target/debian

demo: setup build
	$(SUDO) target/release/annex-demo $(DEMO)

# Every `cargo test` here is of the whole workspace: for one package alone cargo would build what it
# depends on anew, with fewer features. Test programs run one after the other; those that need the
# machine for themselves take turns through a lock. Most wait for something most of the time: more
# of them run side by side than there are CPUs.
test: test-setup build
	RUST_TEST_THREADS=4 ANNEX_STRESS_SECONDS=$${ANNEX_STRESS_SECONDS:-15} \
	  $(CARGO) test --release --workspace --no-fail-fast $(RUNNER)

# Redis' own suite against the KV API; its sources come from the Debian mirror that this machine
# uses.
test-peers: setup build
	tests/redis/fetch.sh target/redis
	ANNEX_REDIS_SUITE=$(CURDIR)/target/redis $(CARGO) test --release --workspace --test redis_suite $(RUNNER) -- --ignored --nocapture

# annexd killed under a JVM, whose packages are too large for `make setup`.
test-jvm: build
	@$(MAKE) --no-print-directory setup PACKAGES="$(PACKAGES) default-jdk-headless:javac"
	$(CARGO) test --release --workspace --test takeover $(RUNNER) -- --ignored --nocapture under_a_jvm

# Random sessions beside a real redis-server, for an hour or SECONDS=n. ANNEX_FUZZ_SEED=n begins
# with that one.
kv-fuzz: setup build
	ANNEX_FUZZ_SEED=$$(date +%s%N) ANNEX_FUZZ_SECONDS=$(if $(filter command line,$(origin SECONDS)),$(SECONDS),3600) $(CARGO) test --release --workspace \
	  --test kv_beside_redis $(RUNNER) -- --nocapture random_sessions

# The test suites of others natively and under annex, compared. PROGRAMS="--suite stress-ng" for one
# of them, PROGRAMS=--quick for a few of each.
test-programs: build
	@$(MAKE) --no-print-directory setup PACKAGES="$(PROGRAMS_PACKAGES)"
	$(SUDO) target/release/annex-programs $(PROGRAMS)

stress: build
	ANNEX_STRESS_SECONDS=$(SECONDS) $(CARGO) test --release --workspace --test stress $(RUNNER) -- --nocapture

# Random programs, one after the other, while annexd and its stubs are killed. Stops at the first
# wrong byte, and names its seed. SHAPES="--seed 7" begins there (see `target/release/annex-shapes
# --help`).
shapes: build
	$(SUDO) target/release/annex-shapes --hunt $(SECONDS) --seed $$(date +%s) $(SHAPES)

# Every fault a hundred times under load. CHAOS="--rounds 5" for less (see
# `target/release/annex-chaos --help`).
chaos: setup build
	$(SUDO) target/release/annex-chaos $(CHAOS)

vm-image:
	@$(MAKE) --no-print-directory setup PACKAGES="$(VM_PACKAGES)"
	$(SUDO) tests/vm/image.sh target/vm

# Guests with systemd and Soft-RoCE. VM="--list" says which scenarios there are, VM="NAME" runs one,
# VM="shell" is for hands-on use. The fabric's own tests run in a guest too.
VM_PACKAGED = $(if $(VM),$(filter packages,$(VM)),packages)
vm-test: vm-image $(if $(VM_PACKAGED),deb,build)
	@tests=$$($(CARGO) test --release --no-run --message-format=json --workspace --test fabric | sed -n 's|.*"executable":"\([^"]*/deps/[^"]*\)".*|\1|p') && \
	$(SUDO) env ANNEX_VM_TESTS="$$tests" $(if $(VM_PACKAGED),ANNEX_VM_PACKAGES=target/debian) target/release/annex-vm $(VM)

# About twenty minutes, and the KV API's part after it. Nothing else should run meanwhile.
bench: setup build
	$(SUDO) target/release/annex-bench $(BENCH)
	$(SUDO) target/release/annex-kv-bench $(if $(findstring --quick,$(BENCH)),--quick)

check: $(TOOLS)/bin/cargo-deny $(TOOLS)/bin/cargo-machete $(TOOLS)/bin/promtool
	$(CARGO) fmt --all --check
	$(CARGO) clippy --release --workspace --all-targets -- -D warnings
	@# Module headers link to the private modules they tell about.
	RUSTDOCFLAGS="-D warnings -A rustdoc::private_intra_doc_links" $(CARGO) doc --release --workspace --no-deps --document-private-items
	systemd/verify.sh
	tests/check-docs.py
	tests/check-house.py
	tests/check-monitoring.py $(TOOLS)/bin/promtool
	$(TOOLS)/bin/cargo-machete --skip-target-dir
	$(TOOLS)/bin/cargo-deny check bans licenses sources
	@# The advisory database is on GitHub. Not reaching it is said, and is no fault of the tree; all else is.
	@said=$$($(TOOLS)/bin/cargo-deny check advisories 2>&1) && echo "$$said" || case "$$said" in \
	  *"failed to fetch advisory database"*) echo "ADVISORIES WERE NOT CHECKED: the database can't be reached";; \
	  *) echo "$$said"; exit 1;; esac

# Out of Debian's package, which would start a server if it was installed.
$(TOOLS)/bin/promtool:
	@mkdir -p $(@D) $(TOOLS)/prometheus
	@if command -v promtool >/dev/null; then ln -sf "$$(command -v promtool)" $@; else \
	  cd $(TOOLS)/prometheus && rm -f *.deb && \
	  { apt-get download -qq prometheus || { $(SUDO) apt-get update -qq && apt-get download -qq prometheus; }; } && \
	  dpkg-deb --fsys-tarfile prometheus_*.deb | tar -x ./usr/bin/promtool && mv usr/bin/promtool $@; fi

$(TOOLS)/bin/cargo-%:
	@mkdir -p $(@D)
	@if command -v $(@F) >/dev/null; then ln -sf "$$(command -v $(@F))" $@; else \
	  CARGO_PROFILE_DEV_DEBUG=false CARGO_TARGET_DIR=$(TOOLS)/build \
	  $(CARGO) install --quiet --debug --locked --root $(TOOLS) $(@F) --version $(CARGO_$*_VERSION); fi

clean:
	$(CARGO) clean
