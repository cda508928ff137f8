# The commands of a contributor. `just` alone lists them.

_default:
    @just --list

# A cluster on this machine, ready to sign
dev *arguments:
    cargo run --release -- dev {{arguments}}

# Format, lints and licences: run it before every commit
check:
    cargo fmt --all --check
    rustfmt --check --edition 2024 actors/src/operations/*.rs
    # What differs without the second ECDSA backend is in this crate.
    cargo rustc -p covault-mpc --lib --locked --profile check -- -D warnings
    cargo clippy --workspace --all-targets --locked --features cggmp24,otlp -- -D warnings
    cargo deny --offline --log-level error check licenses bans sources
    tests/advisories check
    tests/circles
    tests/names

# Formats all of it, the operations too, which build.rs lists where cargo fmt does not look
fmt:
    cargo fmt --all
    rustfmt --edition 2024 actors/src/operations/*.rs

# Writes docs/openapi.json and docs/openapi-admin.json anew, from the schema
openapi:
    cargo run --quiet --features cggmp24,otlp -- openapi > docs/openapi.json
    cargo run --quiet --features cggmp24,otlp -- openapi --admin > docs/openapi-admin.json

# Everything that must pass: installs what is missing, then all checks and tests
test *arguments:
    bash tests/run {{arguments}}

# What is in deploy/: linted, then started with the debug build (`just test` installs the tools)
deploy:
    tests/deploy files
    tests/deploy processes
    tests/docs

# The archive of a release, in target/dist: program, manual pages, completions, units, licences, list of crates, checksum
dist:
    command -v cargo-auditable >/dev/null || cargo install --locked cargo-auditable@0.7.7
    cargo auditable build --release --locked --features otlp
    deploy/dist target/release/covault

# Every test there is, also those that the suite leaves out because others do nearly the same
test-long *arguments:
    cargo nextest run --profile long --workspace --locked --features cggmp24,otlp --no-tests fail {{arguments}}

# The golden vectors alone; COVAULT_VECTORS names another folder
vectors:
    cargo nextest run -p covault-core --test vectors --no-capture

# kill -9 of every piece for hours instead of some times
crash-long rounds="400":
    COVAULT_CRASH_ROUNDS={{rounds}} cargo nextest run --profile long --test it crash::pieces life_crash

# kill -9 of orchestrators, signers, Redis and PostgreSQL under load, on both stores and with two
# orchestrators, and then network partitions and all else that can break. COVAULT_CRASH_SEED=seed just crash rolls the same dice again
crash rounds="200":
    COVAULT_LONG_SUITE=1 COVAULT_CRASH_ROUNDS={{rounds}} cargo nextest run --profile long --workspace --features cggmp24,otlp --test it --no-capture -E 'test(/^crash::(rounds|partitions|faults)/)'

# A thousand transfers of every kind to three hundred wallets under kill -9, on both stores and with two orchestrators:
# what receivers are told is compared with the chain. COVAULT_DEPOSIT_SEED=seed just deposits-long rolls the same dice again
deposits-long transfers="1000" wallets="300" kills="30":
    COVAULT_DEPOSIT_TRANSFERS={{transfers}} COVAULT_DEPOSIT_WALLETS={{wallets}} COVAULT_DEPOSIT_KILLS={{kills}} cargo nextest run --profile long --workspace --features cggmp24,otlp --test it --no-capture deposit_oracle::

# a cluster sweeps twenty wallets, one after the other, and its orchestrator is killed at each step of a sweep
sweeps-long rounds="20":
    COVAULT_SWEEP_ROUNDS={{rounds}} cargo nextest run --profile long --workspace --features cggmp24,otlp --test it --no-capture deposits::deposits__should_reach

# kill -9 at every step around the use of a signing nonce: twenty thousand seeded runs, not a thousand
nonce-crash-long runs="20000" seed="1":
    COVAULT_NONCE_RUNS={{runs}} COVAULT_NONCE_SEED={{seed}} cargo nextest run --profile long --workspace --features cggmp24,otlp --test it --no-capture nonce_crash::

# The tests of the build as it is without features: tests/run has the second ECDSA backend in
test-default *arguments:
    cargo nextest run --workspace --locked --no-tests fail {{arguments}}

# The power cut at every operation of the disk below a store, and below an orchestrator, with every
# kind of loss: about a quarter of an hour
powercut:
    COVAULT_LONG_SUITE=1 cargo nextest run --profile long --workspace --features cggmp24,otlp --no-capture -E 'test(power_is_cut) + test(disk_has_lost)'

# The same vault with primes that its nodes make, which takes minutes
primes:
    COVAULT_REAL_PRIMES=1 cargo nextest run --profile long --workspace --test it --features cggmp24,otlp --no-capture cggmp24_vault

# An ECDSA key of 5 of 9 nodes over a real Redis, and a signature
large:
    COVAULT_LARGE=1 cargo nextest run --profile long --workspace --features cggmp24,otlp --test it largest_key_generation

# Transactions on anvil until others have replaced them for good, which nodes have to say for three minutes, and
# eighty of one Stellar account one after the other
replaced-long:
    COVAULT_LONG_SUITE=1 cargo nextest run --profile long --workspace --features cggmp24,otlp --test it evm_payments__should_be_sped_up_and_cancelled stellar_payments_of_one_wallet

# Every message of every round harmed between every pair, with all backends: an hour or so
suite-long:
    COVAULT_LONG_SUITE=1 cargo nextest run --profile long --workspace --features cggmp24,otlp --lib backend

# CPU time of keys and signatures of every backend, beside plain ones
bench-mpc *arguments:
    cargo bench --workspace --features cggmp24,otlp --bench backends -- {{arguments}}

# CPU time of a claim, one at a time and sixteen at once
bench-claims:
    cargo bench -p covault-mpc --bench claims

# Runs a program of others against a cluster with a client signer (docs/clients-of-the-public-product.md)
outside command:
    COVAULT_OUTSIDE='{{command}}' cargo nextest run --workspace --features cggmp24,otlp --test it --run-ignored only --no-capture -E 'test(program_of_others)'

# Calls of the API beside tries to sign in to the console, what open consoles cost, how soon 5,000 listeners hear of an event, and a browser on 1 MB/s shows a page
bench-console:
    cargo bench --bench console

# What approvals cost a signer: 16 of them, and where a rule asks for none beside a policy without rules
bench-approvals:
    cargo bench -p covault-mpc --bench backends -- 'approvals|policy|plain|(dkls23|frost-ed25519)_2of3/sign'

# A page of 100,000 requests that wait for approval, while they are made and after a restart
bench-waiting:
    cargo nextest run --workspace --locked --features cggmp24,otlp --test it --run-ignored only --no-capture -E 'test(pages_of_100_000)'

# How soon 5,000 listeners hear of an event in a debug build (in release: bench-console)
bench-events:
    LISTENERS="${LISTENERS:-5000}" cargo nextest run --workspace --locked --features cggmp24,otlp --test it --no-capture -E 'test(many_listeners__should)'

# Writes the samples of node folders and envelopes anew; never after a release
record-wire:
    COVAULT_RECORD_WIRE=1 cargo nextest run --workspace --features cggmp24,otlp --lib --run-ignored all wire__record old_releases load_for_ever

# Simulated clusters, ten thousand instead of 150. A seed that fails is printed:
# COVAULT_SIM_SEED=seed just sim replays it and prints all that happens
sim runs="10000" first="0" hostile="1000" people="1000":
    COVAULT_SIM_HOSTILE_RUNS={{hostile}} COVAULT_SIM_PEOPLE_RUNS={{people}} COVAULT_SIM_ECDSA_RUNS=50 COVAULT_SIM_RUNS={{runs}} COVAULT_SIM_FIRST={{first}} cargo nextest run --profile long --workspace --features cggmp24,otlp --test sim --no-capture

# Fuzz targets, so many seconds each: envelopes and every decoder of what a peer can send
fuzz seconds="600" *targets="":
    COVAULT_FUZZ_SEEDS="$PWD/target/fuzz-seeds" cargo nextest run -p covault-mpc --features cggmp24 --test it fuzz::
    bash tests/fuzz mpc {{seconds}} {{targets}}

# The same for what clients send: addresses and payloads made elsewhere, of every network
fuzz-core seconds="600" *targets="":
    COVAULT_FUZZ_SEEDS="$PWD/target/fuzz-seeds" cargo nextest run -p covault-core --test fuzz
    bash tests/fuzz core {{seconds}} {{targets}}

# Takes the advisories of today, which tests/run checks Cargo.lock against, into advisories.tar.xz (needs the network)
advisories:
    tests/advisories renew

# All of cargo-deny, with the newest advisory database (needs the network)
deny:
    cargo deny check

# Latency of the HTTP API at 200 calls per second, and reads beside a bare axum server
bench-api:
    cargo bench --bench api

# Five times what signers can do, 2,000 clients, a slow and a stopped signer (25 minutes): flood, both, clients, slow, stopped choose,
# ed25519 and secp256k1 one curve
bench-crowd *arguments:
    cargo bench --bench crowd -- {{arguments}}

# How long 10,000 vaults take to move between orchestrators, on a PostgreSQL 10 ms away (2 minutes in a debug build; 100000
# is another number of them), and that one which was made with keys signs
measure-vaults vaults="10000":
    COVAULT_VAULTS={{vaults}} cargo nextest run --workspace --locked --features cggmp24,otlp --test it --run-ignored all --no-capture -E 'test(vaults__should_be_measured_while_they_move)'

# Transfers per second with a PostgreSQL so many milliseconds away, of 1, 8 and 64 wallets (half a minute)
measure-transfers milliseconds="10":
    COVAULT_DELAY_MS={{milliseconds}} cargo nextest run --workspace --locked --features cggmp24,otlp --test it --run-ignored all --no-capture -E 'test(transfers__should_be_measured_behind_a_delay)'

# How long a vault with 100,000 unfinished requests takes to answer its first call after a start
measure-unfinished requests="100000":
    COVAULT_UNFINISHED={{requests}} cargo nextest run --workspace --locked --no-capture -E 'test(a_vault__should_answer_while_it_reads_very_many_unfinished_requests)'

# Steps per second of each store, beside what the disk confirms
bench-store *arguments:
    cargo bench --workspace --bench store -- {{arguments}}

# What following, telling and sweeping deposits costs, beside the goals; calls, catch-up, latency, deliveries, memory, sweeps choose rows
bench-deposits *arguments:
    cargo bench --bench deposits -- {{arguments}}

# Start, memory and latency with a million finished requests beside a thousand (10 GB of disk, held in memory; needs vmtouch)
bench-retention *arguments:
    cargo bench --bench retention -- {{arguments}}

# Every page of the console with a million finished requests and 10,000 that wait for people (10 GB of disk; needs vmtouch)
bench-pages *arguments:
    cargo bench --bench retention -- --pages {{arguments}}

# What operators wait for, with a million requests and a hundred thousand vaults: start, status, scrape, top
bench-operate *arguments:
    cargo bench --bench operate -- {{arguments}}

# Signatures per second through HTTP and Redis, beside their limit: signers over Redis without HTTP and store; `just bench limit`
# measures that of 2-of-3, 3-of-5 and 5-of-9, `just bench postgres` Ed25519 with PostgreSQL beside redb
bench *arguments:
    cargo bench --bench signing -- {{arguments}}
