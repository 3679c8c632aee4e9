#!/bin/sh
# Install those Debian packages of the test bed that are missing; where that is not possible, say which ones they are.
set -eu
PATH="$PATH:/usr/local/sbin:/usr/sbin:/sbin"

missing=$(
    sed 's/#.*//' "$(dirname "$0")/packages.txt" | while read -r package command; do
        [ -z "$package" ] || command -v "$command" > /dev/null || printf ' %s' "$package"
    done
)
[ -n "$missing" ] || exit 0
install="apt-get update && apt-get install -y --no-install-recommends$missing"
if [ "$(id -u)" != 0 ] || ! command -v apt-get > /dev/null; then
    echo "missing for the test bed:$missing; on Debian, as root: $install" >&2
    exit 1
fi
echo "installing for the test bed:$missing" >&2
export DEBIAN_FRONTEND=noninteractive
sh -c "$install" >&2
