#!/usr/bin/env bash
# What Sediment does, on a scratch memory: each command, then what it printed.
set -eu
cd "$(dirname "$0")/.."
pyz=${SEDIMENT_PYZ:-dist/sediment.pyz}
python=${PYTHON:-python3}
scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT
export SEDIMENT_DB=$scratch/memory.db SEDIMENT_PROJECT=demo

sediment() { "$python" "$pyz" "$@"; }
show() { printf '\n\033[1m$ %s\033[0m\n' "$*"; }

show sediment store '"Mara is vegetarian and wants nothing spicy."'
sediment store "Mara is vegetarian and wants nothing spicy."
show 'echo "we deploy on Fridays only after the canary is green" | sediment store -'
echo "we deploy on Fridays only after the canary is green" | sediment store -
show sediment store '"The gateway listens on port 18789, PostgreSQL on 5433."'
sediment store "The gateway listens on port 18789, PostgreSQL on 5433."
show 'sediment store - < tests/runbook.md'
sediment store - < tests/runbook.md

for query in "is it safe to ship today?" "what could I cook for her?" 18789 "how do we know that a restore works?"; do
    show sediment recall "\"$query\"" --limit 1
    sediment recall "$query" --limit 1
done

show 'sediment recall "who painted the ceiling of the chapel?"     # nothing fits'
sediment recall "who painted the ceiling of the chapel?"
show 'sediment store "The session timeout is 30 minutes." --created-at 2026-01-01'
sediment store "The session timeout is 30 minutes." --created-at 2026-01-01
show 'sediment store "The session timeout was raised to 2 hours." --created-at 2026-03-01'
sediment store "The session timeout was raised to 2 hours." --created-at 2026-03-01
show 'sediment recall "how many minutes is the session timeout?" --limit 2     # newest first'
sediment recall "how many minutes is the session timeout?" --limit 2
show 'sediment recall "session timeout" --limit 1 --as-of 2026-02-01 --explain'
sediment recall "session timeout" --limit 1 --as-of 2026-02-01 --explain
show 'sediment store "Note: The session timeout was raised to 2 hours."; sediment consolidate'
sediment store "Note: The session timeout was raised to 2 hours."
sediment consolidate

show 'sediment index docs/projects.md     # files that people edit; again, only what has changed'
sediment index docs/projects.md
show sediment recall '"do two clones of a repository share a memory?" --source docs/ --limit 1'
sediment recall "do two clones of a repository share a memory?" --source docs/ --limit 1

show sediment list
sediment list
id=$(sediment recall "what does Mara eat?" --limit 1 --json | sed -n 's/.*"id": "\(.*\)",/\1/p')
show sediment forget "$id"
sediment forget "$id"
show sediment recall '18789 --limit 1 --json'
sediment recall 18789 --limit 1 --json

show 'sediment serve     # an MCP client: initialize, then tools/call recall'
client='{"protocolVersion":"2025-11-25","capabilities":{},"clientInfo":{"name":"demo","version":"1"}}'
call='{"name":"recall","arguments":{"query":"who renews the certificates?","limit":1}}'
for request in "\"method\":\"initialize\",\"params\":$client" "\"method\":\"tools/call\",\"params\":$call"; do
    line="{\"jsonrpc\":\"2.0\",\"id\":$((id_ = ${id_:-0} + 1)),$request}"
    echo "$line" >&2 # not through /dev/stderr, which would empty a file that the demo is sent to
    echo "$line"
done | sediment serve | cut -c 1-600
printf '\nAdd it to Claude Code:  claude mcp add sediment -- %s %s serve\n' \
    "$("$python" -c 'import sys; print(sys.executable)')" "$(cd "$(dirname "$pyz")" && pwd)/$(basename "$pyz")"
