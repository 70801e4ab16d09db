import java.nio.file.Path;
import java.util.Properties;
import kafka.server.KafkaConfig;
import kafka.server.KafkaRaftServer;
import kafka.tools.StorageTool;
import org.apache.kafka.common.utils.Time;
import org.apache.kafka.common.utils.Utils;

/**
 * Runs several brokers in one process, which takes a fraction of the memory and the processor time that a process for
 * each would take. Arguments: the id of their cluster, and the file server.properties of each.
 */
public class BrokersInOneProcess {
    public static void main(String[] arguments) throws Exception {
        String cluster = arguments[0];
        for (int i = 1; i < arguments.length; i++) {
            String[] format = {
                "format", "--ignore-formatted", "--cluster-id", cluster, "--config", arguments[i],
            };
            if (StorageTool.execute(format, System.out) != 0) {
                System.exit(1);
            }
            Properties settings = Utils.loadProps(arguments[i]);
            new KafkaRaftServer(KafkaConfig.fromProps(settings, false), Time.SYSTEM).startup();
        }
        Thread.currentThread().join();
    }
}
