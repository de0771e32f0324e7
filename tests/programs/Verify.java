import java.nio.ByteBuffer;
import java.util.ArrayList;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.Random;
import java.util.concurrent.ConcurrentHashMap;
import java.util.concurrent.ExecutorService;
import java.util.concurrent.Executors;
import java.util.concurrent.Future;

/** Objects of known content that live, die, move and are verified, on several threads. */
public class Verify {
    static final int THREADS = 3;
    static final int VALUES = 6_000;

    /** An array whose content is known from its key and generation. */
    static long[] value(int key, int generation) {
        long[] value = new long[64 + key % 448];
        for (int i = 0; i < value.length; i++) {
            value[i] = key * 1_000_003L + generation * 31L + i;
        }
        return value;
    }

    static void verify(long[] value, int key, int generation) {
        if (value == null || value.length != 64 + key % 448) {
            throw new IllegalStateException("value " + key + " is not there");
        }
        for (int i = 0; i < value.length; i++) {
            if (value[i] != key * 1_000_003L + generation * 31L + i) {
                throw new IllegalStateException("value " + key + " is wrong at " + i + ": " + value[i]);
            }
        }
    }

    /** Replaces and verifies values of a map; what is replaced is garbage. */
    static int churn(int seed, int rounds) {
        Random random = new Random(seed);
        Map<Integer, long[]> values = new HashMap<>();
        int[] generations = new int[VALUES];
        for (int key = 0; key < VALUES; key++) {
            values.put(key, value(key, 0));
        }
        for (int round = 0; round < rounds; round++) {
            int key = random.nextInt(VALUES);
            verify(values.get(key), key, generations[key]);
            values.put(key, value(key, ++generations[key]));
        }
        for (int key = 0; key < VALUES; key++) {
            verify(values.get(key), key, generations[key]);
        }
        return values.size();
    }

    /** Memory outside of the heap, which its owner's collection gives back. */
    static int direct(int rounds) {
        int verified = 0;
        for (int round = 0; round < rounds; round++) {
            ByteBuffer buffer = ByteBuffer.allocateDirect(1 << 20);
            while (buffer.remaining() >= 8) {
                buffer.putLong(round * 7L + buffer.position());
            }
            buffer.flip();
            while (buffer.remaining() >= 8) {
                long at = buffer.position();
                if (buffer.getLong() != round * 7L + at) {
                    throw new IllegalStateException("buffer " + round + " is wrong at " + at);
                }
            }
            verified++;
        }
        return verified;
    }

    /** Strings that threads share, and threads that come and go. */
    static int shared(int count) throws Exception {
        Map<String, String> map = new ConcurrentHashMap<>();
        List<Thread> threads = new ArrayList<>();
        for (int t = 0; t < 16; t++) {
            int from = t * count;
            Thread thread = new Thread(() -> {
                for (int i = from; i < from + count; i++) {
                    map.put("key " + i, "value ".repeat(1 + i % 20) + i);
                }
            });
            threads.add(thread);
            thread.start();
        }
        for (Thread thread : threads) {
            thread.join();
        }
        for (int i = 0; i < 16 * count; i++) {
            if (!("value ".repeat(1 + i % 20) + i).equals(map.get("key " + i))) {
                throw new IllegalStateException("key " + i + " is wrong: " + map.get("key " + i));
            }
        }
        return map.size();
    }

    public static void main(String[] args) throws Exception {
        int rounds = Integer.parseInt(args[0]);
        ExecutorService threads = Executors.newFixedThreadPool(THREADS);
        List<Future<Integer>> churned = new ArrayList<>();
        for (int t = 0; t < THREADS; t++) {
            int seed = t;
            churned.add(threads.submit(() -> churn(seed, rounds)));
        }
        int sum = 0;
        for (Future<Integer> one : churned) {
            sum += one.get();
        }
        threads.shutdown();
        System.gc();
        System.out.println("right " + sum + " " + direct(24) + " " + shared(1_000));
    }
}
