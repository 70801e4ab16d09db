// Kafka Streams: counts facts by key in a state store with a changelog topic. A single file, run by `java StreamsCounter.java`.
import java.util.ArrayList;
import java.util.List;
import java.util.Properties;
import java.util.TreeMap;
import java.util.regex.Matcher;
import java.util.regex.Pattern;
import org.apache.kafka.clients.producer.KafkaProducer;
import org.apache.kafka.clients.producer.ProducerRecord;
import org.apache.kafka.common.serialization.Serdes;
import org.apache.kafka.common.serialization.StringSerializer;
import org.apache.kafka.common.utils.Bytes;
import org.apache.kafka.streams.CloseOptions;
import org.apache.kafka.streams.KafkaStreams;
import org.apache.kafka.streams.StoreQueryParameters;
import org.apache.kafka.streams.StreamsBuilder;
import org.apache.kafka.streams.kstream.Consumed;
import org.apache.kafka.streams.kstream.Materialized;
import org.apache.kafka.streams.state.KeyValueStore;
import org.apache.kafka.streams.state.QueryableStoreTypes;

public class StreamsCounter {
    static final int PARTITIONS = 2;
    static final long GRACE_MS = 1500;
    static String job;

    static String text(String name) {
        Matcher found = Pattern.compile('"' + name + "\": \"([^\"]*)\"").matcher(job);
        return found.find() ? found.group(1) : null;
    }

    static int number(String name) {
        Matcher found = Pattern.compile('"' + name + "\": (\\d+)").matcher(job);
        if (!found.find()) throw new IllegalArgumentException(name);
        return Integer.parseInt(found.group(1));
    }

    public static void main(String[] words) throws Exception {
        job = words[0];
        long began = System.nanoTime();
        boolean writes = text("phase").equals("write");
        if (writes) write();
        try (KafkaStreams streams = new KafkaStreams(topology(), settings())) {
            streams.start();
            while (streams.state() != KafkaStreams.State.RUNNING || tasks(streams) < PARTITIONS) Thread.sleep(20);
            double ready = (System.nanoTime() - began) / 1e9;
            // Until nothing has been counted for so long: what comes again would be counted by then.
            TreeMap<String, String> state = state(streams);
            long quiet = System.currentTimeMillis();
            while (System.currentTimeMillis() < quiet + GRACE_MS) {
                TreeMap<String, String> now = state(streams);
                if (!now.equals(state) || now.isEmpty() && writes) quiet = System.currentTimeMillis();
                state = now;
                Thread.sleep(50);
            }
            List<String> items = new ArrayList<>();
            state.forEach((key, value) -> items.add('"' + key + "\": [" + value + "]"));
            System.out.println("\nRESULT {\"case\": \"" + text("phase") + "\", \"ready_s\": " + ready
                + ", \"state\": {" + String.join(", ", items) + "}}");
            // The group is left, or the next start would wait for this member's session to end.
            streams.close(CloseOptions.groupMembershipOperation(CloseOptions.GroupMembershipOperation.LEAVE_GROUP)
                .withTimeout(java.time.Duration.ofSeconds(10)));
        }
        System.exit(0);
    }

    static int tasks(KafkaStreams streams) {
        return streams.metadataForLocalThreads().stream().mapToInt(thread -> thread.activeTasks().size()).sum();
    }

    static TreeMap<String, String> state(KafkaStreams streams) {
        TreeMap<String, String> found = new TreeMap<>();
        try (var all = streams.store(StoreQueryParameters.fromNameAndType(
                "counts", QueryableStoreTypes.<String, String>keyValueStore())).all()) {
            all.forEachRemaining(item -> found.put(item.key, item.value));
        }
        return found;
    }

    static org.apache.kafka.streams.Topology topology() {
        StreamsBuilder builder = new StreamsBuilder();
        builder.stream(text("name") + "-input", Consumed.with(Serdes.String(), Serdes.String()))
            .groupByKey()
            .aggregate(() -> "0, 0", (key, value, counted) -> {
                String[] parts = counted.split(", ");
                return (Integer.parseInt(parts[0]) + 1) + ", " + (Integer.parseInt(parts[1]) + Integer.parseInt(value));
            }, Materialized.<String, String, KeyValueStore<Bytes, byte[]>>as("counts")
                .withKeySerde(Serdes.String()).withValueSerde(Serdes.String()));
        return builder.build();
    }

    static Properties settings() {
        Properties found = new Properties();
        found.put("application.id", text("name"));
        found.put("bootstrap.servers", text("bootstrap"));
        found.put("state.dir", text("folder"));
        found.put("commit.interval.ms", "200");
        found.put("replication.factor", "1");
        found.put("statestore.cache.max.bytes", "0"); // each count goes to the changelog
        for (String name : List.of("group.protocol", "processing.guarantee")) {
            if (text(name) != null) found.put(name, text(name));
        }
        return found;
    }

    static void write() {
        Properties settings = new Properties();
        settings.put("bootstrap.servers", text("bootstrap"));
        try (var producer = new KafkaProducer<>(settings, new StringSerializer(), new StringSerializer())) {
            for (int number = number("first"); number < number("last"); number++) {
                String key = String.format("key-%02d", number % 40);
                producer.send(new ProducerRecord<>(text("name") + "-input", key, String.valueOf(number)));
            }
        }
    }
}
