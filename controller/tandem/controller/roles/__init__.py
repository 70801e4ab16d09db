"""Which rights each role needs on the store and on Kafka: `tandem policy` prints them, the tests try them. Pure."""
