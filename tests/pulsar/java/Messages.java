import com.fasterxml.jackson.databind.ObjectMapper;
import java.util.Base64;
import java.util.HexFormat;
import java.util.LinkedHashMap;
import java.util.Map;
import java.util.UUID;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.TimeUnit;
import org.apache.pulsar.client.api.BatcherBuilder;
import org.apache.pulsar.client.api.CompressionType;
import org.apache.pulsar.client.api.Consumer;
import org.apache.pulsar.client.api.Message;
import org.apache.pulsar.client.api.MessageId;
import org.apache.pulsar.client.api.Producer;
import org.apache.pulsar.client.api.ProducerBuilder;
import org.apache.pulsar.client.api.PulsarClient;
import org.apache.pulsar.client.api.SubscriptionInitialPosition;
import org.apache.pulsar.client.api.SubscriptionMode;
import org.apache.pulsar.client.api.TypedMessageBuilder;
import org.apache.pulsar.client.api.transaction.Transaction;
import org.apache.pulsar.client.impl.BatchMessageIdImpl;
import org.apache.pulsar.client.impl.ChunkMessageIdImpl;
import org.apache.pulsar.client.impl.MessageIdImpl;
import org.apache.pulsar.client.impl.MessageImpl;
import org.apache.pulsar.common.api.proto.MessageMetadata;

/**
 * Messages that only Pulsar's Java client can make, and what it gets: {@code URL produce|consume TOPIC...}.
 *
 * <p>{@code produce} knows the topics mixed, chunks and txn. {@code consume} prints a message a line as JSON, each topic up to a message
 * with the property END.
 */
public final class Messages {
    private static final HexFormat HEX = HexFormat.of();

    public static void main(String[] arguments) throws Exception {
        try (PulsarClient client = PulsarClient.builder().serviceUrl(arguments[0]).enableTransaction(true).build()) {
            for (int i = 2; i < arguments.length; i++) {
                switch (arguments[1].equals("produce") ? arguments[i] : arguments[1]) {
                    case "mixed" -> mixed(client, arguments[i]);
                    case "chunks" -> chunks(client, arguments[i]);
                    case "txn" -> transactions(client, arguments[i]);
                    case "consume" -> consume(client, arguments[i]);
                    default -> throw new IllegalArgumentException(arguments[1]);
                }
            }
        }
    }

    private static ProducerBuilder<byte[]> producer(PulsarClient client, String topic, CompressionType compression) {
        return client.newProducer().topic(topic).compressionType(compression).sendTimeout(0, TimeUnit.SECONDS);
    }

    /** Batches and single messages in every compression: empty and null values, text and binary keys, ordering keys, properties. */
    private static void mixed(PulsarClient client, String topic) throws Exception {
        for (CompressionType compression : CompressionType.values()) {
            try (Producer<byte[]> batches = producer(client, topic, compression).producerName("batches-" + compression)
                    .batchingMaxMessages(8).batchingMaxPublishDelay(10, TimeUnit.MINUTES)
                    .batcherBuilder(BatcherBuilder.DEFAULT).create()) {
                CompletableFuture<MessageId> last = null;
                for (int i = 0; i < 24; i++) {
                    last = varied(batches.newMessage(), i).sendAsync();
                }
                batches.flush();
                last.get();
            }
            try (Producer<byte[]> singles = producer(client, topic, compression).producerName("singles-" + compression)
                    .enableBatching(false).create()) {
                for (int i = 0; i < 12; i++) {
                    varied(singles.newMessage(), i).sequenceId(1000 + i).send();
                }
            }
        }
    }

    private static TypedMessageBuilder<byte[]> varied(TypedMessageBuilder<byte[]> message, int i) {
        switch (i % 4) {
            case 0 -> message.key("key-" + i + "é");
            case 1 -> message.keyBytes(new byte[] {(byte) i, -1, 0});
            case 2 -> message.key("");
            default -> { }
        }
        switch (i % 6) {
            case 1 -> message.value(new byte[0]);
            case 2 -> message.value(null);
            default -> message.value(("value " + i + " ").repeat(i).getBytes());
        }
        if (i % 3 == 0) {
            message.orderingKey(new byte[] {(byte) i, 1}).property("i", "" + i).property("empty", "").property("schön", "€");
        }
        return i % 5 == 0 ? message.eventTime(1_700_000_000_000L + i) : message;
    }

