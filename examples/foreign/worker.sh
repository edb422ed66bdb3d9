#!/bin/bash
# A worker in bash alone: RESP over /dev/tcp, nothing installed. It serves the tool `shout`.
#   worker.sh HOST PORT [PREFIX]
host=$1 port=$2 prefix=$3 me="bash-$$"
exec 3<>"/dev/tcp/$host/$port" || exit 1
LC_ALL=C # lengths are bytes

send() { # one command; its words are the arguments
  local word
  printf '*%d\r\n' $# >&3
  for word; do printf '$%d\r\n%s\r\n' ${#word} "$word" >&3; done
}

receive() { # one reply into the array `reply`, nested ones flattened; an error ends up in `failure`
  local line kind rest n
  IFS= read -r line <&3 || exit 1
  line=${line%$'\r'} kind=${line:0:1} rest=${line:1}
  case $kind in
  '*') for ((n = 0; n < rest; n++)); do receive; done ;;
  '$')
    if ((rest < 0)); then
      reply+=("")
    else
      IFS= read -r -N "$rest" line <&3
      reply+=("$line")
      IFS= read -r line <&3 # the line's end
    fi ;;
  '-') failure=$rest ;;
  *) reply+=("$rest") ;;
  esac
}

ask() { reply=() failure="" && send "$@" && receive; }

say() { # status and further fields about the task at hand
  ask XADD "${prefix}stream:result" '*' task_id "${task[task_id]}" turn "${task[turn]}" epoch "${task[epoch]}" \
    worker_id "$me" message_id "$id" status "$@"
}

work() {
  if [[ ${task[tool_name]} != shout ]]; then say passed tool_name "${task[tool_name]}"; return; fi
  say claimed
  local attempt="$me:${reply[0]}" answer="" tries=0
  while [[ -z $answer ]] && ((tries++ < 200)); do
    ask GET "${prefix}grant:${task[turn]}:${task[epoch]}"
    answer=${reply[0]}
    [[ -n $answer ]] || sleep 0.05
  done
  [[ -n $answer ]] || return 1 # nobody answered: leave the entry alone
  [[ $answer == "$attempt" ]] || return 0
  ask XCLAIM "${prefix}stream:task" cg:workers "$me" 0 "$id" JUSTID # the heartbeat; a long job repeats it
  say succeeded attempt "$attempt" output "${task[payload]^^}"
}

while true; do
  ask SADD "${prefix}workers" "$me"
  ask SET "${prefix}worker:$me" '{"tools":["shout"],"slots":1}' EX 60
  ask XREADGROUP GROUP cg:workers "$me" COUNT 1 BLOCK 2000 STREAMS "${prefix}stream:task" '>'
  if [[ -n $failure ]]; then sleep 1; continue; fi
  ((${#reply[@]} > 2)) || continue # nothing came
  id=${reply[1]}
  unset task; declare -A task
  for ((n = 2; n + 1 < ${#reply[@]}; n += 2)); do task[${reply[n]}]=${reply[n + 1]}; done
  work && ask XACK "${prefix}stream:task" cg:workers "$id"
done
