package io.chunkstore.kafka;

import java.nio.ByteBuffer;
import java.util.*;
import java.util.concurrent.*;
import org.apache.kafka.common.TopicIdPartition;
import org.apache.kafka.server.log.remote.storage.*;

/** Keeps metadata of segments in chunkstore; README.md has its options. An event is durable when its future is done. */
public final class ChunkstoreRemoteLogMetadataManager implements RemoteLogMetadataManager {
    private static final System.Logger LOG = System.getLogger(ChunkstoreRemoteLogMetadataManager.class.getName());
    private static final int EVENTS_AT_ONCE = 8, ALL_EPOCHS = -1;

    /** Partitions that this broker leads, follows, or (stopped) no longer serves. {@code ready}: those that the server has acknowledged. */
    private record Change(Set<TopicIdPartition> leaders, Set<TopicIdPartition> followers, boolean stopped, Set<TopicIdPartition> ready) {
        Change(Set<TopicIdPartition> leaders, Set<TopicIdPartition> followers, boolean stopped) {
            this(Set.copyOf(leaders), Set.copyOf(followers), stopped, ConcurrentHashMap.newKeySet());
        }
    }
    private record Key(TopicIdPartition partition, int epoch) { }
    private record Listed(long version, List<RemoteLogSegmentMetadata> segments) { }

    private final Map<TopicIdPartition, Change> latest = new ConcurrentHashMap<>();
    private final BlockingQueue<Change> changes = new LinkedBlockingQueue<>();
    private final Map<Key, Listed> lists = new ConcurrentHashMap<>();
    private final ExecutorService events = Executors.newFixedThreadPool(EVENTS_AT_ONCE, run -> Client.daemon(run, "events"));
    /** Of the broker's metadata loader, which must not wait for the others. */
    private final ExecutorService loaderEvents = Executors.newFixedThreadPool(EVENTS_AT_ONCE, run -> Client.daemon(run, "loader-events"));
    private final Thread teller = Client.daemon(this::acknowledgeChanges, "leadership");
    private volatile long loaderFailedAt = System.nanoTime();
    private Client client;

    @Override public void configure(Map<String, ?> options) {
        client = new Client(options);
        teller.start();
    }

    @Override public CompletableFuture<Void> addRemoteLogSegmentMetadata(RemoteLogSegmentMetadata metadata) {
        return event(Client.ADD, out -> Client.segment(out, metadata));
    }

    @Override public CompletableFuture<Void> updateRemoteLogSegmentMetadata(RemoteLogSegmentMetadataUpdate update) {
        return event(Client.UPDATE, out -> {
            Client.partition(out, update.topicIdPartition());
            Client.uuid(out, update.remoteLogSegmentId().id());
            out.writeLong(update.eventTimestampMs());
            Client.custom(out, update.customMetadata());
            out.writeByte(update.state().id());
            out.writeInt(update.brokerId());
        });
    }

    @Override public CompletableFuture<Void> putRemotePartitionDeleteMetadata(RemotePartitionDeleteMetadata metadata) {
        return event(Client.PARTITION_DELETE, out -> {
            Client.partition(out, metadata.topicIdPartition());
            out.writeByte(metadata.state().id());
            out.writeLong(metadata.eventTimestampMs());
            out.writeInt(metadata.brokerId());
        });
    }

    private CompletableFuture<Void> event(int operation, Client.Arguments arguments) {
        CompletableFuture<Void> future = new CompletableFuture<>();
        boolean onLoader = Client.onMetadataLoader();
        long began = System.nanoTime(), timeoutMs = client.timeoutMs();
        (onLoader ? loaderEvents : events).execute(() -> {
            try {
                // A topic's deletion sends many at once and waits for all of them: after one failure the rest must not wait as well.
                if (onLoader && loaderFailedAt - began > 0) throw new RemoteStorageException(client + ": no answer in time");
                client.call(operation, timeoutMs, arguments, null, answers -> null);
                future.complete(null);
            } catch (Throwable error) {
                if (onLoader) loaderFailedAt = System.nanoTime();
                future.completeExceptionally(error);
            }
        });
        return future;
    }

    private <T> T ask(int operation, TopicIdPartition partition, int epoch, Client.Arguments more, Client.Result<T> result)
        throws RemoteStorageException {
        return client.call(operation, client.timeoutMs(), out -> {
            Client.partition(out, partition);
            out.writeInt(epoch);
            more.write(out);
        }, null, result);
    }

    @Override public Optional<RemoteLogSegmentMetadata> remoteLogSegmentMetadata(TopicIdPartition partition, int epoch, long offset)
        throws RemoteStorageException {
        return segment(Client.LOOKUP, partition, epoch, offset);
    }

