#!/usr/bin/env bash
# The image's entry point: `tandem` and its arguments, or one of the two words by which Spark on Kubernetes starts its pods.
set -euo pipefail

case ${1:-} in
    driver)
        shift
        SPARK_HOME=$(python -c 'import pyspark; print(*pyspark.__path__)')
        export SPARK_HOME
        # Spark made this pod in cluster mode; inside of it, its driver is a client.
        exec "$SPARK_HOME/bin/spark-submit" --deploy-mode client \
            --conf "spark.driver.bindAddress=${SPARK_DRIVER_BIND_ADDRESS:?is set by Spark in the pod of a driver}" "$@"
        ;;
    executor)
        : "${SPARK_DRIVER_URL:?is set by Spark in the pod of an executor}"
        SPARK_HOME=$(python -c 'import pyspark; print(*pyspark.__path__)')
        export SPARK_HOME
        # SPARK_JAVA_OPT_0, _1, … in the order of their numbers.
        mapfile -t options < <(env | grep '^SPARK_JAVA_OPT_[0-9]*=' | sort -t_ -k4n | cut -d= -f2-)
        exec "${JAVA_HOME:+$JAVA_HOME/bin/}java" "${options[@]}" \
            "-Xms${SPARK_EXECUTOR_MEMORY:?}" "-Xmx$SPARK_EXECUTOR_MEMORY" \
            -cp "${SPARK_CONF_DIR:+$SPARK_CONF_DIR:}${SPARK_CLASSPATH:+$SPARK_CLASSPATH:}$SPARK_HOME/jars/*" \
            org.apache.spark.scheduler.cluster.k8s.KubernetesExecutorBackend \
            --driver-url "$SPARK_DRIVER_URL" \
            --executor-id "${SPARK_EXECUTOR_ID:?}" \
            --cores "${SPARK_EXECUTOR_CORES:?}" \
            --app-id "${SPARK_APPLICATION_ID:?}" \
            --hostname "${SPARK_EXECUTOR_POD_IP:?}" \
            --resourceProfileId "${SPARK_RESOURCE_PROFILE_ID:-0}" \
            --podName "${SPARK_EXECUTOR_POD_NAME:?}"
        ;;
    *)
        exec tandem "$@"
        ;;
esac
