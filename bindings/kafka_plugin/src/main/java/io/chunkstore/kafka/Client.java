package io.chunkstore.kafka;

import java.io.*;
import java.lang.reflect.Constructor;
import java.lang.reflect.Method;
import java.net.*;
import java.nio.ByteBuffer;
import java.nio.channels.FileChannel;
import java.nio.channels.SocketChannel;
import java.nio.charset.StandardCharsets;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.*;
import java.util.concurrent.*;
import java.util.zip.CRC32C;
import javax.crypto.Mac;
import javax.crypto.spec.SecretKeySpec;
import org.apache.kafka.common.TopicIdPartition;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.Uuid;
import org.apache.kafka.server.log.remote.storage.*;
import org.apache.kafka.server.log.remote.storage.RemoteLogSegmentMetadata.CustomMetadata;

/**
 * A bounded pool of connections to {@code chunkstore kafka serve}; the protocol is in chunkstore/kafka/FORMAT_WIRE.md.
 *
 * <p>A call ends by its deadline: a timer closes its channel. Until then lost connections and RETRY are repeated. Nothing but
 * RemoteStorageException leaves {@link #call}. Calls of the broker's metadata loader have one second: it must not be blocked.
 */
final class Client implements AutoCloseable {
    static final int COPY = 1, FETCH = 2, FETCH_INDEX = 3, DELETE = 4, ADD = 5, UPDATE = 6, PARTITION_DELETE = 7, LOOKUP = 8;
    static final int NEXT_TXN = 9, HIGHEST = 10, LIST = 11, SIZE = 12, LEADERSHIP = 13, STOP = 14, PING = 15;
    static final int PIECE_BYTES = 1 << 20;
    private static final int OK = 0, MORE = 1, NOT_FOUND = 2, RETRY = 4, DENIED = 6;
    private static final int BODY_BYTES_MAX = (8 << 20) + (64 << 10), CONNECTIONS_MAX = 16, IDLE_MAX = 4, LOADER_TIMEOUT_MS = 1000;

    /** Writes the arguments of a request. */
    interface Arguments { void write(DataOutputStream out) throws Exception; }
    /** Sends what follows a request, from its beginning in each attempt. */
    interface Data { void send(Connection connection) throws IOException; }
    /** Makes the result of all answers to a request. */
    interface Result<T> { T read(List<ByteBuffer> answers) throws Exception; }

    /** The server answers INVALID or FAILED: the same request is not answered otherwise soon. */
    static final class Refused extends RemoteStorageException {
        Refused(String message) { super(message); }
    }

    final long copyTimeoutMs;
    private final long requestTimeoutMs;
    private final String address, token;
    private final Semaphore permits = new Semaphore(CONNECTIONS_MAX, true);
    private final ConcurrentLinkedDeque<Connection> idle = new ConcurrentLinkedDeque<>();
    private final Set<Connection> opened = ConcurrentHashMap.newKeySet();
    private final ScheduledThreadPoolExecutor timer = new ScheduledThreadPoolExecutor(1, run -> daemon(run, "deadlines"));
    private volatile boolean closed;

    /** Connects nowhere yet. IllegalArgumentException: an option is missing or wrong, or the token's file cannot be read. */
    Client(Map<String, ?> options) {
        Map<String, Object> all = new HashMap<>(Map.of("address", "", "token.file", ""));
        all.putAll(Map.of("request.timeout.ms", 30_000, "copy.timeout.ms", 600_000));
        all.putAll(options);
        address = all.get("address").toString();
        if (!address.matches("unix:/.+|.+:\\d{1,5}"))
            throw new IllegalArgumentException("address must be unix:/PATH or HOST:PORT, not '" + address + "'");
        requestTimeoutMs = Long.parseLong(all.get("request.timeout.ms").toString());
        copyTimeoutMs = Long.parseLong(all.get("copy.timeout.ms").toString());
        String file = all.get("token.file").toString();
        try {
            token = file.isEmpty() ? "" : Files.readString(Path.of(file), StandardCharsets.ISO_8859_1).replaceAll("[\\r\\n]+$", "");
        } catch (IOException error) {
            throw new IllegalArgumentException("token.file " + file + " cannot be read: " + error, error);
        }
        timer.setRemoveOnCancelPolicy(true);
    }

