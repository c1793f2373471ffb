#!/usr/bin/env bash
# What Sediment does, on a scratch memory: each command, then what it printed.
set -eu
cd "$(dirname "$0")/.."
pyz=$(realpath "${SEDIMENT_PYZ:-dist/sediment.pyz}")
python=${PYTHON:-python3}
scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT
export SEDIMENT_DB=$scratch/memory.db SEDIMENT_PROJECT=demo

sediment() { "$python" "$pyz" "$@"; }
say() { printf '\n# %s\n' "$1"; }
run() { printf '\033[1m$ %s\033[0m\n' "$1" && eval "$1"; }

say "Store what is worth remembering, and find it weeks later in other words."
run 'sediment store "We deploy on Fridays, but only after the canary is green."'
run 'sediment recall "is it safe to ship today?" --limit 1'

say "Facts change: the newest version answers, and the old one as of its time."
run 'sediment store "The session timeout is 30 minutes." --created-at 2026-01-01'
old=$(sediment list --oldest --limit 1 --json | sed -n 's/.*"id": "\(........\).*/\1/p')
run "sediment store \"The session timeout is 2 hours.\" --replace $old"
run 'sediment recall "how long does a session last?" --limit 1'
run 'sediment recall "how long does a session last?" --limit 1 --as-of 2026-02'
run 'sediment recall "who painted the ceiling of the chapel?"     # nothing fits'

say "It searches your Markdown files, too."
run 'sediment index docs/faq.md'
run 'sediment recall "can several agents share one memory?" --limit 1'

say "Use it: type these three lines."
printf '%s\n' "mkdir -p ~/.local/bin && ln -s $pyz ~/.local/bin/sediment" \
    'cd YOUR-PROJECT && sediment init          # connects your agents to it' \
    'sediment doctor --client                  # checks that they can use it'
