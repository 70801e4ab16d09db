"""Connection security and login of both Kafka clients: TLS, SASL, OAUTHBEARER, MSK IAM.

`client_config` takes librdkafka's property names and returns the configuration of each client. Nothing here reads the
project's configuration files; `controller.config` passes the properties in.
"""
