# One file for both streams, two files, --open-mode.
submit -o both.txt --wrap 'echo 1; echo 2 >&2; echo 3'; ended "$id"
show both.txt
submit -o out.txt -e err.txt --wrap 'echo out; echo err >&2'; ended "$id"
show out.txt err.txt
submit -o out.txt --open-mode=append --wrap 'echo more'; ended "$id"
show out.txt
submit -o out.txt --open-mode=truncate --wrap 'echo anew'; ended "$id"
show out.txt
submit -e only-err.txt -o "$PWD/absolute.txt" --wrap 'echo out; echo err >&2'; ended "$id"
show only-err.txt absolute.txt
