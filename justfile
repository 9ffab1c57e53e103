# The handful of commands people need. `just` alone lists them.

_default:
    @just --list

# Build in release mode and serve the default model on http://127.0.0.1:8080
serve *ARGS:
    cargo run --release -- serve {{ARGS}}

# Run all tests
test:
    cargo test --workspace

# Everything a change must pass, and the two tools that CI does not install: cargo-deny and typos
check:
    .ci/run
    cargo deny check
    typos

# Format the code
fmt:
    cargo fmt --all

# Lint without the rest of the check
lint:
    cargo clippy --workspace --all-targets -- -D warnings

# Run the micro benchmarks
bench *ARGS:
    cargo bench -p plimsoll-benches {{ARGS}}

# Read the documentation in a browser
doc:
    cargo doc --workspace --no-deps --open

# Write models/presets/schema.json anew after a change to the preset types
schema:
    PLIMSOLL_WRITE_SCHEMA=1 cargo test -p plimsoll-models --lib the_published_schema_is_the_one_the_types_make

# What this machine can run
doctor:
    cargo run --release -- doctor
