/** Garbage ROUNDS: keeps the collector busy with maps, strings and soft references on several threads. */
import java.lang.ref.SoftReference;
import java.security.MessageDigest;
import java.util.ArrayDeque;
import java.util.Map;
import java.util.TreeMap;
import java.util.stream.IntStream;

public class Garbage {
    static long work(long task) {
        Map<Long, String> map = new TreeMap<>();
        ArrayDeque<byte[]> recent = new ArrayDeque<>();
        SoftReference<byte[]> soft = new SoftReference<>(new byte[1 << 16]);
        long x = task * 2654435761L + 1, sum = 0;
        for (int i = 0; i < 40000; i++) {
            x ^= x << 13;
            x ^= x >>> 7;
            x ^= x << 17;
            map.put(x % 20011, Long.toString(x, 36));
            recent.add(new byte[(int) (x & 2047)]);
            if (recent.size() > 4000) sum += recent.poll().length;
        }
        for (Map.Entry<Long, String> e : map.entrySet()) sum = sum * 31 + e.getKey() + e.getValue().hashCode();
        return sum + (soft.get() == null ? 0 : 0);
    }

    public static void main(String[] args) throws Exception {
        MessageDigest digest = MessageDigest.getInstance("SHA-256");
        for (int round = 0; round < Integer.parseInt(args[0]); round++) {
            final int r = round;
            long[] results = IntStream.range(0, 16).parallel().mapToLong(t -> work(r * 16L + t)).toArray();
            for (long v : results) digest.update(Long.toString(v).getBytes());
            System.out.println(round + " " + Long.toHexString(results[0]) + " " + Long.toHexString(results[15]));
        }
        StringBuilder hex = new StringBuilder();
        for (byte b : digest.digest()) hex.append(String.format("%02x", b));
        System.out.println(hex);
    }
}
