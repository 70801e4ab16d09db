// Connect in distributed mode with a connector that reads lines of a file; what it knows is in its three topics.
import java.net.URI;
import java.net.http.HttpClient;
import java.net.http.HttpRequest;
import java.net.http.HttpResponse;
import java.nio.file.Files;
import java.nio.file.Path;
import java.nio.file.StandardOpenOption;
import java.time.Duration;
import java.util.ArrayList;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.Properties;
import java.util.regex.Matcher;
import java.util.regex.Pattern;
import org.apache.kafka.clients.consumer.KafkaConsumer;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.serialization.StringDeserializer;
import org.apache.kafka.connect.cli.ConnectDistributed;

public class ConnectWorker {
    static final long GRACE_MS = 2500;
    static final HttpClient HTTP = HttpClient.newHttpClient();
    static String job;
    static URI url;

    public static void main(String[] words) throws Exception {
        job = words[0];
        long began = System.nanoTime();
        boolean writes = find("phase\": \"(\\w+)").equals("write");
        int first = Integer.parseInt(find("first\": (\\d+)")), last = Integer.parseInt(find("last\": (\\d+)"));
        Path file = Path.of(name("folder"), "lines.txt");
        var connect = new ConnectDistributed().startConnect(settings());
        url = connect.rest().serverUrl();
        if (writes && first == 0) {
            // Once: later on the connector has to be there.
            Files.createFile(file);
            String body = "{\"connector.class\": \"org.apache.kafka.connect.file.FileStreamSourceConnector\", \"file\": \"" + file
                + "\", \"topic\": \"" + name("name") + "-lines\", \"tasks.max\": \"1\"}";
            while (ask("PUT", "connectors/lines/config", body) / 100 != 2) Thread.sleep(200);
        }
        while (!runs()) Thread.sleep(50);
        double ready = (System.nanoTime() - began) / 1e9;
        if (writes) {
            List<String> lines = new ArrayList<>();
            for (int n = first; n < last; n++) lines.add(String.valueOf(n));
            Files.write(file, lines, StandardOpenOption.APPEND);
        }
        // Until no line has come for so long: what is sent again would be there by then.
        List<String> lines = lines();
        long quiet = System.currentTimeMillis();
        while (System.currentTimeMillis() < quiet + GRACE_MS) {
            List<String> now = lines();
            if (now.size() != lines.size() || now.isEmpty()) quiet = System.currentTimeMillis();
            lines = now;
            Thread.sleep(200);
        }
        System.out.println("\nRESULT {\"case\": \"read\", \"ready_s\": " + ready + ", \"state\": {\"running\": " + runs()
            + ", \"lines\": [" + String.join(", ", lines) + "]}}");
        connect.stop();
        connect.awaitStop();
        System.exit(0);
    }

    static Map<String, String> settings() {
        Map<String, String> found = new HashMap<>();
        found.put("bootstrap.servers", name("bootstrap"));
        found.put("group.id", name("name"));
        for (String kind : List.of("config", "offset", "status")) {
            found.put(kind + ".storage.topic", name("name") + "-" + (kind.equals("status") ? kind : kind + "s"));
            found.put(kind + ".storage.replication.factor", "1");
        }
        found.put("offset.storage.partitions", "3");
        found.put("status.storage.partitions", "2");
        found.put("offset.flush.interval.ms", "500");
        found.put("key.converter", "org.apache.kafka.connect.storage.StringConverter");
        found.put("value.converter", "org.apache.kafka.connect.storage.StringConverter");
        found.put("listeners", "http://127.0.0.1:0");
        return found;
    }

    static boolean runs() throws Exception {
        HttpResponse<String> answer = HTTP.send(
            HttpRequest.newBuilder(url.resolve("/connectors/lines/status")).timeout(Duration.ofSeconds(10)).build(),
            HttpResponse.BodyHandlers.ofString());
        return answer.statusCode() == 200 && Pattern.compile("RUNNING").matcher(answer.body()).results().count() == 2;
    }

    static int ask(String method, String path, String body) throws Exception {
        HttpRequest request = HttpRequest.newBuilder(url.resolve("/" + path)).header("Content-Type", "application/json")
            .timeout(Duration.ofSeconds(30)).method(method, HttpRequest.BodyPublishers.ofString(body)).build();
        HttpResponse<String> answer = HTTP.send(request, HttpResponse.BodyHandlers.ofString());
        System.err.println(method + " " + path + ": " + answer.statusCode() + " " + answer.body());
        return answer.statusCode();
    }

    static List<String> lines() {
        Properties settings = new Properties();
        settings.put("bootstrap.servers", name("bootstrap"));
        List<String> found = new ArrayList<>();
        TopicPartition place = new TopicPartition(name("name") + "-lines", 0);
        try (var consumer = new KafkaConsumer<>(settings, new StringDeserializer(), new StringDeserializer())) {
            consumer.assign(List.of(place));
            consumer.seekToBeginning(List.of(place));
            long end = consumer.endOffsets(List.of(place)).get(place);
            while (consumer.position(place) < end) {
                consumer.poll(Duration.ofMillis(100)).forEach(item -> found.add(item.value()));
            }
        }
        return found;
    }

    static String name(String key) {
        return find('"' + key + "\": \"([^\"]*)");
    }

    static String find(String expression) {
        Matcher found = Pattern.compile(expression).matcher(job);
        if (!found.find()) throw new IllegalArgumentException(expression);
        return found.group(1);
    }
}
