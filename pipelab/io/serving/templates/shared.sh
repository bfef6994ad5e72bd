# What every script shares: one beginning (`begin`), starts with a log each (`start`, `await`), and one ending (`finish`).
((BASH_VERSINFO[0] * 100 + BASH_VERSINFO[1] >= 404)) || { echo "bash $BASH_VERSION: expected 4.4 or newer" >&2; exit 2; }
WAIT=${WAIT:-1800} GRACE=${GRACE:-30} SKIP=${SKIP:-} LOGS=${LOGS:-logs}
started=() names=() over=() served=""
command -v timeout > /dev/null || timeout() { perl -e 'alarm shift; exec @ARGV' "$@"; }
command -v setsid > /dev/null || setsid() { exec perl -e 'use POSIX; POSIX::setsid(); exec @ARGV' "$@"; }

say() { echo "${0##*/}: $*" >&2; }
refuse() { say "$*"; exit 2; }
skips() { [[ " $SKIP " == *" $1 "* ]]; }
installed() { python3 -c 'import importlib.metadata as m, sys; print(m.version(sys.argv[1]))' "$1"; }
# shellcheck disable=SC2016  # $0 and $1 are those of the inner bash
answers() { timeout 3 bash -c ': <> "/dev/tcp/$0/$1"' "$1" "$2" 2> /dev/null; }
# Engines listen before they have loaded; /health is 200 once they serve, in llama.cpp, SGLang, TensorRT-LLM and vLLM.
healthy() {
  # shellcheck disable=SC2016
  timeout 5 bash -c 'exec 3<> "/dev/tcp/$0/$1"; printf "GET /health HTTP/1.0\r\n\r\n" >&3; head -n 1 <&3' "$1" "$2" \
    2> /dev/null | grep -q ' 200'
}
addresses() { getent ahosts "$1" | awk '{ print $1 }' | sort -u; }
# Processes with the mark of this host's part of the plan, in whatever session they are; Linux alone shows it.
marked() { grep -lzs "^PIPELAB_RUN=$1" /proc/[0-9]*/environ 2> /dev/null | cut -d/ -f3 || true; }

check_version() {
  local have
  have=$(version 2> /dev/null | tail -n 1 | grep -oE '[0-9]+(\.[0-9]+)*' | head -n 1) || true
  [ -n "$have" ] || refuse "$engine is not found, or does not start: install it, or put its folder on PATH (SKIP=version leaves this out)"
  [ "$(printf '%s\n' "$wanted" "$have" | sort -V | head -n 1)" = "$wanted" ] ||
    refuse "$engine $have: expected $wanted or newer, whose options these are: install that (SKIP=version leaves this out)"
}

check_addresses() {
  local i ip mine
  command -v getent > /dev/null || { say "addresses are not checked: there is no getent"; return; }
  mine=" $(hostname -I 2> /dev/null || true)"
  for i in $(seq "$count"); do
    [ -n "$(addresses "${host[$i]}")" ] ||
      refuse "host $i = ${host[$i]}: the name does not resolve: give its address in HOSTS (SKIP=addresses leaves this out)"
  done
  for ip in $(addresses "${host[$number]}"); do
    [[ $ip =~ ^127\.|^::1$ || $mine == *" $ip "* ]] && return
  done
  refuse "host $number = ${host[$number]} is another machine: give this one's number or address (SKIP=addresses leaves this out)"
}

check_gpus() {
  local on called kinds listing name gpu
  [ "${#gpus[@]}" -gt 0 ] || return 0
  listing=$(nvidia-smi --query-gpu=index,uuid,name --format=csv,noheader 2> /dev/null) ||
    refuse "nvidia-smi shows no GPU: install the driver, or start where the plan's GPUs are (SKIP=gpus leaves this out)"
  for gpu in "${gpus[@]}"; do
    read -r on called kinds <<< "$gpu"
    [ "$on" = "$number" ] || continue
    name=$(awk -F', ' -v gpu="$called" '$1 == gpu || $2 == gpu { print $3 }' <<< "$listing")
    [ -n "$name" ] ||
      refuse "GPU $called: this host has $(grep -c . <<< "$listing") others: plan with what nvidia-smi lists here (SKIP=gpus leaves this out)"
    [[ -z $kinds || "; $kinds; " == *"; $name; "* ]] ||
      refuse "GPU $called is $name: expected $kinds: plan with what nvidia-smi lists here (SKIP=gpus leaves this out)"
  done
}

check_ports() {
  local on address port
  for port in "${ports[@]}"; do
    read -r on address port <<< "$port"
    [ "$on" != "$number" ] || ! answers "$address" "$port" ||
      refuse "port $port is taken: end what listens at $address, which ss -ltnp names (SKIP=ports leaves this out)"
  done
}

