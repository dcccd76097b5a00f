#!/bin/sh
# The compiler for the unit tests (RUSTC_WORKSPACE_WRAPPER): without optimisation it takes a fifth of the time, and the tests
# run a third longer. Other crates are not compiled again. The end-to-end tests start what is shipped.
exec "$@" -C opt-level=0
