package org.apache.kafka.server.log.remote.metadata.storage;

import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.io.PrintStream;
import java.util.*;
import org.apache.kafka.common.TopicIdPartition;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.Uuid;
import org.apache.kafka.server.log.remote.storage.*;

/** Lines in, lines out: commands for Kafka's own cache of segment metadata, and what comes of each. */
public class CacheOracle {
    static final TopicIdPartition TP = new TopicIdPartition(new Uuid(1, 2), new TopicPartition("t", 0));
    static RemoteLogMetadataCache cache;

    static RemoteLogSegmentId id(String number) {
        return new RemoteLogSegmentId(TP, new Uuid(9, Long.parseLong(number)));
    }

    static String listed(Iterator<RemoteLogSegmentMetadata> items, boolean byStart) {
        List<long[]> found = new ArrayList<>();
        items.forEachRemaining(item -> found.add(
            new long[] {byStart ? item.startOffset() : 0, item.remoteLogSegmentId().id().getLeastSignificantBits()}));
        found.sort(Comparator.<long[]>comparingLong(pair -> pair[0]).thenComparingLong(pair -> pair[1]));
        StringBuilder text = new StringBuilder();
        found.forEach(pair -> text.append(' ').append(pair[1]));
        return text.toString();
    }

    static String run(String[] words) throws Exception {
        switch (words[0]) {
            case "new":
                cache = new RemoteLogMetadataCache();
                cache.markInitialized();
                return "ok";
            case "add":
                Map<Integer, Long> epochs = new TreeMap<>();
                for (int at = 4; at < words.length; at += 2)
                    epochs.put(Integer.parseInt(words[at]), Long.parseLong(words[at + 1]));
                cache.addCopyInProgressSegment(new RemoteLogSegmentMetadata(
                    id(words[1]), Long.parseLong(words[2]), Long.parseLong(words[3]), 7, 1, 8, 1024, epochs));
                return "ok";
            case "move":
                cache.updateRemoteLogSegmentMetadata(new RemoteLogSegmentMetadataUpdate(
                    id(words[1]), 9, Optional.empty(), RemoteLogSegmentState.forId(Byte.parseByte(words[2])), 1));
                return "ok";
            case "all": return listed(cache.listAllRemoteLogSegments(), false);
            case "list": return listed(cache.listRemoteLogSegments(Integer.parseInt(words[1])), true);
            case "highest": return " " + cache.highestOffsetForEpoch(Integer.parseInt(words[1])).map(Object::toString).orElse("None");
            default:
                return " " + cache.remoteLogSegmentMetadata(Integer.parseInt(words[1]), Long.parseLong(words[2]))
                    .map(item -> "" + item.remoteLogSegmentId().id().getLeastSignificantBits()).orElse("None");
        }
    }

    public static void main(String[] arguments) throws Exception {
        PrintStream out = new PrintStream(System.out, false);
        BufferedReader in = new BufferedReader(new InputStreamReader(System.in));
        for (String line; (line = in.readLine()) != null; ) {
            try {
                out.println(run(line.split(" ")));
            } catch (Exception error) {
                out.println(error.getClass().getSimpleName());
            }
        }
        out.flush();
    }
}
