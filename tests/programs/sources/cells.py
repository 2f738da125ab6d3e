"""cells.py, with `rounds` and `file`: layers of polygons, grown, subtracted and merged as a design rule check does; run by `klayout -b -r`."""
import pya
seed = 1
def draw(n):
    global seed
    seed = (seed * 1103515245 + 12345) % 2**31
    return seed % n
layout = pya.Layout()
top = layout.create_cell("TOP")
metal = layout.layer(1, 0)
for r in range(int(rounds)):
    a, b = pya.Region(), pya.Region()
    for _ in range(3000):
        x, y = draw(200000), draw(200000)
        (a if draw(2) else b).insert(pya.Box(x, y, x + 200 + draw(3000), y + 200 + draw(3000)))
    left = (a - b.sized(120)).merged().sized(-40) + a.space_check(90).polygons()
    print(r, left.count(), left.area(), left.perimeter(), flush=True)
    if r % 10 == 0:
        top.shapes(metal).insert(left)
layout.write(file)
