#!/bin/bash
# Builds the conformance program and the library it has injected, into target/conformance/.
set -euo pipefail
root=$(cd "$(dirname "$0")/../.." && pwd)
here=$root/tests/conformance
out=${CARGO_TARGET_DIR:-$root/target}/conformance
mkdir -p "$out"
# Into temporary names first: a test may be running the old ones.
gcc -std=gnu11 -O1 -Wall -Wextra -Werror -pthread -o "$out/.conformance.$$" "$here"/{conformance,harness,calls,launches,buffers,modules}.c -ldl
gcc -std=gnu11 -O1 -Wall -Wextra -Werror -fPIC -shared -o "$out/.injection.$$" "$here/injection.c" -ldl
mv "$out/.conformance.$$" "$out/conformance"
mv "$out/.injection.$$" "$out/conformance_injection.so"
