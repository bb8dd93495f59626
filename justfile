# Recipes for work on boldcast. `./run/test` installs `just` as .venv/bin/just.

set shell := ["bash", "-euo", "pipefail", "-c"]
set positional-arguments

bin := quote(justfile_directory() / ".venv/bin")

# List the recipes
[private]
default:
    @{{ quote(just_executable()) }} --justfile {{ quote(justfile()) }} --list

# Train the example on seven real subjects, setting up .venv if need be
[group('run')]
example *args:
    ./run/example "$@"

# Train: a TOML file, then any setting as --section.name value
[group('run')]
train *args:
    {{ bin }}/boldcast train "$@"

# Prove on the CPU that this installation trains, resumes, replays and detects a change
[group('run')]
selftest *args:
    {{ bin }}/boldcast selftest "$@"

# Measure throughput on one GPU
[group('bench')]
bench-1gpu *args:
    {{ bin }}/boldcast bench --world_sizes 1 "$@"

# Measure throughput on one and on two GPUs, and the efficiency of two
[group('bench')]
bench-2gpu *args:
    {{ bin }}/boldcast bench --world_sizes 1,2 "$@"

# Step time of the level exact against DDP's all-reduce and torch's bare loop, 1, 2 and 4 ranks
[group('bench')]
bench-exact *args:
    {{ bin }}/python tests/parallel/bench_reduce.py "$@"

# Kill and stop runs N times at random moments; every one must end in the undisturbed bits
[group('develop')]
soak n='100' *args:
    {{ bin }}/python tests/soak.py "$@"

# Check everything and run the tests; with arguments, the tests that they choose
[group('develop')]
test *args:
    ./run/test "$@"

# Check format, lint, types, layers and scripts
[group('develop')]
check:
    {{ bin }}/ruff format --check
    {{ bin }}/ruff check
    {{ bin }}/mypy
    {{ bin }}/lint-imports
    {{ bin }}/shellcheck run/setup run/example run/test .ci/run
    {{ quote(just_executable()) }} --fmt --check

# Format the code and this file, and mend what the linter can
[group('develop')]
format:
    {{ bin }}/ruff check --fix-only --quiet
    {{ bin }}/ruff format
    {{ quote(just_executable()) }} --fmt

# Make the hash locks from container/*.in; --upgrade takes the newest versions
[group('develop')]
lock *args:
    {{ bin }}/python container/lock.py "$@"