# Nothing is started before all is checked; from here on the script ends what it started, however it ends.
begin() {
  local check earlier
  run=$(cksum "$0" | cut -d' ' -f1)-$number.$$
  logs=$LOGS/$(basename "$0" .sh)-$number-$(date +%Y%m%d-%H%M%S)-$$
  [ "$mode" != --dry-run ] || return 0
  [ "$mode" != --check ] || declare -F held > /dev/null ||
    refuse "--check: $engine does not say which layers a stage holds: compare what nvidia-smi shows with the plan's memory"
  earlier=$(marked "${run%.*}\.")
  [ -z "$earlier" ] || refuse "this plan runs here already: end it first: kill ${earlier//$'\n'/ }"
  for check in version addresses gpus ports; do
    skips "$check" || "check_$check"
  done
  trap 'trap "" INT TERM HUP; exit 130' INT  # a second signal would end bash before it is ignored
  trap 'trap "" INT TERM HUP; exit 143' TERM
  trap 'trap "" INT TERM HUP; exit 129' HUP
  trap finish EXIT
  mkdir -p "$logs" 2> /dev/null || refuse "LOGS = $LOGS: no folder can be made there: set LOGS to another"
}

# keep FILE: its text is the standard input; it lies beside the logs.
keep() {
  if [ "$mode" = --dry-run ]; then echo "# file $1:"; cat; return; fi
  { cat > "$logs/$1"; } 2> /dev/null || refuse "$logs/$1 cannot be written: make room, or set LOGS to another folder"
}

# start NAME [VARIABLE=VALUE…] COMMAND…: in a session of its own, which can be ended as a whole.
start() {
  local name=$1 log="$logs/$1.log"
  shift
  set -- env "${environment[@]}" "$@"
  if [ "$mode" = --dry-run ]; then echo "${@@Q}"; return; fi
  { echo "${@@Q}" > "$log"; } 2> /dev/null || refuse "$log cannot be written: make room, or set LOGS to another folder"
  # What a program answers goes to the terminal if it `prints`.
  PIPELAB_RUN=$run setsid "$@" < /dev/null 2>> "$log" >> "${prints:-$log}" &
  started+=($!) names+=("$name")
}

# A server that ends before it answers has not served, whatever its status; a training step ends with all its parts.
mind() {
  local i status
  for i in "${!started[@]}"; do
    if [ -n "${over[i]:-}" ] || kill -0 "${started[$i]}" 2> /dev/null; then continue; fi
    over[i]=yes status=0
    wait "${started[$i]}" || status=$?
    [ "$status" -ne 0 ] || [ -z "$serves" ] || [ -n "$served" ] || status=1
    [ "$status" -ne 0 ] || [ -n "$serves" ] || continue
    if [ "$status" -ne 0 ]; then
      say "${names[$i]} ended with status $status: see $logs/${names[$i]}.log"
      tail -n 5 "$logs/${names[$i]}.log" >&2
    fi
    exit "$status"
  done
}

# await CONDITION…: until it holds, as `answers ADDRESS PORT`; ends after WAIT seconds, or where what was started ends.
await() {
  local until=$((SECONDS + WAIT))
  [ "$mode" != --dry-run ] && ! skips answers || return 0
  until "$@"; do
    mind
    [ "$SECONDS" -lt "$until" ] ||
      refuse "${*:2} does not answer within $WAIT seconds: start that host's script, open the port, or set WAIT to more"
    sleep 0.2
  done
}

# check: which layers every stage holds, as the engine says in its log (`held`), beside the plan's.
said() { [ "$(held | wc -l)" -eq "${#planned[@]}" ]; }
check() {
  local i layers status=0
  await said "$engine about its layers"
  mapfile -t layers < <(held)
  for i in "${!planned[@]}"; do
    echo "stage $((i + 1)) holds layers ${layers[$i]}, and the plan has ${planned[$i]}"
    [ "${layers[$i]}" = "${planned[$i]}" ] || status=1
  done
  exit "$status"
}

# watch: until all have ended, or one has failed.
watch() {
  [ "$mode" != --dry-run ] || exit 0
  served=yes
  [ "$mode" != --check ] || check
  say "running, with logs in $logs"
  while [ "${#over[@]}" -lt "${#started[@]}" ]; do
    mind
    sleep 0.2
  done
}

# left: what has not ended of the sessions started, and of what left them.
left() {
  local leader
  if [ -r /proc/self/stat ]; then
    cat /proc/[0-9]*/stat 2> /dev/null | awk -v started=" ${started[*]} " '{
      pid = $1
      sub(/^.*[)] /, "")  # what is in brackets, its name; then state, parent, group and session follow
      if ($1 != "Z" && index(started, " " $4 " ")) print pid
    }'
    marked "$run\$"
  else
    for leader in "${started[@]}"; do ! kill -0 -- "-$leader" 2> /dev/null || echo "-$leader"; done
  fi
}

# finish: the status stays. An engine ends what it started; what outlives it is told to, and killed after GRACE seconds.
finish() {
  local status=$? i all
  trap "" INT TERM HUP
  disown -a  # bash need not tell who was killed
  for ((i = 0; i < 5 * GRACE + 50; i++)); do
    read -ra all <<< "$(left | tr '\n' ' ')"
    [ "${#all[@]}" -gt 0 ] || break
    if [ "$i" -eq 0 ]; then
      kill -TERM "${started[@]}"
    elif [ "$i" -ge $((5 * GRACE)) ]; then
      kill -KILL -- "${all[@]}"
    elif ! kill -0 "${started[@]}"; then
      kill -TERM -- "${all[@]}"
    fi 2> /dev/null || true
    sleep 0.2
  done
  [ "$i" -le $((5 * GRACE)) ] || say "killed what had not ended after $GRACE seconds"
  exit "$status"
}
