# layout.tcl ROUNDS (in the environment), by `magic -dnull -noconsole`: draws layers of a chip, checks its rules and extracts its nets; prints a line a round.
set state 1
proc draw {n} { global state; set state [expr {($state * 1103515245 + 12345) % 2147483648}]; return [expr {$state / 8 % $n}] }
drc off
for {set r 0} {$r < $env(ROUNDS)} {incr r} {
    load chip$r
    for {set i 0} {$i < 2500} {incr i} {
        set x [draw 8000]; set y [draw 8000]
        box values $x $y [expr {$x + 4 + [draw 60]}] [expr {$y + 4 + [draw 60]}]
        paint [lindex {metal1 metal2 polysilicon ndiffusion pdiffusion} [draw 5]]
    }
    select top cell
    drc check; drc catchup
    extract all
    puts "$r [drc listall count total]"
    flush stdout
}
quit -noprompt