    /** Messages of three and of two chunks, with small ones between. */
    private static void chunks(PulsarClient client, String topic) throws Exception {
        for (CompressionType compression : new CompressionType[] {CompressionType.NONE, CompressionType.LZ4}) {
            try (Producer<byte[]> producer = producer(client, topic, compression).producerName("chunks-" + compression)
                    .enableBatching(false).enableChunking(true).create()) {
                for (int i = 0; i < 8; i++) {
                    byte[] value = new byte[i % 2 == 0 ? 70_000 + i : 9];
                    new java.util.Random(i).nextBytes(value);
                    producer.newMessage().key("k" + i).property("i", "" + i).value(value).send();
                }
            }
        }
    }

    /** Transactions committed and aborted, one of them only in a later ledger than its messages. */
    private static void transactions(PulsarClient client, String topic) throws Exception {
        try (Producer<byte[]> producer = producer(client, topic, CompressionType.NONE).producerName("txn-NONE")
                .enableBatching(false).create()) {
            Transaction late = begin(client);
            for (int round = 0; round < 4; round++) {
                Transaction now = begin(client);
                for (int i = 0; i < 3; i++) {
                    producer.newMessage(now).value(("value in " + round + " " + i).getBytes()).send();
                    producer.newMessage(late).value(("value late " + round + " " + i).getBytes()).send();
                    producer.newMessage().value(("value outside " + round + " " + i).getBytes()).send();
                }
                (round % 2 == 0 ? now.commit() : now.abort()).get();
            }
            late.abort().get();
            producer.newMessage().value("value after".getBytes()).send();
        }
    }

    private static Transaction begin(PulsarClient client) throws Exception {
        return client.newTransaction().withTransactionTimeout(10, TimeUnit.MINUTES).build().get();
    }

    private static void consume(PulsarClient client, String topic) throws Exception {
        ObjectMapper json = new ObjectMapper();
        try (Consumer<byte[]> consumer = client.newConsumer().topic(topic).subscriptionName(UUID.randomUUID().toString())
                .subscriptionMode(SubscriptionMode.NonDurable)
                .subscriptionInitialPosition(SubscriptionInitialPosition.Earliest).subscribe()) {
            while (true) {
                Message<byte[]> message = consumer.receive();
                if (message.hasProperty("END")) {
                    return;
                }
                System.out.println(json.writeValueAsString(row(topic, (MessageImpl<byte[]>) message)));
            }
        }
    }

    private static Map<String, Object> row(String topic, MessageImpl<byte[]> message) {
        MessageMetadata metadata = message.getMessageBuilder();
        MessageIdImpl id = (MessageIdImpl) message.getMessageId();
        Map<String, Object> row = new LinkedHashMap<>();
        row.put("topic", topic);
        row.put("ledger", id.getLedgerId());
        row.put("entry", id.getEntryId());
        row.put("batch_index", id instanceof BatchMessageIdImpl batch ? batch.getBatchIndex() : -1);
        row.put("batch_size", id instanceof BatchMessageIdImpl batch ? batch.getBatchSize() : 0);
        MessageIdImpl first = id instanceof ChunkMessageIdImpl chunk ? (MessageIdImpl) chunk.getFirstChunkMessageId() : null;
        row.put("first_chunk", first == null ? null : new long[] {first.getLedgerId(), first.getEntryId()});
        row.put("producer", message.getProducerName());
        row.put("sequence_id", message.getSequenceId());
        row.put("publish_time", message.getPublishTime());
        row.put("event_time", message.getEventTime());
        row.put("key", message.hasKey() && !message.hasBase64EncodedKey() ? message.getKey() : null);
        row.put("key_hex", message.hasKey() ? HEX.formatHex(message.getKeyBytes()) : null);
        row.put("key_b64", message.hasBase64EncodedKey());
        row.put("null_key", metadata.isNullPartitionKey());
        row.put("ordering_key_hex", message.hasOrderingKey() ? HEX.formatHex(message.getOrderingKey()) : null);
        row.put("properties", message.getProperties());
        row.put("null_value", metadata.isNullValue());
        row.put("schema_version_hex", metadata.hasSchemaVersion() ? HEX.formatHex(metadata.getSchemaVersion()) : null);
        row.put("compression", metadata.getCompression().name());
        row.put("entry_uncompressed_size", metadata.getUncompressedSize());
        row.put("txn", metadata.hasTxnidMostBits()
                ? new long[] {metadata.getTxnidMostBits(), metadata.getTxnidLeastBits()} : null);
        row.put("encryption_keys", metadata.getEncryptionKeysCount());
        row.put("deliver_at", metadata.hasDeliverAtTime() ? metadata.getDeliverAtTime() : null);
        row.put("broker_time", message.getBrokerPublishTime().orElse(null));
        row.put("index", message.getIndex().orElse(null));
        row.put("payload_b64", message.getValue() == null ? null : Base64.getEncoder().encodeToString(message.getData()));
        return row;
    }
}
