"""How both Kafka clients connect and log in: TLS, SASL, OAUTHBEARER, MSK IAM.

`client_config` takes librdkafka's property names and gives each client what it needs. Nothing here reads the
project's configuration files; `controller.config` hands the properties over.
"""