    static Thread daemon(Runnable run, String name) {
        Thread thread = new Thread(run, "chunkstore-" + name);
        thread.setDaemon(true);
        return thread;
    }

    static boolean onMetadataLoader() {
        return Thread.currentThread().getName().endsWith("metadata-loader-event-handler");
    }

    /** How long a call of this thread may take. */
    long timeoutMs() {
        return onMetadataLoader() ? Math.min(LOADER_TIMEOUT_MS, requestTimeoutMs) : requestTimeoutMs;
    }

    /** The result of a request. RemoteResourceNotFoundException: NOT_FOUND, but of a deletion whose first answer was lost. */
    <T> T call(int operation, long timeoutMs, Arguments arguments, Data data, Result<T> result) throws RemoteStorageException {
        long ends = System.nanoTime() + TimeUnit.MILLISECONDS.toNanos(timeoutMs);
        boolean sent = false;
        try {
            ByteArrayOutputStream encoded = new ByteArrayOutputStream();
            arguments.write(new DataOutputStream(encoded));
            for (long pauseMs = 20; ; pauseMs = Math.min(2 * pauseMs, 1000)) {
                if (!permits.tryAcquire(ends - System.nanoTime(), TimeUnit.NANOSECONDS))
                    throw new RemoteStorageException(this + ": all connections are in use for " + timeoutMs + " ms");
                Connection found = idle.pollFirst(), connection = found;
                boolean repeated = sent;
                IOException failure;
                Future<?> alarm = null;
                try {
                    if (found == null) connection = new Connection();
                    alarm = timer.schedule(connection::close, ends - System.nanoTime(), TimeUnit.NANOSECONDS);
                    if (found == null) connection.open(ends);
                    sent = true;
                    return result.read(connection.exchange(operation, encoded.toByteArray(), data, ends, repeated));
                } catch (IOException error) {
                    failure = error;
                } finally {
                    if (alarm != null) alarm.cancel(false);
                    if (connection != null && connection.intact && !closed && idle.size() < IDLE_MAX) idle.addFirst(connection);
                    else if (connection != null) connection.close();
                    permits.release();
                }
                long leftMs = TimeUnit.NANOSECONDS.toMillis(ends - System.nanoTime());
                if (leftMs <= 0) throw new RemoteStorageException(this + ": no answer in " + timeoutMs + " ms: " + failure, failure);
                if (found == null || connection.intact) Thread.sleep(Math.min(pauseMs, leftMs)); // else it was lost while it was idle
            }
        } catch (Throwable error) { // an Error would end the partition's copies without a word
            if (error instanceof RemoteStorageException known) throw known;
            if (error instanceof InterruptedException) Thread.currentThread().interrupt();
            throw new RemoteStorageException(this + ": " + error, error);
        }
    }

    /** End all calls, and refuse others. */
    @Override public void close() {
        closed = true;
        timer.shutdownNow();
        opened.forEach(Connection::close);
    }

    @Override public String toString() { return "chunkstore at " + address; }

    /** One connection, for one thread at a time, but for {@link #close}. */
    final class Connection {
        private final boolean local = address.startsWith("unix:");
        private final SocketChannel channel = local ? SocketChannel.open(StandardProtocolFamily.UNIX) : SocketChannel.open();
        private ByteBuffer buffer;
        private boolean intact;
        private long request;

        Connection() throws IOException {
            opened.add(this);
        }

        private void open(long ends) throws Exception {
            int colon = address.lastIndexOf(':');
            SocketAddress place = local ? UnixDomainSocketAddress.of(address.substring(5))
                : new InetSocketAddress(address.substring(0, colon), Integer.parseInt(address.substring(colon + 1)));
            if (!local) channel.setOption(StandardSocketOptions.TCP_NODELAY, true);
            channel.connect(place);
            buffer = ByteBuffer.allocateDirect(PIECE_BYTES).limit(0);
            ByteBuffer greeting = receive();
            if (greeting.remaining() != 37 || greeting.getInt() != 0x43534b50 || greeting.get() != 1)
                throw new RemoteStorageException(Client.this + ": no server of protocol version 1");
            byte[] proof = new byte[32];
            if (!token.isEmpty()) {
                Mac mac = Mac.getInstance("HmacSHA256");
                mac.init(new SecretKeySpec(token.getBytes(StandardCharsets.ISO_8859_1), "HmacSHA256"));
                mac.update(greeting);
                proof = mac.doFinal();
            }
            send(ByteBuffer.wrap(proof));
            exchange(PING, new byte[0], null, ends, false); // so that a wrong token is named before data is sent
        }

