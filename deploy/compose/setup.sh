#!/bin/sh
# Waits until the node accepts clients, and runs lake.sql there. SECRETS is for tests.
set -eu
export SECRETS="${SECRETS:-/run/secrets}"
until pg_isready --quiet; do
    sleep 1
done
PGPASSWORD=$(cat "$SECRETS/lake_password")
export PGPASSWORD
exec psql --no-psqlrc --quiet --file "${1:-/lake.sql}"
