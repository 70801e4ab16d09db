"""The rights that each role needs on the store and on Kafka: `tandem policy` prints them, tests try them. Pure."""
