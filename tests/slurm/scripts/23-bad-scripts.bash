# Scripts that are none.
: > empty; printf '  \n' > white; printf '#!/bin/sh\r\ntrue\r\n' > dos; printf 'true\n' > plain
printf '#!/bin/sh\n#SBATCH --foo\ntrue\n' > unknown; printf '#!/bin/sh\n#SBATCH --mem=x\ntrue\n' > wrong
printf '#!/bin/sh\n#SBATCH -c 2 extra\ntrue\n' > word; mkdir folder
for file in empty white dos plain unknown wrong word folder not-there; do t sbatch "$file"; done
t sbatch < /dev/null