        private List<ByteBuffer> exchange(int operation, byte[] arguments, Data data, long ends, boolean repeated)
            throws IOException, RemoteStorageException {
            intact = false;
            long waitMs = Math.max(1, TimeUnit.NANOSECONDS.toMillis(ends - System.nanoTime()));
            ByteBuffer body = ByteBuffer.allocate(14 + arguments.length).put((byte) 1).putLong(++request);
            send(body.putInt((int) Math.min(waitMs, Integer.MAX_VALUE)).put((byte) operation).put(arguments).flip());
            if (data != null) data.send(this);
            List<ByteBuffer> answers = new ArrayList<>(1);
            while (true) {
                ByteBuffer answer = receive();
                if (answer.remaining() < 10 || answer.get() != 1) throw new IOException("no answer of version 1");
                long id = answer.getLong();
                int status = answer.get();
                if (id != request && status != DENIED) throw new IOException("an answer to another request");
                intact = status != MORE && status != DENIED;
                if (status == OK || status == MORE) answers.add(answer);
                if (status == OK) return answers;
                if (status == MORE) continue;
                String message = Client.this + ": " + string(answer);
                if (status == RETRY) throw new IOException(message);
                if (status == DENIED) throw new RemoteStorageException(message);
                if (status != NOT_FOUND) throw new Refused(message);
                if (repeated && isFinalDeletion(operation, arguments)) return answers;
                throw new RemoteResourceNotFoundException(message);
            }
        }

        /** Send a file's bytes. UncheckedIOException: the file's fault, so that nothing is repeated. */
        void send(FileChannel file, long length) throws IOException {
            for (long at = 0; at < length; at += buffer.limit()) {
                try {
                    if (file.read(buffer.clear().limit((int) Math.min(PIECE_BYTES, length - at)), at) <= 0)
                        throw new EOFException("a file became shorter while it was copied");
                } catch (IOException error) {
                    throw new UncheckedIOException(error);
                }
                send(buffer.flip());
            }
        }

        /** Send a frame. */
        void send(ByteBuffer body) throws IOException {
            CRC32C crc = new CRC32C();
            crc.update(body.duplicate());
            ByteBuffer head = ByteBuffer.allocate(8).putInt(body.remaining()).putInt((int) crc.getValue()).flip();
            for (ByteBuffer[] both = {head, body}; body.hasRemaining(); ) channel.write(both);
        }

        private ByteBuffer receive() throws IOException {
            ByteBuffer head = received(8);
            int length = head.getInt();
            if (length < 1 || length > BODY_BYTES_MAX) throw new IOException("a frame of " + length + " bytes");
            ByteBuffer body = received(length);
            CRC32C crc = new CRC32C();
            crc.update(body.duplicate());
            if (head.getInt() != (int) crc.getValue()) throw new IOException("a frame with a wrong CRC");
            return body;
        }

        private ByteBuffer received(int length) throws IOException {
            byte[] found = new byte[length];
            for (int at = 0, count; at < length; at += count) {
                if (!buffer.hasRemaining()) {
                    if (channel.read(buffer.clear()) < 0) throw new EOFException("the server ended the connection");
                    buffer.flip();
                }
                buffer.get(found, at, count = Math.min(length - at, buffer.remaining()));
            }
            return ByteBuffer.wrap(found);
        }

        private void close() {
            opened.remove(this);
            idle.remove(this);
            try {
                channel.close();
            } catch (IOException ignored) { } // it is gone
        }
    }

    private static boolean isFinalDeletion(int operation, byte[] arguments) {
        // After the state comes the broker's id; after a partition's, its time and broker.
        int end = arguments.length;
        return operation == UPDATE && arguments[end - 5] == 3 || operation == PARTITION_DELETE && arguments[end - 13] == 2;
    }

