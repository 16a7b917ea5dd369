package io.chunkstore.kafka;

import java.io.ByteArrayInputStream;
import java.io.IOException;
import java.io.InputStream;
import java.nio.ByteBuffer;
import java.nio.channels.FileChannel;
import java.util.*;
import org.apache.kafka.server.log.remote.storage.*;
import org.apache.kafka.server.log.remote.storage.RemoteLogSegmentMetadata.CustomMetadata;

/** Stores segments in chunkstore; README.md has its options. A call that fails may be repeated: copies start anew, and nothing doubles. */
public final class ChunkstoreRemoteStorageManager implements RemoteStorageManager {
    private static final int WINDOW_BYTES_MIN = 64 << 10;
    private static final List<IndexType> KINDS = List.of(IndexType.OFFSET, IndexType.TIMESTAMP, IndexType.PRODUCER_SNAPSHOT,
        IndexType.LEADER_EPOCH, IndexType.TRANSACTION); // as the protocol numbers them
    private Client client;

    @Override public void configure(Map<String, ?> options) { client = new Client(options); }

    @Override public Optional<CustomMetadata> copyLogSegmentData(RemoteLogSegmentMetadata metadata, LogSegmentData data)
        throws RemoteStorageException {
        try (FileChannel log = FileChannel.open(data.logSegment());
            FileChannel offsets = FileChannel.open(data.offsetIndex());
            FileChannel times = FileChannel.open(data.timeIndex());
            FileChannel producers = FileChannel.open(data.producerSnapshotIndex());
            FileChannel aborted = data.transactionIndex().isEmpty() ? null : FileChannel.open(data.transactionIndex().get())) {
            FileChannel[] files = {log, offsets, times, producers, null, aborted};
            ByteBuffer epochs = data.leaderEpochIndex();
            long[] lengths = new long[files.length];
            for (int i = 0; i < files.length; i++) lengths[i] = i == 4 ? epochs.remaining() : files[i] == null ? -1 : files[i].size();
            return client.call(Client.COPY, client.copyTimeoutMs, out -> {
                Client.segment(out, metadata);
                for (long each : lengths) out.writeLong(each);
            }, connection -> {
                for (int i = 0; i < files.length; i++) {
                    if (files[i] != null) connection.send(files[i], lengths[i]);
                    else if (i == 4 && epochs.hasRemaining()) connection.send(epochs.duplicate());
                }
            }, answers -> Client.custom(answers.get(0)));
        } catch (IOException error) {
            throw new RemoteStorageException(error);
        }
    }

    @Override public InputStream fetchLogSegment(RemoteLogSegmentMetadata metadata, int start) {
        return fetchLogSegment(metadata, start, Integer.MAX_VALUE);
    }

    /** Windows are asked for when they are read: brokers give no end, and close early. The first is what a consumer wants by default. */
    @Override public InputStream fetchLogSegment(RemoteLogSegmentMetadata metadata, int start, int end) {
        return new InputStream() {
            private long at = start;
            private ByteBuffer window = ByteBuffer.allocate(0);

            @Override public int read() throws IOException { return filled(1) ? window.get() & 0xff : -1; }

            @Override public int read(byte[] into, int offset, int length) throws IOException {
                if (!filled(length)) return length == 0 ? 0 : -1;
                int count = Math.min(length, window.remaining());
                window.get(into, offset, count);
                return count;
            }

            private boolean filled(int wanted) throws IOException {
                if (window.hasRemaining()) return true;
                int more = Math.min(Math.max(wanted, WINDOW_BYTES_MIN), Client.PIECE_BYTES);
                int count = (int) Math.min(end - at + 1, at == start ? Client.PIECE_BYTES + WINDOW_BYTES_MIN : more);
                if (count <= 0) return false;
                try {
                    window = client.call(Client.FETCH, client.timeoutMs(), out -> {
                        Client.segment(out, metadata);
                        out.writeLong(at);
                        out.writeInt(count);
                    }, null, answers -> answers.get(0));
                } catch (RemoteStorageException error) {
                    throw new IOException(error);
                }
                at += window.remaining();
                return window.hasRemaining();
            }
        };
    }

    @Override public InputStream fetchIndex(RemoteLogSegmentMetadata metadata, IndexType type) throws RemoteStorageException {
        return client.call(Client.FETCH_INDEX, client.timeoutMs(), out -> {
            Client.segment(out, metadata);
            out.writeByte(KINDS.indexOf(type));
        }, null, answers -> {
            byte[] whole = new byte[answers.stream().mapToInt(ByteBuffer::remaining).sum()];
            ByteBuffer into = ByteBuffer.wrap(whole);
            answers.forEach(into::put);
            return new ByteArrayInputStream(whole);
        });
    }

    @Override public void deleteLogSegmentData(RemoteLogSegmentMetadata metadata) throws RemoteStorageException {
        client.call(Client.DELETE, client.timeoutMs(), out -> Client.segment(out, metadata), null, answers -> null);
    }

    @Override public void close() { if (client != null) client.close(); }
}
