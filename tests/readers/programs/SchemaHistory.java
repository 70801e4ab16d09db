// Debezium's schema history: records statements in its topic, and recovers them as a connector does when it starts.
import io.debezium.config.Configuration;
import io.debezium.relational.history.HistoryRecordComparator;
import io.debezium.relational.history.SchemaHistoryListener;
import io.debezium.storage.kafka.history.KafkaSchemaHistory;
import java.util.ArrayList;
import java.util.List;
import java.util.Map;
import java.util.regex.Matcher;
import java.util.regex.Pattern;

public class SchemaHistory extends KafkaSchemaHistory {
    public static void main(String[] words) throws Exception {
        String job = words[0];
        long began = System.nanoTime();
        SchemaHistory history = new SchemaHistory();
        history.configure(
            Configuration.create()
                .with(TOPIC, find(job, "name\": \"([^\"]*)"))
                .with(BOOTSTRAP_SERVERS, find(job, "bootstrap\": \"([^\"]*)"))
                .with("schema.history.internal.name", "readers")
                .build(),
            HistoryRecordComparator.INSTANCE, SchemaHistoryListener.NOOP, false);
        history.start();
        if (find(job, "phase\": \"(\\w+)").equals("write")) {
            if (!history.storageExists()) history.initializeStorage();
            for (int n = Integer.parseInt(find(job, "first\": (\\d+)")); n < Integer.parseInt(find(job, "last\": (\\d+)")); n++) {
                history.record(Map.of("server", "readers"), Map.of("position", n), "db", "CREATE TABLE t" + n + " (id INT)");
            }
        }
        List<String> numbers = new ArrayList<>();
        history.recoverRecords(item -> {
            numbers.add(find(item.document().getString("ddl"), "TABLE t(\\d+)"));
        });
        double ready = (System.nanoTime() - began) / 1e9;
        System.out.println("\nRESULT {\"case\": \"read\", \"ready_s\": " + ready + ", \"state\": [" + String.join(", ", numbers) + "]}");
        history.stop();
        System.exit(0);
    }

    static String find(String text, String expression) {
        Matcher found = Pattern.compile(expression).matcher(text);
        if (!found.find()) throw new IllegalArgumentException(expression + " in " + text);
        return found.group(1);
    }
}
