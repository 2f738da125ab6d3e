import java.util.*;
import java.util.concurrent.*;

/** Life SIZE ROUNDS: a cellular automaton on a pool of threads, with garbage to collect; prints a checksum now and then. */
public class Life {
    public static void main(String[] args) throws Exception {
        int size = Integer.parseInt(args[0]), rounds = Integer.parseInt(args[1]);
        byte[][] now = new byte[size][size];
        Random chance = new Random(42);
        for (byte[] row : now) for (int i = 0; i < size; i++) row[i] = (byte) (chance.nextInt(3) == 0 ? 1 : 0);
        ExecutorService pool = Executors.newFixedThreadPool(4);
        for (int r = 0; r < rounds; r++) {
            final byte[][] old = now, next = new byte[size][];
            List<Future<String>> parts = new ArrayList<>();
            for (int p = 0; p < 4; p++) {
                final int part = p;
                parts.add(pool.submit(() -> {
                    long sum = 0;
                    for (int y = part; y < size; y += 4) { next[y] = line(old, y, size); sum = sum * 31 + Arrays.hashCode(next[y]); }
                    return Long.toHexString(sum);
                }));
            }
            StringBuilder line = new StringBuilder().append(r);
            for (Future<String> f : parts) line.append(' ').append(f.get());
            if (r % 20 == 0) System.out.println(line);
            now = next;
        }
        pool.shutdown();
        System.out.println("end " + Arrays.deepHashCode(now));
    }

    static byte[] line(byte[][] a, int y, int n) {
        byte[] out = new byte[n];
        for (int x = 0; x < n; x++) {
            int c = 0;
            for (int dy = -1; dy <= 1; dy++) for (int dx = -1; dx <= 1; dx++)
                if (dx != 0 || dy != 0) c += a[(y + dy + n) % n][(x + dx + n) % n];
            out[x] = (byte) (c == 3 || (c == 2 && a[y][x] == 1) ? 1 : 0);
        }
        return out;
    }
}
