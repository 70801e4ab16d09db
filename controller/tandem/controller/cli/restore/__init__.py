"""Commands that restore records into Kafka or export them to files: `restore`, `drill`, `export`."""
