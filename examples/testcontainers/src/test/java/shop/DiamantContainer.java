package shop;

import com.github.dockerjava.api.command.InspectContainerResponse;
import java.io.IOException;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.List;
import org.testcontainers.containers.GenericContainer;
import org.testcontainers.containers.wait.strategy.Wait;
import org.testcontainers.images.builder.Transferable;
import org.testcontainers.utility.DockerImageName;

/** A Diamant broker in a container, as Testcontainers' KafkaContainer is a Kafka. Copy it into your tests. */
public class DiamantContainer extends GenericContainer<DiamantContainer> {
    private static final int KAFKA = 9092;
    private static final String START = "/tmp/start";
    private final List<String> settings = new ArrayList<>();
    private String alias = "localhost";

    public DiamantContainer(DockerImageName image) {
        super(image);
        withExposedPorts(KAFKA);
        withEnv("DIAMANT_BOOTSTRAP_SERVERS", "127.0.0.1:9093");
        // The port that clients call is known only once the container runs: it waits for the script that names it.
        withCreateContainerCmdModifier(create -> create.withEntrypoint("sh", "-c"));
        withCommand("until [ -x " + START + " ]; do sleep 0.05; done; exec " + START);
        waitingFor(Wait.forLogMessage(".*Diamant listens on.*", 1));
    }

    /** A configuration, of Kafka or of Diamant: withSetting("num.partitions", "3"). */
    public DiamantContainer withSetting(String name, String value) {
        settings.add("--set '" + name + "=" + value + "'");
        return this;
    }

    /** The name by which containers in the same network reach it, at NAME:9093. */
    @Override
    public DiamantContainer withNetworkAliases(String... aliases) {
        alias = aliases[0];
        return super.withNetworkAliases(aliases);
    }

    @Override
    protected void containerIsStarting(InspectContainerResponse info) {
        String advertised = "HOST://" + getBootstrapServers() + ",NETWORK://" + alias + ":9093";
        String script = String.join(" ", "#!/bin/sh\nexec diamant start --data /data",
                "--set listeners=HOST://0.0.0.0:9092,NETWORK://0.0.0.0:9093 --set advertised.listeners=" + advertised,
                "--set listener.security.protocol.map=HOST:PLAINTEXT,NETWORK:PLAINTEXT", String.join(" ", settings));
        copyFileToContainer(Transferable.of(script, 0755), START);
    }

    /** For the bootstrap.servers of clients outside of containers. */
    public String getBootstrapServers() {
        return getHost() + ":" + getMappedPort(KAFKA);
    }

    /** A command such as diamant("compact", "users"). Returns what it prints; fails as it fails. */
    public String diamant(String... arguments) throws IOException, InterruptedException {
        String[] command = Arrays.copyOf(new String[] {"diamant"}, arguments.length + 1);
        System.arraycopy(arguments, 0, command, 1, arguments.length);
        ExecResult result = execInContainer(command);
        if (result.getExitCode() != 0) {
            throw new IllegalStateException(result.getStderr());
        }
        return result.getStdout();
    }
}
