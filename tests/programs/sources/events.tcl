# events.tcl ROUNDS: the event loop with timers and a pipe to a child, dictionaries and strings.
set rounds [lindex $argv 0]
set child [open "|cat" r+]
fconfigure $child -blocking 0 -buffering line
fconfigure stdout -buffering line
set counts {}
set x 12345
set round 0
proc heard {} {
    global child rounds round
    while {[gets $child line] >= 0} {
        incr round
        if {$round % 100 == 0} { puts $line }
        if {$round == $rounds} { set ::done 1 } else { after 1 [list work $round] }
    }
}
proc work {r} {
    global child counts x
    for {set i 0} {$i < 3000} {incr i} {
        set x [expr {($x * 1103515245 + 12345) & 0x7fffffff}]
        dict incr counts [string range [format %x $x] 0 2]
    }
    puts $child "$r [dict size $counts] [zlib crc32 $counts]"
}
fileevent $child readable heard
work 0
vwait done
close $child
