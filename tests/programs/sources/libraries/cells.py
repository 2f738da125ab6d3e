"""cells.py: layers of polygons, grown, subtracted and merged as a design rule check does; a line a round.

Run by `klayout -b -r cells.py -rd rounds=ROUNDS -rd file=FILE`.
"""

import pya

ROUNDS, FILE = int(globals()["rounds"]), globals()["file"]  # klayout sets both


class Shapes:
    """Boxes at places drawn from a seed."""

    seed = 1

    def draw(self, below: int) -> int:
        self.seed = (self.seed * 1103515245 + 12345) % 2**31
        return self.seed % below

    def box(self) -> pya.Box:
        x, y = self.draw(200000), self.draw(200000)
        return pya.Box(x, y, x + 200 + self.draw(3000), y + 200 + self.draw(3000))


shapes, layout = Shapes(), pya.Layout()
top, metal = layout.create_cell("TOP"), layout.layer(1, 0)
for number in range(ROUNDS):
    a, b = pya.Region(), pya.Region()
    for _ in range(1500):
        a.insert(shapes.box())
        b.insert(shapes.box())
    left = (a - b.sized(120)).merged().sized(-40) + a.space_check(90).polygons()
    print(number, left.count(), left.area(), left.perimeter(), flush=True)
    if number % 10 == 0:
        top.shapes(metal).insert(left)
layout.write(FILE)
