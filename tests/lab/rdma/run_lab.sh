#!/usr/bin/env bash
# run_lab.sh MODE BUILD_FOLDER [WORD]: the verbs tests in the RDMA lab's guest. MODE slice is what CI runs,
# all everything; WORD picks those that have it in their name. Exits with 77 where the guest cannot be had.
set -euo pipefail
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
mode=$1 build=$(cd "$2" && pwd) limit=560
[ "$mode" = all ] && limit=3600
exec python3 "$here/rdma_lab.py" --timeout "$limit" bash "$here/guest_tests.sh" "$mode" "$build" \
  ${3:+"$3"}
