"""What tests share: makers of inputs, stand-ins, servers and readers. No test imports another test."""
