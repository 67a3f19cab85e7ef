#!/usr/bin/env bash
# Runs real clients of Redis and of memcached with gateways: their own handshakes, and each family of
# commands. The clients are in tests/clients, one folder a language, and come from the languages'
# registries; that of PHP is a package of Debian, which scripts/deps.sh installs.
#
#   scripts/clients.sh [LANGUAGE]…     python django node go java rust php; default: those that are
#                                      installed
#
# django stands for Django's own tests of its caches. With CI set, all of them have to be. LOCH names
# the binary (target/debug/loch).
set -euo pipefail
cd "$(dirname "$0")/.."

case ${1:-} in
  -h | --help) sed -n '2,${ /^#/!q; s/^# \{0,1\}//; p; }' scripts/clients.sh && exit ;;
esac

target=${CARGO_TARGET_DIR:-target}
loch=${LOCH:-$target/debug/loch}
[ -n "${LOCH:-}" ] || cargo build --quiet --locked -p loch-cli
work=$target/clients
mkdir -p "$work"
work=$(cd "$work" && pwd)
state=$(mktemp -d)
processes=()

end() {
  local process
  for process in "${processes[@]}"; do
    kill "$process" 2>/dev/null || true
    wait "$process" 2>/dev/null || true
  done
  rm -rf "$state"
}
trap end EXIT

# Starts a process of Loch, and waits for the line with which it says that it is ready.
start() { # NAME ARGUMENT…
  : >"$state/$1"
  "$loch" "${@:2}" >"$state/$1" 2>"$state/$1.log" &
  processes+=($!)
  local _
  for _ in $(seq 300); do
    grep -q 'is ready' "$state/$1" && return
    kill -0 $! 2>/dev/null || break
    sleep 0.1
  done
  cat "$state/$1.log" >&2
  echo "clients: $1 is not ready" >&2
  return 1
}
address() { sed -n "s/.*$2 at \([0-9.:]*\).*/\1/p" "$state/$1"; }

(umask 077 && echo swordfish >"$state/password")
start node serve --socket "$state/node.sock" --region "$state/region" --memory 256MiB
start gateway gateway --socket "$state/node.sock" --resp 127.0.0.1:0 --memcached 127.0.0.1:0 \
  --password "$state/password" --threads 2
start open gateway --socket "$state/node.sock" --resp 127.0.0.1:0 --memcached 127.0.0.1:0
arguments=("$(address gateway RESP)" "$(address gateway memcached)" swordfish)
RESP_OPEN=$(address open RESP)
MEMCACHED_OPEN=$(address open memcached)
export RESP_OPEN MEMCACHED_OPEN

# The packages of Python, for Django as well.
python_packages() {
  local packages=(tests/clients/python/requirements.txt tests/clients/django/requirements.txt)
  local alone=tests/clients/python/requirements-alone.txt
  cat "${packages[@]}" $alone >"$state/packages"
  cmp -s "$state/packages" "$work/python/installed" && return
  python3 -m venv --clear "$work/python"
  local pip=("$work/python/bin/pip" --quiet --disable-pip-version-check)
  "${pip[@]}" install --only-binary :all: -r "${packages[0]}" -r "${packages[1]}"
  "${pip[@]}" install --only-binary :all: --no-deps -r $alone
  cp "$state/packages" "$work/python/installed"
}
with_python() {
  python_packages
  "$work/python/bin/python" tests/clients/python/clients.py "${arguments[@]}"
  "$work/python/bin/python" tests/clients/python/lmcache_client.py \
    "${arguments[0]}" "${arguments[2]}"
}
# Its tests are only in the source package.
with_django() {
  python_packages
  local folder=$work/django package=tests/clients/django/sdist.txt
  if ! cmp -s $package "$folder/installed"; then
    rm -rf "$folder"
    mkdir -p "$folder"
    "$work/python/bin/pip" download --quiet --disable-pip-version-check --no-deps \
      --no-binary django --dest "$folder" -r $package
    tar -xzf "$folder"/*.tar.gz -C "$folder" --strip-components 1
    cp $package "$folder/installed"
  fi
  (cd "$folder/tests" && PYTHONPATH=$OLDPWD/tests/clients/django:.. PYTHONDONTWRITEBYTECODE=1 \
    "$work/python/bin/python" runtests.py --settings settings --parallel 1 \
    cache.tests.{RedisCacheTests,PyMemcacheCacheTests,PyLibMCCacheTests}) \
    >"$state/django" 2>&1 || { cat "$state/django" >&2 && return 1; }
  echo "django: $(cat tests/clients/django/sdist.txt): $(grep '^Ran' "$state/django")," \
    "$(grep '^OK' "$state/django")"
}
with_node() {
  mkdir -p "$work/node"
  cp tests/clients/node/* "$work/node"
  (cd "$work/node" && npm ci --silent --no-audit --no-fund && node clients.js "${arguments[@]}")
}
with_go() {
  (cd tests/clients/go && GOFLAGS=-mod=readonly GOTOOLCHAIN=local go build -o "$work/go" .)
  "$work/go" "${arguments[@]}"
}
with_java() {
  mkdir -p "$work/java"
  cp -r tests/clients/java/* "$work/java"
  (cd "$work/java" && mvn --quiet --batch-mode --no-transfer-progress compile \
    org.codehaus.mojo:exec-maven-plugin:3.5.0:java -Dexec.mainClass=Clients \
    -Dexec.cleanupDaemonThreads=false "-Dexec.args=${arguments[*]}")
}
with_rust() {
  CARGO_TARGET_DIR=$work/rust cargo run --quiet --locked \
    --manifest-path tests/clients/rust/Cargo.toml -- "${arguments[@]}"
}
with_php() {
  php tests/clients/php/clients.php "${arguments[@]}"
}

declare -A programs=([python]=python3 [django]=python3 [node]=npm [go]=go [java]=mvn [rust]=cargo
  [php]=php-memcached)
installed() { # LANGUAGE
  if [ "$1" = php ]; then
    php -r 'exit((int) !extension_loaded("memcached"));' 2>/dev/null
  else
    command -v "${programs[$1]}" >/dev/null
  fi
}
languages=("$@")
[ ${#languages[@]} -gt 0 ] || languages=(python django node go java rust php)
for language in "${languages[@]}"; do
  if [ -z "${programs[$language]:-}" ]; then
    echo "clients: no clients in $language: python, django, node, go, java, rust or php" >&2
    exit 2
  fi
  if installed "$language"; then
    "with_$language"
  elif [ -n "${CI:-}" ]; then
    echo "clients: ${programs[$language]} is missing" >&2
    exit 1
  else
    echo "clients: not with $language: ${programs[$language]} is not installed"
  fi
done