    /** Of Kafka 4. */
    public Optional<RemoteLogSegmentMetadata> nextSegmentWithTxnIndex(TopicIdPartition partition, int epoch, long offset)
        throws RemoteStorageException {
        return segment(Client.NEXT_TXN, partition, epoch, offset);
    }

    private Optional<RemoteLogSegmentMetadata> segment(int operation, TopicIdPartition partition, int epoch, long offset)
        throws RemoteStorageException {
        return ask(operation, partition, epoch, out -> out.writeLong(offset),
            answers -> answers.get(0).get() == 0 ? Optional.empty() : Optional.of(Client.segment(answers.get(0))));
    }

    @Override public Optional<Long> highestOffsetForEpoch(TopicIdPartition partition, int epoch) throws RemoteStorageException {
        return ask(Client.HIGHEST, partition, epoch, out -> { },
            answers -> answers.get(0).get() == 0 ? Optional.empty() : Optional.of(answers.get(0).getLong()));
    }

    @Override public long remoteLogSize(TopicIdPartition partition, int epoch) throws RemoteStorageException {
        return ask(Client.SIZE, partition, epoch, out -> { }, answers -> answers.get(0).getLong());
    }

    @Override public Iterator<RemoteLogSegmentMetadata> listRemoteLogSegments(TopicIdPartition partition) throws RemoteStorageException {
        return listRemoteLogSegments(partition, ALL_EPOCHS);
    }

    /** Brokers ask four times an interval: segments are sent only if there was an event since. */
    @Override public Iterator<RemoteLogSegmentMetadata> listRemoteLogSegments(TopicIdPartition partition, int epoch)
        throws RemoteStorageException {
        Key key = new Key(partition, epoch);
        Listed known = lists.get(key);
        Listed found = ask(Client.LIST, partition, epoch, out -> out.writeLong(known == null ? 0 : known.version), answers -> {
            List<RemoteLogSegmentMetadata> segments = new ArrayList<>();
            for (ByteBuffer in : answers) {
                in.getLong();
                if (in.get() != 0) return known;
                for (int count = in.getInt(); count > 0; count--) segments.add(Client.segment(in));
            }
            return new Listed(answers.get(0).getLong(10), Collections.unmodifiableList(segments));
        });
        lists.put(key, found);
        return found.segments.iterator();
    }

    @Override public void onPartitionLeadershipChanges(Set<TopicIdPartition> leaders, Set<TopicIdPartition> followers) {
        enqueue(new Change(leaders, followers, false));
    }

    @Override public void onStopPartitions(Set<TopicIdPartition> partitions) {
        enqueue(new Change(partitions, Set.of(), true));
    }

    private void enqueue(Change change) {
        change.leaders.forEach(each -> latest.put(each, change));
        change.followers.forEach(each -> latest.put(each, change));
        changes.add(change);
    }

    /** Of Kafka 4. */
    public boolean isReady(TopicIdPartition partition) {
        Change change = latest.get(partition);
        return change != null && !change.stopped && change.ready.contains(partition);
    }

    private void acknowledgeChanges() {
        try {
            while (true) {
                acknowledge(changes.take());
            }
        } catch (InterruptedException closed) { } // stored metadata do not depend on what was not sent
    }

    private void acknowledge(Change change) throws InterruptedException {
        while (true) {
            try {
                var sets = change.stopped ? List.of(change.leaders) : List.of(change.leaders, change.followers);
                client.call(change.stopped ? Client.STOP : Client.LEADERSHIP, client.timeoutMs(), out -> {
                    for (Set<TopicIdPartition> several : sets) {
                        out.writeInt(several.size());
                        for (TopicIdPartition each : several) Client.partition(out, each);
                    }
                }, null, answers -> null);
                break;
            } catch (Client.Refused error) { // one refused partition must not stop the others
                if (change.leaders.size() + change.followers.size() == 1) {
                    LOG.log(System.Logger.Level.WARNING, "not tiered until its next change of leadership: " + error.getMessage());
                    return;
                }
                for (TopicIdPartition each : change.leaders) acknowledge(new Change(Set.of(each), Set.of(), change.stopped, change.ready));
                for (TopicIdPartition each : change.followers) acknowledge(new Change(Set.of(), Set.of(each), false, change.ready));
                return;
            } catch (RemoteStorageException error) {
                LOG.log(System.Logger.Level.WARNING, "leadership of partitions is not acknowledged, it is sent again: " + error);
                Thread.sleep(1000);
            }
        }
        change.ready.addAll(change.leaders);
        change.ready.addAll(change.followers);
        if (change.stopped) {
            change.leaders.forEach(each -> latest.remove(each, change));
            lists.keySet().removeIf(key -> change.leaders.contains(key.partition));
        }
    }

    @Override public void close() {
        teller.interrupt();
        events.shutdownNow();
        loaderEvents.shutdownNow();
        if (client != null) client.close();
    }
}
