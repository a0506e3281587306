#!/usr/bin/env bash
# Python 3.13.0 (and 3.12.1 beside it), dataclasses.
# The guess: `==` of a dataclass compares tuples of its fields, as its documentation says of `eq`: "compares the class as if it
# were a tuple of its fields, in order". So the same NaN in a field is equal to itself, as (nan,) == (nan,) is True.
# The behaviour: from 3.13 on `__eq__` compares field by field with `==`, without the shortcut for identical objects that tuples
# have. Two objects with the same NaN differ, so a key of a dictionary
# or cache that holds a NaN is never found again, though its hash is the same.
# Seen: 3.12 "tuple True dataclass True found True entries 1"; 3.13 "tuple True dataclass False found False entries 2".
# Exits non-zero if that has changed. Needs Python 3.12 or older and Python 3.13; no packages.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
cat > "$folder/program.py" <<'PROGRAM'
from dataclasses import dataclass

nan = float("nan")


@dataclass(frozen=True)
class Key:
    x: float


table = {Key(nan): 1}
found = Key(nan) in table
table[Key(nan)] = 2
assert hash(Key(nan)) == hash(Key(nan))
print("tuple", (nan,) == (nan,), "dataclass", Key(nan) == Key(nan), "found", found, "entries", len(table))
PROGRAM
try() { # version, what is expected
  for python in "python3.$1" "${PYENV_ROOT:-$HOME/.pyenv}"/versions/3."$1".*/bin/python; do
    if "$python" -c "import sys; sys.exit(sys.version_info[:2] != (3, $1))" 2>/dev/null; then
      "$python" -m venv "$folder/env$1"
      seen=$("$folder/env$1/bin/python" "$folder/program.py")
      echo "3.$1: $seen"
      [ "$seen" = "$2" ]
      return
    fi
  done
  echo "no Python 3.$1" >&2
  return 1
}
old="tuple True dataclass True found True entries 1"
try 12 "$old" || try 11 "$old"
try 13 "tuple True dataclass False found False entries 2"
