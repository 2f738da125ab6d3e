<?php
// pages.php ROUNDS: arrays, strings, regular expressions, generators, and a child behind pipes.
function chance(): Generator {
    $x = 12345;
    while (true) { $x = ($x * 1103515245 + 12345) & 0x7fffffff; yield $x >> 8; }
}
$numbers = chance();
$child = proc_open(['sort', '-n'], [['pipe', 'r'], ['file', 'sorted.txt', 'w']], $pipes);
$counts = [];
for ($round = 0; $round < (int)$argv[1]; $round++) {
    $text = '';
    for ($i = 0; $i < 3000; $i++) { $text .= chr(97 + $numbers->current() % 26); $numbers->next(); }
    preg_match_all('/[aeiou][^aeiou]{1,2}/', $text, $found);
    foreach ($found[0] as $word) $counts[$word] = ($counts[$word] ?? 0) + 1;
    arsort($counts);
    $hash = hash('sha256', serialize($counts));
    fwrite($pipes[0], crc32($hash) % 1000 . " $round\n");
    if ($round % 100 == 99) echo "$round $hash\n";
}
fclose($pipes[0]);
proc_close($child);
ksort($counts);
echo hash('sha256', json_encode($counts)), "\n";
