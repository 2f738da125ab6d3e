# words.pl ROUNDS: strings, hashes, regular expressions, a child behind a pipe and a signal handler.
use strict; use warnings;
my $rounds = shift; my %count; my $seed = 12345; my $alarms = 0;
$| = 1;
$SIG{ALRM} = sub { $alarms++; alarm 1 }; alarm 1;
open(my $child, '|-', 'sort -n > sorted.txt') or die $!;
sub chance { $seed = ($seed * 1103515245 + 12345) & 0x7fffffff; return $seed >> 8 }
for my $r (1 .. $rounds) {
    my $text = join '', map { chr(97 + chance() % 26) } 1 .. 4000;
    $count{$1}++ while $text =~ /([aeiou][^aeiou]{1,2})/g;
    my @top = (sort { $count{$b} <=> $count{$a} || $a cmp $b } keys %count)[0 .. 2];
    print $child ($count{$top[0]} % 1000, " $r $top[0]\n");
    print "$r @top ", scalar(keys %count), "\n" if $r % 50 == 0;
}
alarm 0;
close $child;
print "end ", ($alarms > 0 ? "alarms came" : "no alarm"), "\n";
