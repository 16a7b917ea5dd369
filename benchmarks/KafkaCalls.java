import io.chunkstore.kafka.ChunkstoreRemoteStorageManager;
import java.io.IOException;
import java.io.InputStream;
import java.nio.ByteBuffer;
import java.nio.channels.FileChannel;
import java.nio.file.Files;
import java.nio.file.Path;
import java.nio.file.StandardOpenOption;
import java.util.List;
import java.util.Map;
import java.util.Optional;
import java.util.Random;
import java.util.stream.Stream;
import org.apache.kafka.common.TopicIdPartition;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.Uuid;
import org.apache.kafka.server.log.remote.storage.*;

/** FOLDER ADDRESS BYTES ROUNDS: copy and fetch the same segment with both managers in turn; lines of manager, call and nanoseconds. */
public final class KafkaCalls {
    static final int FETCH_BYTES = 1 << 20; // what a consumer wants of a partition at once

    /** The files that LocalTieredStorage has of a segment. */
    static List<Path> copies(Path tier, RemoteLogSegmentMetadata segment) throws IOException {
        String id = segment.remoteLogSegmentId().id().toString();
        try (Stream<Path> all = Files.walk(tier)) {
            return all.filter(each -> each.getFileName().toString().contains(id)).toList();
        }
    }

    public static void main(String[] arguments) throws Exception {
        Path folder = Path.of(arguments[0]);
        int size = Integer.parseInt(arguments[2]);
        byte[] bytes = new byte[size];
        new Random(5).nextBytes(bytes);
        Path log = Files.write(folder.resolve("00000000000000000000.log"), bytes);
        Path offsets = Files.write(folder.resolve("00000000000000000000.index"), new byte[size / 4096 * 8]);
        Path times = Files.write(folder.resolve("00000000000000000000.timeindex"), new byte[size / 4096 * 12]);
        Path producers = Files.write(folder.resolve("00000000000000000100.snapshot"), new byte[100]);
        RemoteStorageManager ours = new ChunkstoreRemoteStorageManager(), theirs = new LocalTieredStorage();
        ours.configure(Map.of("address", arguments[1]));
        theirs.configure(Map.of("dir", folder.resolve("tier").toString(), "broker.id", 1));
        TopicIdPartition partition = new TopicIdPartition(Uuid.randomUuid(), new TopicPartition("t", 0));
        for (int round = 0; round < Integer.parseInt(arguments[3]); round++) {
            for (RemoteStorageManager each : new RemoteStorageManager[] {ours, theirs}) {
                String name = each == ours ? "ours" : "theirs";
                ByteBuffer epochs = ByteBuffer.wrap("0\n1\n0 0\n".getBytes());
                LogSegmentData data = new LogSegmentData(log, offsets, times, Optional.empty(), producers, epochs);
                RemoteLogSegmentMetadata segment = new RemoteLogSegmentMetadata(RemoteLogSegmentId.generateNew(partition),
                    100L * round, 100L * round + 99, 1, 1, 1, size, Map.of(0, 0L));
                long began = System.nanoTime();
                each.copyLogSegmentData(segment, data);
                System.out.println(name + " copy " + (System.nanoTime() - began));
                if (each == theirs) {
                    for (Path copied : copies(folder.resolve("tier"), segment)) {
                        try (FileChannel channel = FileChannel.open(copied, StandardOpenOption.WRITE)) { channel.force(true); }
                    }
                    System.out.println("synced copy " + (System.nanoTime() - began));
                }
                for (int at = 0; at < size; at += FETCH_BYTES) {
                    began = System.nanoTime();
                    try (InputStream stream = each.fetchLogSegment(segment, at)) {
                        stream.readNBytes(17); // as a broker does
                        stream.readNBytes(new byte[FETCH_BYTES], 0, Math.min(FETCH_BYTES, size - at) - 17);
                    }
                    System.out.println(name + " fetch " + (System.nanoTime() - began));
                }
            }
        }
    }
}
