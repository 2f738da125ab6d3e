# shell.sh ROUNDS: subshells, pipes, background jobs, traps, here-documents, a named pipe and sleep.
set -eu
mkfifo queue
trap 'echo "trap: $?" >> trap.txt' EXIT
( while read -r line; do printf '%s\n' "$line" | sha256sum | cut -c1-16; done < queue > hashes.txt ) &
listener=$!
exec 9> queue
round=0
while [ "$round" -lt "$1" ]; do
    round=$((round + 1))
    sleep 0.25 & nap=$!
    sum=$( (i=0; while [ $i -lt 2000 ]; do i=$((i + 1)); echo $((i * round)); done) | awk '{ s += $1 } END { print s }')
    text=$(cat <<END
round $round sum $sum
END
)
    echo "$text"
    (echo "$text" >&9)
    wait "$nap"
done
exec 9>&-
wait "$listener"
echo "end $(wc -l < hashes.txt)"
