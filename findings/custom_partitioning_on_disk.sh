#!/usr/bin/env bash
# jax 0.10.2 (0.12.0.1 does the same).
# The guess: a program of several devices that calls a function with `custom_partitioning` is kept in JAX's cache on disk like
# any other, so that a second process which runs the same script finds it there.
# The behaviour: it is written, and never found again. The text that is the key holds the address of the Python object that
# partitions the call, as the call's `backend_config`; each process has another one. The cache grows with each run.
# `jax_remove_custom_partitioning_ptr_from_cache_key` leaves the address out, and then the key says nothing of what the
# function is partitioned into.
# Seen: "plain: 1 file, then 1" and "partitioned: 1 file, then 2".
# Exits non-zero if that has changed. Needs Python 3.11 or newer, and a package index.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
newer() { "$1" -c 'import sys; sys.exit(not (3, 11) <= sys.version_info[:2] <= (3, 13))' 2>/dev/null; }
for python in python3 python3.11 python3.12 python3.13 "${PYENV_ROOT:-$HOME/.pyenv}"/versions/3.1[123].*/bin/python; do
  if newer "$python"; then break; fi
done
newer "$python" || { echo "needs Python 3.11 to 3.13" >&2; exit 1; }
"$python" -m venv "$folder/env"
"$folder/env/bin/python" -m pip install -q jax==0.10.2
cat > "$folder/program.py" <<'PROGRAM'
import sys

import jax
import jax.numpy as jnp
import numpy as np
from jax.experimental.custom_partitioning import custom_partitioning
from jax.sharding import Mesh, NamedSharding, PartitionSpec

kind, folder = sys.argv[1:]
mesh = Mesh(np.array(jax.devices()), ("d",))
x = jax.device_put(np.arange(8, dtype=np.float32), NamedSharding(mesh, PartitionSpec("d")))
double = lambda v: 2 * v
if kind == "partitioned":
    double = custom_partitioning(double)
    double.def_partition(
        lambda mesh, args, result: (mesh, lambda v: 2 * v, result.sharding, (args[0].sharding,)), sharding_rule="i -> i"
    )
jax.config.update("jax_compilation_cache_dir", folder)
jax.config.update("jax_persistent_cache_min_compile_time_secs", 0)
jax.config.update("jax_persistent_cache_min_entry_size_bytes", -1)
compiled = jax.jit(lambda v: double(v)).lower(x).compile()
assert (np.asarray(compiled(x)) == 2 * np.arange(8)).all() and "all-gather" not in compiled.as_text()
PROGRAM
export JAX_PLATFORMS=cpu XLA_FLAGS=--xla_force_host_platform_device_count=2
run() { "$folder/env/bin/python" "$folder/program.py" "$1" "$folder/$1"; find "$folder/$1" -name '*-cache' | wc -l; }
first=$(run plain) second=$(run plain)
echo "plain: $first file, then $second"
[ "$first $second" = "1 1" ]
first=$(run partitioned) second=$(run partitioned)
echo "partitioned: $first file, then $second"
[ "$first $second" = "1 2" ]
