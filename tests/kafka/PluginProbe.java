import java.util.*;
import java.util.concurrent.*;
import org.apache.kafka.common.*;
import org.apache.kafka.server.log.remote.storage.*;

/** Arguments: "leaders" and the server's address, or "loader" and the address of a server that answers no event. Prints what came of it. */
public class PluginProbe {
    static RemoteLogMetadataManager manager() throws Exception {
        Class<?> kind = Class.forName("io.chunkstore.kafka.ChunkstoreRemoteLogMetadataManager");
        return (RemoteLogMetadataManager) kind.getConstructor().newInstance();
    }

    static TopicIdPartition partition(int number) {
        return new TopicIdPartition(new Uuid(1, number), new TopicPartition("t", number));
    }

    public static void main(String[] arguments) throws Exception {
        RemoteLogMetadataManager manager = manager();
        manager.configure(Map.of("address", arguments[1], "request.timeout.ms", 300_000));
        if (arguments[0].equals("leaders")) {
            manager.onPartitionLeadershipChanges(Set.of(partition(0), partition(1)), Set.of(partition(2)));
            manager.onPartitionLeadershipChanges(Set.of(partition(3)), Set.of());
            var isReady = manager.getClass().getMethod("isReady", TopicIdPartition.class);
            while (!(Boolean) isReady.invoke(manager, partition(3))) Thread.sleep(20);
            for (int i = 0; i < 4; i++) System.out.println(isReady.invoke(manager, partition(i)));
        } else {
            for (int i = 0; i < 8; i++) delete(manager);
            Thread loader = new Thread(() -> {
                List<CompletableFuture<Void>> events = List.of(delete(manager), delete(manager), delete(manager));
                for (var each : events) each.exceptionally(error -> null).join();
                System.out.println("ended");
            }, "kafka-1-metadata-loader-event-handler");
            loader.start();
            loader.join();
        }
        System.exit(0);
    }

    static CompletableFuture<Void> delete(RemoteLogMetadataManager manager) {
        try {
            return manager.updateRemoteLogSegmentMetadata(new RemoteLogSegmentMetadataUpdate(
                new RemoteLogSegmentId(partition(0), new Uuid(1, 1)), 1, Optional.empty(), RemoteLogSegmentState.DELETE_SEGMENT_STARTED, 1));
        } catch (RemoteStorageException error) {
            throw new IllegalStateException(error);
        }
    }
}