    // Types of the protocol

    private static Constructor<RemoteLogSegmentMetadata> ofKafka4;
    private static Method isTxnIdxEmpty;

    static {
        try {
            ofKafka4 = RemoteLogSegmentMetadata.class.getConstructor(RemoteLogSegmentId.class, long.class, long.class, long.class,
                int.class, long.class, int.class, Optional.class, RemoteLogSegmentState.class, Map.class, boolean.class);
            isTxnIdxEmpty = RemoteLogSegmentMetadata.class.getMethod("isTxnIdxEmpty");
        } catch (NoSuchMethodException ofKafka3) { } // which has no word for an empty transaction index
    }

    static void uuid(DataOutputStream out, Uuid id) throws IOException {
        out.writeLong(id.getMostSignificantBits());
        out.writeLong(id.getLeastSignificantBits());
    }

    static void partition(DataOutputStream out, TopicIdPartition partition) throws IOException {
        uuid(out, partition.topicId());
        out.writeUTF(partition.topic()); // names of topics are ASCII
        out.writeInt(partition.topicPartition().partition());
    }

    static void custom(DataOutputStream out, Optional<CustomMetadata> custom) throws IOException {
        out.writeInt(custom.map(each -> each.value().length).orElse(-1));
        if (custom.isPresent()) out.write(custom.get().value());
    }

    static void segment(DataOutputStream out, RemoteLogSegmentMetadata segment) throws Exception {
        partition(out, segment.topicIdPartition());
        uuid(out, segment.remoteLogSegmentId().id());
        for (long each : new long[] {segment.startOffset(), segment.endOffset(), segment.maxTimestampMs()}) out.writeLong(each);
        out.writeInt(segment.brokerId());
        out.writeLong(segment.eventTimestampMs());
        out.writeInt(segment.segmentSizeInBytes());
        out.writeInt(segment.segmentLeaderEpochs().size());
        for (Map.Entry<Integer, Long> each : segment.segmentLeaderEpochs().entrySet()) {
            out.writeInt(each.getKey());
            out.writeLong(each.getValue());
        }
        custom(out, segment.customMetadata());
        out.writeByte(segment.state().id());
        out.writeBoolean(isTxnIdxEmpty != null && (Boolean) isTxnIdxEmpty.invoke(segment));
    }

    private static String string(ByteBuffer in) {
        byte[] bytes = new byte[Short.toUnsignedInt(in.getShort())];
        in.get(bytes);
        return new String(bytes, StandardCharsets.UTF_8);
    }

    static Optional<CustomMetadata> custom(ByteBuffer in) {
        int length = in.getInt();
        if (length < 0) return Optional.empty();
        byte[] bytes = new byte[Math.min(length, in.remaining() + 1)];
        in.get(bytes);
        return Optional.of(new CustomMetadata(bytes));
    }

    static RemoteLogSegmentMetadata segment(ByteBuffer in) throws Exception {
        Uuid topic = new Uuid(in.getLong(), in.getLong());
        TopicIdPartition partition = new TopicIdPartition(topic, new TopicPartition(string(in), in.getInt()));
        RemoteLogSegmentId id = new RemoteLogSegmentId(partition, new Uuid(in.getLong(), in.getLong()));
        long start = in.getLong(), end = in.getLong(), maxTimestamp = in.getLong();
        int broker = in.getInt();
        long event = in.getLong();
        int size = in.getInt();
        Map<Integer, Long> epochs = new TreeMap<>();
        for (int count = in.getInt(); count > 0; count--) epochs.put(in.getInt(), in.getLong());
        Optional<CustomMetadata> custom = custom(in);
        RemoteLogSegmentState state = RemoteLogSegmentState.forId(in.get());
        boolean empty = in.get() != 0;
        return ofKafka4 == null
            ? new RemoteLogSegmentMetadata(id, start, end, maxTimestamp, broker, event, size, custom, state, epochs)
            : ofKafka4.newInstance(id, start, end, maxTimestamp, broker, event, size, custom, state, epochs, empty);
    }
}
